// A small chart of the potential at one point over time, as SVG.

const SVG = 'http://www.w3.org/2000/svg';
const SIZE = { width: 320, height: 134, left: 40, right: 10, top: 10, bottom: 30 };
const RANGE = { low: -100, high: 40 };

/** Draw the traces, `[{ values, className, name }]`, over the same times. */
export function drawChart(svg, times, traces) {
  const until = times[times.length - 1];
  const x = (ms) => SIZE.left + (ms / until) * (SIZE.width - SIZE.left - SIZE.right);
  const y = (mV) => SIZE.top + ((RANGE.high - mV) / (RANGE.high - RANGE.low)) * (SIZE.height - SIZE.top - SIZE.bottom);
  svg.setAttribute('viewBox', `0 0 ${SIZE.width} ${SIZE.height}`);
  const parts = [];
  for (const mV of [-80, -40, 0, 40]) {
    parts.push(made('line', { x1: x(0), x2: x(until), y1: y(mV), y2: y(mV), class: 'grid' }));
    parts.push(made('text', { x: SIZE.left - 6, y: y(mV) + 4, class: 'tick end' }, `${mV}`.replace('-', '\u2212')));
  }
  for (let i = 0; i <= 4; i++) {
    const ms = (i * until) / 4;
    parts.push(made('text', { x: x(ms), y: SIZE.height - 16, class: 'tick' }, `${Math.round(ms)}`));
  }
  parts.push(made('text', { x: x(until / 2), y: SIZE.height - 3, class: 'tick' }, 'time (ms)'));
  parts.push(made('text', { x: 11, y: y(-20), class: 'tick', transform: `rotate(-90 11 ${y(-20)})` }, 'mV'));
  for (const { values, className } of traces) {
    const places = Array.from(times, (ms, i) => `${x(ms).toFixed(1)},${y(values[i]).toFixed(1)}`).join(' ');
    parts.push(made('polyline', { points: places, class: `trace ${className}` }));
  }
  const hand = made('line', { y1: SIZE.top, y2: SIZE.height - SIZE.bottom, class: 'hand' });
  svg.replaceChildren(...parts, hand);
  return (ms) => {
    hand.setAttribute('x1', x(ms));
    hand.setAttribute('x2', x(ms));
  };
}

function made(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}
