// How far the colours of the error reach: far enough for nearly all of it, and no further, or it would be white.

// Levels of the potential are some 0.4 mV apart: colours that end below 1 mV would show little else.
const ENDS_MV = [1, 2, 5, 10, 20, 60];
const ENDS_MS = [0.1, 0.2, 0.5, 1, 2, 5, 10];

/** Where the colours end. An upstroke is short: of all potentials few are at a front, so fewer of them may be beyond. */
export function errorEnds(prediction, truth) {
  const potential = ({ about, frames }, i) => about.low_mV + about.step_mV * frames[i];
  return {
    mV: enough(ENDS_MV, 0.001, prediction.frames.length, (i) => potential(prediction, i) - potential(truth, i)),
    ms: enough(ENDS_MS, 0.01, prediction.nNodes, (node) => prediction.activation[node] - truth.activation[node]),
  };
}

/** The smallest end that fewer than this share of the finite errors are beyond; else, or where there are no errors, the largest. */
function enough(ends, share, n, error) {
  const nBeyond = new Uint32Array(ends.length);
  let nFinite = 0;
  for (let i = 0; i < n; i++) {
    const size = Math.abs(error(i));
    if (!Number.isFinite(size)) continue;
    nFinite++;
    for (let k = 0; size > ends[k]; k++) nBeyond[k]++;
  }
  return ends.find((_, k) => nBeyond[k] < share * nFinite) ?? ends.at(-1);
}
