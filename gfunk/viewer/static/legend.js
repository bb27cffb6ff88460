// What the colours mean, with units; drawn into the page, and onto a picture.
import { ACTIVATION, DIFFERENCE, POTENTIAL, gradient, regionColour } from './colours.js';
import { PEAK_MV, REST_MV } from './surface.js';

const FULL_NAMES = {
  MV: 'mitral valve',
  LSPV: 'left superior pulmonary vein',
  LIPV: 'left inferior pulmonary vein',
  RSPV: 'right superior pulmonary vein',
  RIPV: 'right inferior pulmonary vein',
  LAA: 'appendage',
};

/** The colour bars to show: a title, a table of colours, the numbers at its ends and between. Without ends, no error. */
export function bars(colour, latest, ends) {
  if (colour === 'regions') return [];
  const isPotential = colour === 'potential';
  const main = isPotential
    ? { title: 'Potential (mV)', table: POTENTIAL, ticks: evenly(REST_MV, PEAK_MV, 4) }
    : { title: 'Activation (ms after the stimulus)', table: ACTIVATION, ticks: evenly(0, latest, nTicks(latest)) };
  if (!ends) return [main];
  const unit = isPotential ? 'mV' : 'ms';
  return [main, { title: `Error: prediction \u2212 solver (${unit})`, table: DIFFERENCE, ticks: evenly(-ends[unit], ends[unit], 3) }];
}

/** Fill the page's legend. */
export function showLegend(figure, colour, { latest, ends, regions }) {
  figure.replaceChildren();
  if (colour === 'regions') {
    const list = document.createElement('ul');
    regions.forEach((name, i) => {
      const item = document.createElement('li');
      const swatch = document.createElement('span');
      swatch.className = 'swatch';
      swatch.style.background = regionColour(i + 1);
      item.append(swatch, FULL_NAMES[name] ? `${name}  ${FULL_NAMES[name]}` : name);
      list.append(item);
    });
    figure.append(list);
  }
  bars(colour, latest, ends).forEach(({ title, table, ticks }, i) => {
    const part = document.createElement('div');
    if (i) part.className = 'both';
    const what = document.createElement('p');
    what.className = 'what';
    what.textContent = title;
    const bar = document.createElement('canvas');
    bar.className = 'bar';
    bar.setAttribute('aria-hidden', 'true'); // the numbers below tell
    [bar.width, bar.height] = [256, 1];
    const context = bar.getContext('2d');
    context.fillStyle = gradient(context, table, 0, 256);
    context.fillRect(0, 0, 256, 1);
    const numbers = document.createElement('div');
    numbers.className = 'ticks';
    numbers.append(...ticks.map((tick) => Object.assign(document.createElement('span'), { textContent: shown(tick) })));
    part.append(what, bar, numbers);
    figure.append(part);
  });
}

/** Draw a colour bar onto a picture. */
export function drawBar(context, { title, table, ticks }, x, y, width) {
  context.fillStyle = '#1d2733';
  context.textAlign = 'left';
  context.fillText(title, x, y);
  context.fillStyle = gradient(context, table, x, x + width);
  context.fillRect(x, y + 7, width, 14);
  context.fillStyle = '#1d2733';
  ticks.forEach((tick, i) => {
    context.textAlign = i === 0 ? 'left' : i === ticks.length - 1 ? 'right' : 'center';
    context.fillText(shown(tick), x + (i * width) / (ticks.length - 1), y + 37);
  });
}

/** One for every 20 ms, where bands of any width begin; fewer where they would not have room. */
function nTicks(latest) {
  return latest <= 120 ? 1 + latest / 20 : 5;
}

function evenly(low, high, n) {
  return Array.from({ length: n }, (_, i) => low + (i * (high - low)) / (n - 1));
}

function shown(number) {
  return `${Number(number.toFixed(1))}`.replace('-', '\u2212');
}
