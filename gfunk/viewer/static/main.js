// The page: what the controls do, and what is shown when.
import { drawChart } from './chart.js';
import { walked } from './cursor.js';
import { errorEnds } from './errors.js';
import { bars, showLegend } from './legend.js';
import { complain, during, sentence, tell } from './messages.js';
import { Names } from './names.js';
import { neighbours } from './neighbours.js';
import { picture } from './picture.js';
import { Player } from './player.js';
import { askForAtrium, askForGiven, askForParts, askForReady, askForTruth, askForUpload, askForWave, downloadAddress } from './server.js';
import { View } from './view.js';
import { Wave } from './waves.js';

const find = (id) => document.getElementById(id);
const isCalm = window.matchMedia('(prefers-reduced-motion: reduce)').matches;

const CLICK_PIXELS = 5;

const state = { mesh: null, prediction: null, truth: null, ends: null, sites: [], asked: [], probe: null, cursor: null, around: null };
let moveHand = () => {};

const player = new Player((ms) => {
  view.setMoment(ms);
  find('time').value = ms;
  find('moment').textContent = `${ms.toFixed(1)} ms`;
  find('time').setAttribute('aria-valuetext', `${ms.toFixed(0)} milliseconds`);
  moveHand(ms);
});

let view;
try {
  view = new View(find('canvas'), { onView: viewed, calm: isCalm });
} catch {
  complain('This browser shows no WebGL, which the viewer draws with: allow hardware acceleration, or take another browser.');
  throw new Error('no WebGL');
}

const names = new Names(find('names'), view);

function viewed() {
  const [, second] = view.boxes();
  find('panes').classList.toggle('stacked', second?.y > 0);
  names.follow();
}

/* ---- meshes ---- */

async function load(request) {
  const mesh = await during(request);
  if (!mesh) return;
  Object.assign(state, { mesh, prediction: null, truth: null, sites: [], asked: [], probe: null, cursor: null, around: null });
  player.stop();
  view.showMesh(mesh);
  showAbout(mesh.about);
  showControls();
  choose('colour', 'regions');
  refresh();
  find('hint').hidden = false;
  tell(`${mesh.about.label}, ${mesh.about.nodes} nodes`);
  if (!mesh.about.regions.length) await loadParts(mesh);
  // What can be done before the first click is done now.
  if (state.mesh === mesh) await during((onStage) => askForReady(mesh.about.scene, onStage));
}

async function loadParts(mesh) {
  const parts = await during((onStage) => askForParts(mesh.about.scene, onStage));
  if (!parts || state.mesh !== mesh) return;
  Object.assign(mesh, { regions: parts.regions, fibres: parts.fibres });
  Object.assign(mesh.about, parts.about);
  view.showParts();
  showAbout(mesh.about);
  refresh();
}

function showAbout({ label, nodes, area_cm2: area, edge_mm: edge, repairs }) {
  find('about').textContent = `${label}: ${nodes.toLocaleString('en')} nodes, ${area.toFixed(0)} cm², edges ${edge.toFixed(2)} mm`;
  find('repairs').hidden = !repairs.length;
  find('repairs').querySelector('summary').textContent = `What was changed or assumed (${repairs.length})`;
  find('repairs').querySelector('ul').replaceChildren(...repairs.map(listed));
}

function listed(text) {
  return Object.assign(document.createElement('li'), { textContent: text });
}

function loadFiles(files) {
  if (files.length) load((onStage) => askForUpload([...files], onStage));
}

/* ---- waves ---- */

