// What is seen: the surface in one pane or, beside the truth, in three; lines and markers on it; the camera.
import { Mesh, MOUSE, OrbitControls, PerspectiveCamera, Raycaster, Scene, ShaderMaterial, SphereGeometry, TOUCH, Vector2, Vector3, WebGLRenderer } from './three/three.min.js'; // prettier-ignore
import { disposeLines, makeLines } from './lines.js';
import { namePlaces } from './regions.js';
import { COLOURS, disposeSurface, makeSurface, setErrorEnds, setFrames, setRegions, setWave, SHOWN } from './surface.js';

const DEGREES = Math.PI / 180;
// Where the camera stands: x to the left of the patient, y to the back, z up.
export const VIEWS = {
  AP: [0, -1, 0.12],
  PA: [0, 1, 0.12],
  LAO: [Math.sin(45 * DEGREES), -Math.cos(45 * DEGREES), 0.12],
  RAO: [-Math.sin(30 * DEGREES), -Math.cos(30 * DEGREES), 0.12],
  top: [0, -0.02, 1],
};
const FIELD_OF_VIEW = 32;
const MARKERS = { site: [0.83, 0, 0], probe: [0.07, 0.07, 0.07], cursor: [1, 0.48, 0] };
// With a white rim: black on dark blue, or red on brown, is hard to see.
const RIMMED = {
  vertexShader: `
varying float facing;
void main() {
  vec4 place = modelViewMatrix * vec4(position, 1.0);
  facing = dot(normalize(normalMatrix * normal), normalize(-place.xyz));
  gl_Position = projectionMatrix * place;
}`,
  fragmentShader: `
uniform vec3 colour;
varying float facing;
void main() {
  gl_FragColor = vec4(mix(vec3(1.0), colour, smoothstep(0.5, 0.7, facing)), 1.0);
}`,
};

export class View {
  constructor(canvas, { onView, calm }) {
    this.canvas = canvas;
    this.onView = onView;
    this.renderer = new WebGLRenderer({ canvas, antialias: true, alpha: true });
    this.renderer.setPixelRatio(Math.min(window.devicePixelRatio, 2));
    this.renderer.setScissorTest(true);
    this.scene = new Scene();
    this.camera = new PerspectiveCamera(FIELD_OF_VIEW, 1, 1, 10000);
    this.camera.up.set(0, 0, 1);
    this.controls = new OrbitControls(this.camera, canvas);
    this.controls.enableDamping = !calm;
    this.controls.dampingFactor = 0.15;
    this.controls.mouseButtons = { LEFT: MOUSE.ROTATE, MIDDLE: MOUSE.DOLLY, RIGHT: MOUSE.PAN };
    this.controls.touches = { ONE: TOUCH.ROTATE, TWO: TOUCH.DOLLY_PAN };
    this.version = 0; // of where the camera is
    this.controls.addEventListener('change', () => {
      this.version++;
      this.redraw();
    });
    this.raycaster = new Raycaster();
    this.panes = [SHOWN.prediction];
    this.waves = [null, null];
    this.markers = [];
    this.time = -1;
    new ResizeObserver(() => this.resize()).observe(canvas.parentElement);
    this.resize();
  }

  showMesh(mesh) {
    this.clear();
    this.mesh = mesh;
    this.surface = makeSurface(mesh);
    this.fibres = makeLines(mesh.fibres, '#1a1a1a', 0.55);
    this.scene.add(this.surface, this.fibres);
    this.surface.geometry.computeBoundingSphere();
    this.sphere = this.surface.geometry.boundingSphere;
    this.look('AP');
  }

  /** Regions and fibres that came after the mesh. */
  showParts() {
    setRegions(this.surface.geometry, this.mesh);
    this.scene.remove(this.fibres);
    disposeLines(this.fibres);
    this.fibres = makeLines(this.mesh.fibres, '#1a1a1a', 0.55);
    this.scene.add(this.fibres);
  }

  clear() {
    for (const marker of this.markers) this.removeMarker(marker);
    this.markers = [];
    this.waves = [null, null];
    this.panes = [SHOWN.prediction];
    if (!this.surface) return;
    this.scene.remove(this.surface, this.fibres);
    disposeSurface(this.surface);
    disposeLines(this.fibres);
  }

