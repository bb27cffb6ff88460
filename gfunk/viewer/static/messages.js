// What the page tells: the stages of a request while it runs, what went wrong, and words for those who hear the page.

const STAGES = {
  wait: 'Waiting for the viewer',
  atrium: 'Making the atrium',
  read: 'Reading and mending the mesh',
  regions: 'Telling its parts',
  resample: 'Laying even triangles',
  modes: 'Finding the modes of the surface',
  'first wave': 'Solving the first 10 ms',
  model: 'Loading the model',
  operator: 'Predicting the wave',
  'carry back': 'Carrying the wave to your nodes',
  solve: 'Solving for comparison',
  send: 'Sending',
};
const find = (id) => document.getElementById(id);

let latest = 0;
let ticking;

/** The answer to a request, or null where it failed, which is told. Of several at a time, the last one's stages are shown. */
export async function during(request) {
  const own = ++latest;
  const began = performance.now();
  const tick = () => {
    find('stage-time').textContent = `${((performance.now() - began) / 1000).toFixed(0)} s`;
  };
  find('problem').hidden = true;
  clearInterval(ticking);
  ticking = setInterval(tick, 1000);
  tick();
  try {
    return await request(({ stage, ahead, done }) => {
      if (own !== latest) return;
      const words = STAGES[stage] ?? stage;
      const share = done ? `: ${Math.round(100 * done)} %` : '';
      find('stage-name').textContent = ahead ? `${words}: ${ahead} before` : `${words}${share}`;
      find('progress').hidden = false;
    });
  } catch (error) {
    if (!error.replaced) complain(error.message);
    return null;
  } finally {
    if (own === latest) {
      clearInterval(ticking);
      find('progress').hidden = true;
    }
  }
}

export function complain(message) {
  find('problem-text').textContent = sentence(message);
  find('problem').hidden = false;
}

export function tell(words) {
  find('told').textContent = words;
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