async function stimulate(nodes) {
  const { mesh } = state;
  state.asked = nodes;
  view.mark('site', nodes);
  find('hint').hidden = true;
  // The wave that is seen is no longer the one asked for, and drawing it would keep the processor from finding that one.
  player.pause();
  showPlaying();
  // Another mesh, or a newer click, may have come meanwhile.
  const isAsked = () => state.mesh === mesh && state.asked === nodes;
  const answer = await during((onStage) => askForWave(mesh.about.scene, nodes, onStage, (begun) => isAsked() && start(begun, nodes)));
  if (!isAsked()) return;
  if (!answer) {
    view.mark('site', state.sites);
    return;
  }
  if (state.sites !== nodes) start(answer, nodes);
  else show(answer);
  drawProbe();
}

/** The wave, all of it or as far as it is there, plays from its beginning. */
function start(answer, nodes) {
  if (!state.prediction) choose('colour', isCalm ? 'activation' : 'potential');
  Object.assign(state, { truth: null, sites: nodes });
  show(answer);
  showControls();
  find('time').max = state.prediction.until;
  player.start(state.prediction.until);
  if (isCalm) {
    player.pause();
    player.seek(state.prediction.until / 3);
  }
  showPlaying();
  tell(`Wave from ${placeInWords(nodes[0])}`);
}

/** Instead of what was known of it before; time goes on. */
function show(answer) {
  state.prediction = new Wave(answer);
  showCompared(isCompared());
  showTrust();
}

function isCompared() {
  return state.truth !== null && find('compare').getAttribute('aria-pressed') === 'true';
}

/** Three panes, solving first where that was not done yet; pressed again, one. */
async function compare() {
  const { mesh, sites } = state;
  if (isCompared()) return showCompared(false);
  if (!state.truth) {
    const answer = await during((onStage) => askForTruth(mesh.about.scene, sites, onStage));
    if (!answer || state.mesh !== mesh || state.sites !== sites) return;
    state.truth = new Wave(answer);
    state.ends = errorEnds(state.prediction, state.truth);
  }
  showCompared(true);
  showTrust();
  drawProbe();
}

function showCompared(isSo) {
  find('compare').setAttribute('aria-pressed', isSo);
  find('compare').textContent = isSo ? 'Show the prediction alone' : 'Compare with the solver';
  if (!state.prediction) return;
  view.showWaves(state.prediction, isSo ? state.truth : null, state.ends);
  view.setMoment(player.moment);
  refresh();
}

function showTrust() {
  const { warnings, trust, seconds } = state.prediction.about;
  const total = Object.values(seconds).reduce((sum, each) => sum + each, 0);
  const said = warnings.length ? warnings : [trust ?? 'no warning for this mesh and site; the solver tells for sure'];
  find('warnings').replaceChildren(...said.map(sentence).map(listed), ...(total ? [listed(`Predicted in ${total.toFixed(total < 1 ? 2 : 1)} s.`)] : []));
  find('errors').hidden = !state.truth;
  if (state.truth) {
    const { rel_l2: error, lat_error_ms: late } = state.truth.about;
    const times = late === null ? '' : `; activation times are off by ${late.toFixed(2)} ms on average`;
    find('errors').textContent = `Beside the solver: relative l2 error ${error === null ? 'not finite' : `${(100 * error).toFixed(1)} %`}${times}.`;
  }
}

/* ---- what is seen ---- */

function chosen(name) {
  return document.querySelector(`input[name="${name}"]:checked`).value;
}

function choose(name, value) {
  document.querySelector(`input[name="${name}"][value="${value}"]`).checked = true;
}

/** Colours, lines, legend and names as the controls say. */
function refresh() {
  if (!state.mesh) return;
  const colour = chosen('colour');
  view.setColour(colour);
  view.setLines({
    fibres: find('fibres').checked,
    borders: find('borders').checked,
    isochrones: find('isochrones').checked && Boolean(state.prediction) && colour !== 'regions',
    spacing: Number(find('spacing').value),
  });
  const compares = isCompared();
  showLegend(find('legend'), colour, { latest: state.prediction?.latest ?? 0, ends: shownEnds(), regions: state.mesh.about.regions });
  find('panes').className = compares ? 'three' : '';
  find('panes').replaceChildren(...paneTitles().map((title) => Object.assign(document.createElement('span'), { textContent: title })));
  names.show(find('labels').checked && !compares ? state.mesh.about.regions : []);
}

