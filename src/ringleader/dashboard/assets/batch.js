// Draws in small pieces: each frame spends a few milliseconds, so that the page
// answers to keys and touch while fifty machines are drawn for the first time.

const FRAME_MS = 4;
const waiting = new Map();
let isScheduled = false;

/** Run `draw` in one of the next frames. A later call with the same key replaces it. */
export function later(key, draw) {
  waiting.set(key, draw);
  if (!isScheduled) { isScheduled = true; requestAnimationFrame(run); }
}

function run() {
  const until = performance.now() + FRAME_MS;
  for (const [key, draw] of waiting) {
    waiting.delete(key);
    draw();
    if (performance.now() > until) break;
  }
  isScheduled = waiting.size > 0;
  if (isScheduled) requestAnimationFrame(run);
}
