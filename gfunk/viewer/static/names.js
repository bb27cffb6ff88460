// Names of the regions, on the surface where they are seen.

const REST_MS = 80; // after the view has moved, before names look for a better place

export class Names {
  constructor(element, view) {
    this.element = element;
    this.view = view;
    this.nodes = [];
  }

  show(regions) {
    this.regions = regions;
    this.element.replaceChildren(
      ...regions.map((name) => Object.assign(document.createElement('span'), { textContent: name })),
    );
    this.find();
  }

  /** A node for each name, where its region is in sight; the whole of the rest, the body, needs no name. */
  find() {
    if (!this.regions?.length) return;
    this.nodes = this.view.namePlaces().map((node, i) => (this.regions[i] === 'body' ? null : node));
    this.place();
  }

  /** Called with every picture: names stay at their nodes, and look for better ones once the view is at rest. */
  follow() {
    this.place();
    if (this.view.version === this.version) return;
    this.version = this.view.version;
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.find(), REST_MS);
  }

  place() {
    [...this.element.children].forEach((name, i) => {
      const node = this.nodes[i] ?? null;
      name.hidden = node === null;
      if (node === null) return;
      const { x, y } = this.view.seen(node);
      name.style.left = `${x}px`;
      name.style.top = `${y}px`;
    });
  }
}
