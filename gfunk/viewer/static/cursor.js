// A cursor that walks from node to node, for those who use no mouse.
import { Vector3 } from './three/three.min.js';

const STEP = 0.03; // of the surface's radius

/** The node a step to the right and up on the screen from this one, or this one where the surface ends. */
export function walked(view, around, node, right, up) {
  const start = view.place(node);
  const aim = new Vector3().setFromMatrixColumn(view.camera.matrixWorld, 0).multiplyScalar(right);
  aim.addScaledVector(new Vector3().setFromMatrixColumn(view.camera.matrixWorld, 1), up);
  let at = node;
  while (view.place(at).distanceTo(start) < STEP * view.sphere.radius) {
    const here = view.place(at).dot(aim);
    let best = at;
    let furthest = here + 1e-6 * view.sphere.radius;
    for (let i = around.first[at]; i < around.first[at + 1]; i++) {
      const there = view.place(around.nodes[i]).dot(aim);
      if (there > furthest) [best, furthest] = [around.nodes[i], there];
    }
    if (best === at) break;
    at = best;
  }
  return at;
}
