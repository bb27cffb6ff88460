// Strokes along the fibres.
import { BufferAttribute, BufferGeometry, LineBasicMaterial, LineSegments } from './three/three.min.js';

export function makeLines(ends, colour, opacity) {
  const geometry = new BufferGeometry();
  geometry.setAttribute('position', new BufferAttribute(ends, 3));
  return new LineSegments(geometry, new LineBasicMaterial({ color: colour, transparent: true, opacity }));
}

export function disposeLines(lines) {
  lines.geometry.dispose();
  lines.material.dispose();
}