  /** The prediction, or the truth beside it, with the ends of the error's colours. Without a truth there is one pane. */
  showWaves(prediction, truth, ends) {
    this.waves = [prediction, truth];
    this.waves.forEach((wave, place) => wave && setWave(this.surface, wave, place));
    if (truth) setErrorEnds(this.surface, ends);
    const before = this.distance();
    this.panes = truth ? [SHOWN.truth, SHOWN.prediction, SHOWN.difference] : [SHOWN.prediction];
    this.time = -1;
    // As much of the pane as before, whatever its shape.
    this.zoom(this.distance() / before);
  }

  setMoment(ms) {
    const [prediction] = this.waves;
    if (!prediction) return;
    const { time, share } = prediction.at(ms);
    if (time !== this.time) {
      this.waves.forEach((wave, place) => wave && setFrames(this.surface, wave, time, place));
      this.time = time;
    }
    this.surface.material.uniforms.share.value = share;
    this.redraw();
  }

  setColour(name) {
    this.surface.material.uniforms.colour.value = COLOURS[name];
    // Black strokes on dark colours can't be seen.
    this.fibres.material.color.set(name === 'regions' ? '#1a1a1a' : '#ffffff');
    this.redraw();
  }

  setLines({ fibres, borders, isochrones, spacing }) {
    this.fibres.visible = fibres;
    Object.assign(this.surface.material.uniforms.borders, { value: borders });
    Object.assign(this.surface.material.uniforms.isochrones, { value: isochrones });
    Object.assign(this.surface.material.uniforms.spacing, { value: spacing });
    this.redraw();
  }

  /** A ball at each of the nodes, in place of those of the same kind before. */
  mark(kind, nodes) {
    this.markers.filter((marker) => marker.kind === kind).forEach((marker) => this.removeMarker(marker));
    this.markers = this.markers.filter((marker) => marker.kind !== kind);
    for (const node of nodes) {
      const radius = this.sphere.radius * (kind === 'cursor' ? 0.02 : 0.025);
      const ball = new Mesh(new SphereGeometry(radius, 20, 12), new ShaderMaterial({ ...RIMMED, uniforms: { colour: { value: MARKERS[kind] } } }));
      ball.position.copy(this.place(node));
      this.scene.add(ball);
      this.markers.push({ kind, ball });
    }
    this.redraw();
  }

  removeMarker({ ball }) {
    this.scene.remove(ball);
    ball.geometry.dispose();
    ball.material.dispose();
  }

  place(node) {
    return new Vector3().fromArray(this.mesh.points, 3 * node);
  }

  /** From one of the VIEWS, as near as all of it is in sight. */
  look(name) {
    const direction = new Vector3(...VIEWS[name]).normalize();
    this.controls.target.copy(this.sphere.center);
    this.camera.position.copy(this.sphere.center).addScaledVector(direction, this.distance());
    this.frame();
  }

  distance() {
    const [{ width, height }] = this.boxes();
    const half = Math.atan(Math.tan((FIELD_OF_VIEW / 2) * DEGREES) * Math.min(1, width / height));
    return (0.9 * this.sphere.radius) / Math.sin(half);
  }

  /** Near and far planes for where the camera is now; the whole picture anew. */
  frame() {
    const away = this.camera.position.distanceTo(this.sphere.center);
    this.camera.near = Math.max(away - 2 * this.sphere.radius, 0.01 * this.sphere.radius);
    this.camera.far = away + 2 * this.sphere.radius;
    this.controls.minDistance = 0.2 * this.sphere.radius;
    this.controls.maxDistance = 12 * this.sphere.radius;
    this.controls.update();
    this.redraw();
  }

  turn(right, up) {
    const offset = this.camera.position.clone().sub(this.controls.target);
    offset.applyAxisAngle(this.camera.up, -right);
    const side = new Vector3().crossVectors(this.camera.up, offset).normalize();
    const turned = offset.clone().applyAxisAngle(side, -up);
    // Not over the poles, where up would become down.
    if (turned.angleTo(this.camera.up) > 0.05 && turned.angleTo(this.camera.up) < Math.PI - 0.05) offset.copy(turned);
    this.camera.position.copy(this.controls.target).add(offset);
    this.frame();
  }

