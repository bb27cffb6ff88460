// A wave as the server sends it: frames of 256 levels, and when each node was activated.

export class Wave {
  constructor({ about, times_ms, frames, activation_ms }) {
    this.about = about;
    this.times = times_ms;
    this.frames = frames;
    this.activation = activation_ms;
    this.nNodes = activation_ms.length;
    this.until = about.until_ms; // where it has only begun, later than its last frame
    // The end of the colours of activation: whole bands of any width, and no colour for times when nothing is left to reach.
    this.latest = 20 * Math.ceil(activation_ms.reduce((last, each) => (each > last ? each : last), 1) / 20);
  }

  frame(time) {
    return this.frames.subarray(time * this.nNodes, (time + 1) * this.nNodes);
  }

  /** The last frame at or before this moment, and the share of the next one in it. */
  at(ms) {
    let low = 0;
    let high = this.times.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.times[middle] <= ms) low = middle;
      else high = middle;
    }
    const share = (ms - this.times[low]) / (this.times[high] - this.times[low]);
    return { time: low, share: Math.min(1, Math.max(0, share)) };
  }

  potential(time, node) {
    return this.about.low_mV + this.about.step_mV * this.frames[time * this.nNodes + node];
  }

  /** Potential in mV at every time. */
  trace(node) {
    return Float32Array.from(this.times, (_, time) => this.potential(time, node));
  }
}