/** Of the error's colours, where it is seen. */
function shownEnds() {
  return isCompared() ? state.ends : null;
}

function paneTitles() {
  return isCompared() ? ['Solver', 'Prediction', 'Error'] : [];
}

function showControls() {
  const hasWave = Boolean(state.prediction);
  for (const each of document.querySelectorAll('input[name="colour"]')) each.disabled = each.value !== 'regions' && !hasWave;
  find('trust').hidden = !hasWave;
  find('save').hidden = !hasWave;
  find('probe').hidden = state.probe === null || !hasWave;
  find('play').disabled = !hasWave;
  find('time').disabled = !hasWave;
  find('player').classList.toggle('off', !hasWave);
  showPlaying();
}

function showPlaying() {
  find('play').setAttribute('aria-label', player.isPlaying ? 'Pause' : 'Play');
  find('play-icon').setAttribute('d', player.isPlaying ? 'M6 4h4v16H6zM14 4h4v16h-4z' : 'M7 4l13 8-13 8z');
}

/* ---- the probe ---- */

function probe(node) {
  state.probe = node;
  view.mark('probe', [node]);
  drawProbe();
}

function drawProbe() {
  find('probe').hidden = state.probe === null || !state.prediction;
  if (find('probe').hidden) return;
  const arrival = state.prediction.activation[state.probe];
  const when = Number.isFinite(arrival) ? `activated after ${arrival.toFixed(1)} ms` : 'not activated in this time';
  find('probe-place').textContent = `${placeInWords(state.probe)}: ${when}`;
  const traces = [{ values: state.prediction.trace(state.probe), className: 'predicted' }];
  if (state.truth) traces.push({ values: state.truth.trace(state.probe), className: 'true' });
  moveHand = drawChart(find('chart'), state.prediction.times, traces);
  moveHand(player.moment);
  find('chart-key').hidden = !state.truth;
  const compared = state.truth ? '; dashed: the solver' : '';
  find('chart').setAttribute('aria-label', `Potential over time at ${placeInWords(state.probe)}, ${when}${compared}`);
  tell(find('probe-place').textContent);
}

function placeInWords(node) {
  const { points, regions, about } = state.mesh;
  const place = [0, 1, 2].map((axis) => points[3 * node + axis].toFixed(1).replace('-', '\u2212')).join(', ');
  const region = about.regions[regions[node] - 1];
  return region ? `${region} (${place} mm)` : `(${place}) mm`;
}

/* ---- clicks and keys on the canvas ---- */

function use(node, adds) {
  if (chosen('tool') === 'probe' && state.prediction) probe(node);
  else stimulate(adds && state.sites.length ? [...state.sites, node] : [node]);
}

let pressed = null;
find('canvas').addEventListener('pointerdown', (event) => {
  pressed = event.isPrimary && event.button === 0 ? [event.clientX, event.clientY] : null;
});
find('canvas').addEventListener('pointerup', (event) => {
  if (!pressed || !event.isPrimary || !state.mesh) return;
  const moved = Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]);
  pressed = null;
  if (moved > CLICK_PIXELS) return;
  const box = find('canvas').getBoundingClientRect();
  const node = view.pick(event.clientX - box.left, event.clientY - box.top);
  if (node !== null) use(node, event.shiftKey);
});

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

