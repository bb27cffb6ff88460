// Asking the server: every answer is a stream of lines, one a stage, that ends in a line with `bytes` and those bytes. A
// wave that has begun may come before all of it, in the same way.

/** What the server or the way to it would not do, in words to show. `replaced`: a newer request took its place. */
export class Refusal extends Error {
  constructor(message, replaced = false) {
    super(message);
    this.replaced = replaced;
  }
}

const TYPES = { float32: Float32Array, int32: Int32Array, uint8: Uint8Array };

export function askForAtrium(seed, onStage) {
  return post('/api/atrium', JSON.stringify({ seed }), onStage);
}

/** The mesh named on the command line; `password` comes with the printed address. */
export function askForGiven(password, onStage) {
  return post('/api/given', JSON.stringify({ password }), onStage);
}

/** Files go one after another in one body; the address says their endings and sizes. */
export function askForUpload(files, onStage) {
  const parts = files.map((file) => `${ending(file.name)}:${file.size}`).join(',');
  const query = new URLSearchParams({ parts, label: files[0].name });
  return post(`/api/upload?${query}`, new Blob(files), onStage);
}

/** Regions and fibres of a mesh that came without. */
export function askForParts(scene, onStage) {
  return post('/api/parts', JSON.stringify({ scene }), onStage);
}

export function askForReady(scene, onStage) {
  return post('/api/ready', JSON.stringify({ scene }), onStage);
}

export function askForWave(scene, nodes, onStage, onBegun) {
  return post('/api/wave', JSON.stringify({ scene, nodes }), onStage, onBegun);
}

export function askForTruth(scene, nodes, onStage) {
  return post('/api/truth', JSON.stringify({ scene, nodes }), onStage);
}

export function downloadAddress(name, scene, nodes) {
  return `/api/download/${name}?${new URLSearchParams({ scene, nodes: nodes.join(',') })}`;
}

function ending(name) {
  const dot = name.lastIndexOf('.');
  return dot < 0 ? '' : name.slice(dot).toLowerCase();
}

async function post(address, body, onStage, onBegun) {
  let response;
  try {
    response = await fetch(address, { method: 'POST', body });
  } catch {
    throw new Refusal('The viewer does not answer: is it still running in its terminal?');
  }
  if (!response.ok) {
    const said = await response.json().catch(() => ({}));
    throw new Refusal(said.error ?? `The viewer answered with status ${response.status}.`);
  }
  try {
    return await answer(response.body.getReader(), onStage, onBegun);
  } catch (error) {
    throw error instanceof Refusal ? error : new Refusal('The answer broke off: try again.');
  }
}

async function answer(reader, onStage, onBegun) {
  let waiting = new Uint8Array(0);
  for (;;) {
    const end = waiting.indexOf(10);
    if (end < 0) {
      const { value, done } = await reader.read();
      if (done) throw new Refusal('The answer broke off: try again.');
      waiting = joined(waiting, value);
      continue;
    }
    const line = JSON.parse(new TextDecoder().decode(waiting.subarray(0, end)));
    waiting = waiting.subarray(end + 1);
    if (line.error) throw new Refusal(line.error, line.replaced);
    if (line.bytes === undefined) {
      onStage?.(line);
      continue;
    }
    const { buffer, rest } = await content(reader, waiting, line.bytes);
    const found = { about: line.about, ...arrays(line.arrays, buffer) };
    if (line.last) return found;
    onBegun?.(found);
    waiting = rest;
  }
}

/** All the bytes, in one buffer that begins with them: typed arrays lie at multiples of their size. And what came after. */
async function content(reader, first, size) {
  const whole = new Uint8Array(size);
  let length = 0;
  for (let piece = first; ; ) {
    const part = piece.subarray(0, size - length);
    whole.set(part, length);
    length += part.length;
    if (length === size) return { buffer: whole.buffer, rest: piece.subarray(part.length) };
    const { value, done } = await reader.read();
    if (done) throw new Refusal('The answer broke off: try again.');
    piece = value;
  }
}

function arrays(table, buffer) {
  const found = {};
  for (const { name, type, shape, offset } of table) {
    const size = shape.reduce((product, count) => product * count, 1);
    found[name] = new TYPES[type](buffer, offset, size);
  }
  return found;
}

function joined(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}