  zoom(factor) {
    const offset = this.camera.position.clone().sub(this.controls.target);
    const length = offset.length() * factor;
    offset.setLength(Math.min(Math.max(length, this.controls.minDistance), this.controls.maxDistance));
    this.camera.position.copy(this.controls.target).add(offset);
    this.frame();
  }

  shift(right, up) {
    const length = this.camera.position.distanceTo(this.controls.target);
    const move = new Vector3().setFromMatrixColumn(this.camera.matrix, 0).multiplyScalar(right * length);
    move.addScaledVector(new Vector3().setFromMatrixColumn(this.camera.matrix, 1), up * length);
    this.camera.position.add(move);
    this.controls.target.add(move);
    this.frame();
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas.parentElement;
    const before = this.surface && this.distance();
    this.renderer.setSize(Math.max(1, clientWidth), Math.max(1, clientHeight), false);
    this.version++;
    if (this.surface) this.zoom(this.distance() / before);
    this.redraw();
  }

  /** Where each pane is, from the upper left corner, in CSS pixels: side by side, or below each other. */
  boxes() {
    const size = this.renderer.getSize(new Vector2());
    const n = this.panes.length;
    const isWide = size.x >= size.y;
    return this.panes.map((_, i) =>
      isWide
        ? { x: (i * size.x) / n, y: 0, width: size.x / n, height: size.y }
        : { x: 0, y: (i * size.y) / n, width: size.x, height: size.y / n },
    );
  }

  /** The node nearest to what lies under a point of the canvas, or null. */
  pick(x, y) {
    if (!this.surface) return null;
    const box = this.boxes().find((each) => x >= each.x && x < each.x + each.width && y >= each.y && y < each.y + each.height);
    if (!box) return null;
    const place = new Vector2((2 * (x - box.x)) / box.width - 1, 1 - (2 * (y - box.y)) / box.height);
    this.useCamera(box);
    this.raycaster.setFromCamera(place, this.camera);
    const [hit] = this.raycaster.intersectObject(this.surface);
    if (!hit) return null;
    const corners = [hit.face.a, hit.face.b, hit.face.c];
    const away = corners.map((node) => this.place(node).distanceTo(hit.point));
    return corners[away.indexOf(Math.min(...away))];
  }

  /** Where a node is seen in the first pane, in CSS pixels. */
  seen(node) {
    const [box] = this.boxes();
    this.useCamera(box);
    const on = this.place(node).project(this.camera);
    return { x: box.x + ((on.x + 1) / 2) * box.width, y: box.y + ((1 - on.y) / 2) * box.height };
  }

  /** For each region a node in sight, or null. */
  namePlaces() {
    this.useCamera(this.boxes()[0]);
    const { normal } = this.surface.geometry.attributes;
    const [at, towards, outward] = [new Vector3(), new Vector3(), new Vector3()];
    const project = (node, to, offset) => {
      at.fromArray(this.mesh.points, 3 * node);
      towards.subVectors(this.camera.position, at);
      const isFacing = towards.dot(outward.fromBufferAttribute(normal, node)) > 0;
      at.project(this.camera);
      to.set([at.x, at.y, towards.length()], offset);
      return isFacing;
    };
    const height = 2 * Math.tan((FIELD_OF_VIEW / 2) * DEGREES) * this.camera.position.distanceTo(this.sphere.center);
    const cell = Math.max(3 * this.mesh.about.edge_mm, height / 96);
    return namePlaces(this.mesh, this.mesh.about.regions.length, project, Math.ceil(height / cell), 2 * cell);
  }

  useCamera({ width, height }) {
    this.camera.aspect = width / height;
    this.camera.updateProjectionMatrix();
    this.camera.updateMatrixWorld();
  }

  redraw() {
    this.request ??= requestAnimationFrame(() => {
      this.request = undefined;
      // Damping goes on until it comes to rest, and asks for the next picture then.
      if (this.surface) this.controls.update();
      this.draw();
    });
  }

  draw() {
    if (!this.surface) return;
    const { y: height } = this.renderer.getSize(new Vector2());
    this.boxes().forEach((box, i) => {
      this.useCamera(box);
      this.surface.material.uniforms.shown.value = this.panes[i];
      const lowest = height - box.y - box.height;
      this.renderer.setViewport(box.x, lowest, box.width, box.height);
      this.renderer.setScissor(box.x, lowest, box.width, box.height);
      this.renderer.render(this.scene, this.camera);
    });
    this.onView();
  }
}
