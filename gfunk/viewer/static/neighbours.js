// Which nodes are joined by an edge.

/** Each node's neighbours: those of node i are `nodes[first[i]]` up to, without, `nodes[first[i + 1]]`; some come twice. */
export function neighbours(triangles, nNodes) {
  const first = new Uint32Array(nNodes + 1);
  for (const node of triangles) first[node + 1] += 2;
  for (let node = 0; node < nNodes; node++) first[node + 1] += first[node];
  const nodes = new Uint32Array(2 * triangles.length);
  const next = first.slice();
  for (let at = 0; at < triangles.length; at += 3) {
    for (let corner = 0; corner < 3; corner++) {
      const node = triangles[at + corner];
      nodes[next[node]++] = triangles[at + ((corner + 1) % 3)];
      nodes[next[node]++] = triangles[at + ((corner + 2) % 3)];
    }
  }
  return { first, nodes };
}
