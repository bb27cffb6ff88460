// The surface and its colours: all of them are made on the graphics card, from a few numbers a node.
import {
  BufferAttribute,
  BufferGeometry,
  DataTexture,
  DoubleSide,
  LinearFilter,
  Mesh,
  NearestFilter,
  RGBAFormat,
  ShaderMaterial,
} from './three/three.min.js';
import { ACTIVATION, DIFFERENCE, POTENTIAL, regionTable } from './colours.js';
import { regionWeights } from './regions.js';

export const REST_MV = -85;
export const PEAK_MV = 20;

// What is coloured, and which wave is shown.
export const COLOURS = { regions: 0, potential: 1, activation: 2 };
export const SHOWN = { prediction: 0, truth: 1, difference: 2 };

const VERTEX = `
attribute vec4 weightsA;     // how much a node belongs to each of eight regions
attribute vec4 weightsB;
attribute vec4 levels;       // prediction now and next, truth now and next
attribute vec4 activations;  // prediction: ms, 1 if activated; truth: the same
varying vec3 vNormal;
varying vec3 vPosition;
varying vec4 vWeightsA;
varying vec4 vWeightsB;
varying vec4 vLevels;
varying vec4 vActivations;
void main() {
  vec4 place = modelViewMatrix * vec4(position, 1.0);
  vNormal = normalMatrix * normal;
  vPosition = place.xyz;
  vWeightsA = weightsA;
  vWeightsB = weightsB;
  vLevels = levels;
  vActivations = activations;
  gl_Position = projectionMatrix * place;
}`;

const FRAGMENT = `
uniform int colour;
uniform int shown;
uniform float share;      // of the next frame
uniform vec2 scales[2];   // lowest potential and range of the levels, prediction and truth
uniform vec2 range;       // potentials at the table's ends
uniform vec2 differences; // mV, ms at the table's ends
uniform float latest;     // of all activations, ms
uniform float spacing;    // of isochrones, ms
uniform bool isochrones;
uniform bool borders;
uniform sampler2D regionColours;
uniform sampler2D potentialTable;
uniform sampler2D activationTable;
uniform sampler2D differenceTable;
varying vec3 vNormal;
varying vec3 vPosition;
varying vec4 vWeightsA;
varying vec4 vWeightsB;
varying vec4 vLevels;
varying vec4 vActivations;
const vec3 NEVER = vec3(0.86);

vec3 table(sampler2D colours, float place) {
  // The centres of the first and last colour are the ends.
  return texture2D(colours, vec2((clamp(place, 0.0, 1.0) * 63.0 + 0.5) / 64.0, 0.5)).rgb;
}

/** The region with the largest weight, and how much larger that is than the next. */
vec2 region() {
  float weights[8] = float[8](vWeightsA.x, vWeightsA.y, vWeightsA.z, vWeightsA.w, vWeightsB.x, vWeightsB.y, vWeightsB.z, vWeightsB.w);
  float first = -1.0;
  float second = -1.0;
  float number = 0.0;
  for (int i = 0; i < 8; i++) {
    if (weights[i] > first) {
      second = first;
      first = weights[i];
      number = float(i);
    } else second = max(second, weights[i]);
  }
  return vec2(number, first - second);
}

vec3 bare(float number) {
  if (colour == 0) return texture2D(regionColours, vec2((number + 0.5) / 8.0, 0.5)).rgb;
  if (colour == 1) {
    float predicted = scales[0].x + scales[0].y * mix(vLevels.x, vLevels.y, share);
    float truth = scales[1].x + scales[1].y * mix(vLevels.z, vLevels.w, share);
    if (shown == 2) return table(differenceTable, 0.5 + 0.5 * (predicted - truth) / differences.x);
    return table(potentialTable, ((shown == 1 ? truth : predicted) - range.x) / (range.y - range.x));
  }
  if (shown == 2) {
    if (min(vActivations.y, vActivations.w) < 0.99) return NEVER;
    return table(differenceTable, 0.5 + 0.5 * (vActivations.x - vActivations.z) / differences.y);
  }
  vec2 arrival = shown == 1 ? vActivations.zw : vActivations.xy;
  if (arrival.y < 0.99) return NEVER;
  return table(activationTable, (floor(arrival.x / spacing) + 0.5) * spacing / latest);
}

void main() {
  vec3 normal = normalize(vNormal);
  float facing = dot(normal, normalize(-vPosition)) * (gl_FrontFacing ? 1.0 : -1.0);
  float side = dot(gl_FrontFacing ? normal : -normal, normalize(vec3(0.35, 0.55, 0.75)));
  float light = 0.52 + 0.33 * max(facing, 0.0) + 0.2 * max(side, 0.0);
  vec2 own = region();
  vec3 seen = bare(own.x) * min(light, 1.04);
  // A gleam, which shows the shape where colours are dark.
  vec3 halfway = normalize(normalize(vec3(0.35, 0.55, 0.75)) + normalize(-vPosition));
  seen += 0.13 * pow(max(dot(gl_FrontFacing ? normal : -normal, halfway), 0.0), 18.0);
  // Inner sides, seen through a hole, are darker.
  if (!gl_FrontFacing) seen *= 0.62;
  vec4 changes = max(fwidth(vWeightsA), fwidth(vWeightsB));
  float border = own.y / max(2.0 * max(max(changes.x, changes.y), max(changes.z, changes.w)), 1e-6);
  if (borders) seen = mix(seen, colour == 0 ? vec3(0.15) : vec3(0.95), 0.7 * (1.0 - smoothstep(0.4, 1.2, border)));
  vec2 arrival = shown == 1 ? vActivations.zw : vActivations.xy;
  float lines = arrival.x / spacing;
  float wide = max(fwidth(lines), 1e-6);
  if (isochrones && shown != 2 && arrival.y > 0.99 && wide < 0.6) {
    float near = abs(fract(lines - 0.5) - 0.5) / wide;
    vec3 ink = vec3(dot(seen, vec3(0.3, 0.6, 0.1)) < 0.3 ? 0.8 : 0.08);
    seen = mix(seen, ink, 0.7 * (1.0 - smoothstep(0.5, 1.3, near)));
  }
  gl_FragColor = vec4(seen, 1.0);
}`;

