// Time: it runs in a loop, stands still, or is where the slider was put.

export class Player {
  constructor(onMoment) {
    this.onMoment = onMoment;
    this.until = 0;
    this.moment = 0;
    this.speed = 25; // ms of the wave a second
    this.isPlaying = false;
    this.turn = 0; // how often it began to play
  }

  start(until) {
    this.until = until;
    this.seek(0);
    this.play();
  }

  play() {
    if (this.isPlaying || !this.until) return;
    this.isPlaying = true;
    const own = ++this.turn;
    let before;
    const step = (now) => {
      // Paused and played again within one picture, the steps of before are still to come.
      if (!this.isPlaying || own !== this.turn) return;
      const passed = before === undefined ? 0 : (now - before) / 1000;
      before = now;
      // After a long break, as of a hidden page, the wave goes on where it was.
      const moment = this.moment + Math.min(passed, 0.25) * this.speed;
      this.seek(moment > this.until ? 0 : moment);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  /** No wave, no time. */
  stop() {
    this.pause();
    this.until = 0;
    this.seek(0);
  }

  pause() {
    this.isPlaying = false;
  }

  seek(ms) {
    this.moment = Math.min(Math.max(ms, 0), this.until);
    this.onMoment(this.moment);
  }
}
