// How much each node belongs to each region, and where regions' names go.
import { REGION_COLOURS } from './colours.js';
import { neighbours } from './neighbours.js';

const ROUNDS = 5; // of averaging over neighbours
const NOWHERE = 0.06; // of a region, seen: too little for a name

/**
 * Weights of eight regions, as two arrays of four a node. Averaged over neighbours: the line where the largest changes
 * is smooth, and not the zigzag of the edges.
 */
export function regionWeights({ triangles, regions }) {
  const n = regions.length;
  const around = neighbours(triangles, n);
  const found = [new Uint8Array(4 * n), new Uint8Array(4 * n)];
  for (let region = 0; region < REGION_COLOURS.length; region++) {
    let weights = Float32Array.from(regions, (number) => (number === region ? 1 : 0));
    if (!weights.includes(1)) continue;
    for (let round = 0; round < ROUNDS; round++) weights = averaged(weights, around);
    const to = found[region >> 2];
    for (let node = 0; node < n; node++) to[4 * node + (region & 3)] = Math.round(255 * weights[node]);
  }
  return found;
}

function averaged(values, { first, nodes }) {
  return values.map((value, node) => {
    let sum = 0;
    for (let i = first[node]; i < first[node + 1]; i++) sum += values[nodes[i]];
    return 0.5 * value + (0.5 * sum) / (first[node + 1] - first[node]);
  });
}

/**
 * For each region the node where its name goes: the one nearest to the middle of what is seen of it, or null.
 * `project` writes a node's x and y (-1 to 1) and depth, and says whether it faces us. What hides what is judged on a grid
 * of `nCells` a side, so coarse that every cell before the surface holds nodes; `deep` is how much depth one may hold.
 */
export function namePlaces({ regions }, nRegions, project, nCells, deep) {
  const n = regions.length;
  const places = new Float32Array(3 * n);
  const faces = new Uint8Array(n);
  const nearest = new Float32Array(nCells * nCells).fill(Infinity);
  const cell = (node) => {
    const column = Math.floor(((places[3 * node] + 1) / 2) * nCells);
    const row = Math.floor(((places[3 * node + 1] + 1) / 2) * nCells);
    return column < 0 || row < 0 || column >= nCells || row >= nCells ? -1 : row * nCells + column;
  };
  for (let node = 0; node < n; node++) {
    faces[node] = project(node, places, 3 * node);
    const at = cell(node);
    if (at >= 0) nearest[at] = Math.min(nearest[at], places[3 * node + 2]);
  }
  const isSeen = (node) => faces[node] && cell(node) >= 0 && places[3 * node + 2] < nearest[cell(node)] + deep;
  const sums = Array.from({ length: nRegions + 1 }, () => ({ x: 0, y: 0, seen: 0, all: 0, node: null, away: Infinity }));
  for (let node = 0; node < n; node++) {
    const sum = sums[regions[node]];
    sum.all++;
    if (!isSeen(node)) continue;
    sum.x += places[3 * node];
    sum.y += places[3 * node + 1];
    sum.seen++;
  }
  for (let node = 0; node < n; node++) {
    const sum = sums[regions[node]];
    if (sum.seen <= NOWHERE * sum.all || !isSeen(node)) continue;
    const away = (places[3 * node] - sum.x / sum.seen) ** 2 + (places[3 * node + 1] - sum.y / sum.seen) ** 2;
    if (away < sum.away) Object.assign(sum, { away, node });
  }
  return sums.slice(1).map((sum) => sum.node);
}