/** The mesh of an answer as something to draw; `material.uniforms` says how it is coloured. */
export function makeSurface({ points, triangles, regions }) {
  const n = points.length / 3;
  const geometry = new BufferGeometry();
  geometry.setAttribute('position', new BufferAttribute(points, 3));
  geometry.setIndex(new BufferAttribute(new Uint32Array(triangles.buffer, triangles.byteOffset, triangles.length), 1));
  setRegions(geometry, { triangles, regions });
  geometry.setAttribute('levels', new BufferAttribute(new Uint8Array(4 * n), 4, true));
  geometry.setAttribute('activations', new BufferAttribute(new Float32Array(4 * n), 4));
  geometry.computeVertexNormals();
  const material = new ShaderMaterial({
    vertexShader: VERTEX,
    fragmentShader: FRAGMENT,
    side: DoubleSide,
    // Behind lines that lie in it.
    polygonOffset: true,
    polygonOffsetFactor: 1,
    polygonOffsetUnits: 1,
    uniforms: {
      colour: { value: COLOURS.regions },
      shown: { value: SHOWN.prediction },
      share: { value: 0 },
      scales: { value: [REST_MV, 0, REST_MV, 0] },
      range: { value: [REST_MV, PEAK_MV] },
      differences: { value: [1, 1] },
      latest: { value: 100 },
      spacing: { value: 10 },
      isochrones: { value: false },
      borders: { value: false },
      regionColours: { value: texture(regionTable(), NearestFilter) },
      potentialTable: { value: texture(POTENTIAL) },
      activationTable: { value: texture(ACTIVATION) },
      differenceTable: { value: texture(DIFFERENCE) },
    },
  });
  return new Mesh(geometry, material);
}

export function setRegions(geometry, mesh) {
  const weights = regionWeights(mesh);
  geometry.setAttribute('weightsA', new BufferAttribute(weights[0], 4, true));
  geometry.setAttribute('weightsB', new BufferAttribute(weights[1], 4, true));
}

/** Put a wave into its place, 0 the prediction's, 1 the truth's. */
export function setWave(surface, wave, place) {
  const { activations } = surface.geometry.attributes;
  for (let node = 0; node < wave.nNodes; node++) {
    const arrival = wave.activation[node];
    const isActivated = Number.isFinite(arrival);
    activations.array[4 * node + 2 * place] = isActivated ? arrival : 0;
    activations.array[4 * node + 2 * place + 1] = isActivated ? 1 : 0;
  }
  activations.needsUpdate = true;
  const { scales, latest } = surface.material.uniforms;
  scales.value[2 * place] = wave.about.low_mV;
  scales.value[2 * place + 1] = 255 * wave.about.step_mV;
  if (place === 0) latest.value = wave.latest;
}

/** Let the colours of the error end at these. */
export function setErrorEnds(surface, { mV, ms }) {
  surface.material.uniforms.differences.value = [mV, ms];
}

/** Put two frames next to each other in time into the wave's place. */
export function setFrames(surface, wave, time, place) {
  const { levels } = surface.geometry.attributes;
  const now = wave.frame(time);
  const next = wave.frame(Math.min(time + 1, wave.times.length - 1));
  const to = levels.array;
  for (let node = 0, at = 2 * place; node < now.length; node++, at += 4) {
    to[at] = now[node];
    to[at + 1] = next[node];
  }
  levels.needsUpdate = true;
}

export function disposeSurface(surface) {
  surface.geometry.dispose();
  for (const name of ['potentialTable', 'activationTable', 'differenceTable', 'regionColours']) {
    surface.material.uniforms[name].value.dispose();
  }
  surface.material.dispose();
}

function texture(table, filter = LinearFilter) {
  const made = new DataTexture(table, table.length / 4, 1, RGBAFormat);
  made.minFilter = filter;
  made.magFilter = filter;
  made.needsUpdate = true;
  return made;
}