find('canvas').addEventListener('keydown', (event) => {
  if (!state.mesh || event.ctrlKey || event.metaKey) return;
  const arrow = ARROWS[event.key];
  if (arrow && event.shiftKey) view.turn(0.15 * arrow[0], 0.15 * arrow[1]);
  else if (arrow && event.altKey) view.shift(0.05 * arrow[0], 0.05 * arrow[1]);
  else if (arrow) moveCursor(...arrow);
  else if (event.key === 'Enter' && state.cursor !== null) use(state.cursor, event.shiftKey);
  else if (event.key === '+' || event.key === '=') view.zoom(0.85);
  else if (event.key === '-') view.zoom(1 / 0.85);
  else if (event.key === 'Home') view.look('AP');
  else if (event.key === ' ') find('play').click();
  else if (event.key === ',') step(-1);
  else if (event.key === '.') step(1);
  else return;
  event.preventDefault();
});

function moveCursor(right, up) {
  const { mesh } = state;
  state.around ??= neighbours(mesh.triangles, mesh.about.nodes);
  state.cursor = state.cursor === null ? inTheMiddle() : walked(view, state.around, state.cursor, right, up);
  view.mark('cursor', [state.cursor]);
  tell(`Cursor at ${placeInWords(state.cursor)}`);
}

/** The node nearest to the middle of the view, or any if the surface is elsewhere. */
function inTheMiddle() {
  const [{ x, y, width, height }] = view.boxes();
  return view.pick(x + width / 2, y + height / 2) ?? 0;
}

function step(ms) {
  player.pause();
  player.seek(player.moment + ms);
  showPlaying();
}

/* ---- controls ---- */

find('seed-form').addEventListener('submit', (event) => {
  event.preventDefault();
  load((onStage) => askForAtrium(Number(find('seed').value), onStage));
});
find('another').addEventListener('click', () => {
  find('seed').value = Number(find('seed').value) + 1;
  find('seed-form').requestSubmit();
});
find('open').addEventListener('click', () => find('files').click());
find('files').addEventListener('change', (event) => {
  loadFiles(event.target.files);
  // So that the same file can be chosen again.
  setTimeout(() => { event.target.value = ''; });
});

let nDragged = 0;
addEventListener('dragenter', () => { find('drop').hidden = ++nDragged === 0; });
addEventListener('dragleave', () => { find('drop').hidden = --nDragged <= 0; });
addEventListener('dragover', (event) => event.preventDefault());
addEventListener('drop', (event) => {
  event.preventDefault();
  nDragged = 0;
  find('drop').hidden = true;
  loadFiles(event.dataTransfer.files);
});

for (const each of document.querySelectorAll('input[name="colour"], .checks input, #spacing')) each.addEventListener('change', refresh);
for (const each of document.querySelectorAll('[data-view]')) {
  each.addEventListener('click', () => state.mesh && view.look(each.dataset.view));
}
find('play').addEventListener('click', () => {
  if (find('play').disabled) return;
  if (player.isPlaying) player.pause();
  else player.play();
  showPlaying();
});
find('time').addEventListener('input', (event) => {
  player.pause();
  player.seek(Number(event.target.value));
  showPlaying();
});
find('speed').addEventListener('change', (event) => { player.speed = Number(event.target.value); });
find('problem-close').addEventListener('click', () => { find('problem').hidden = true; });
find('compare').addEventListener('click', compare);

for (const kind of ['npz', 'vtp']) {
  find(`save-${kind}`).addEventListener('click', (event) => {
    event.currentTarget.href = downloadAddress(`wave.${kind}`, state.mesh.about.scene, state.sites);
  });
  find(`save-${kind}`).href = '#';
}
find('save-png').addEventListener('click', async () => {
  const colour = chosen('colour');
  const words = `${state.mesh.about.label}, ${player.moment.toFixed(1)} ms after the stimulus`;
  const blob = await picture(view, paneTitles(), bars(colour, state.prediction.latest, shownEnds()), words);
  const link = Object.assign(document.createElement('a'), { href: URL.createObjectURL(blob), download: 'gfunk.png' });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});

/* ---- the first mesh ---- */

const password = new URLSearchParams(location.hash.slice(1)).get('given');
if (password) load((onStage) => askForGiven(password, onStage));
else find('seed-form').requestSubmit();
