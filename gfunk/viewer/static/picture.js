// What is seen, as a PNG with its legend.
import { drawBar } from './legend.js';

const MARGIN = 24;
const FOOT = 76;

/** Draw the view, its panes' titles and, below, the colour bars and a line that says what it is. */
export function picture(view, titles, colourBars, words) {
  view.draw(); // a canvas forgets what it showed once the page has been painted
  const from = view.canvas;
  const scale = from.width / from.clientWidth;
  const sheet = document.createElement('canvas');
  sheet.width = from.width;
  sheet.height = from.height + FOOT * scale;
  const context = sheet.getContext('2d');
  context.fillStyle = '#ffffff';
  context.fillRect(0, 0, sheet.width, sheet.height);
  context.drawImage(from, 0, 0);
  context.scale(scale, scale);
  context.font = '14px system-ui, sans-serif';
  const y = from.clientHeight + 20;
  colourBars.forEach((bar, i) => drawBar(context, bar, MARGIN + i * 280, y, 240));
  context.fillStyle = '#1d2733';
  context.textAlign = 'right';
  context.fillText(words, from.clientWidth - MARGIN, y);
  context.textAlign = 'center';
  view.boxes().forEach((box, i) => context.fillText(titles[i] ?? '', box.x + box.width / 2, box.y + MARGIN));
  return new Promise((resolve) => sheet.toBlob(resolve, 'image/png'));
}
