/** How patient this agent is. */

/** What the real agent would wait, in ms, at this agent's pace: a hundredth. */
export function wait(ms) {
  return Math.ceil(ms / 100);
}
