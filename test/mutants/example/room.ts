/** For `main.test.ts`: one fault of each kind that the tool meets. */

/** Read when this module is loaded. */
const most = 40;

export function isTooMany(count: number): boolean {
  return count > most;
}

/** True when so many more fit. */
export function fits(used: number, wanted: number, size: number): boolean {
  return used + wanted <= size;
}

/** How many steps of `by` lead past `to`. */
export function stepsPast(to: number, by: number): number {
  let steps = 0;
  for (let at = 0; at <= to; steps += 1) {
    // Without this statement the loop has no end.
    at += by;
  }
  return steps;
}

export function neverCalled(): boolean {
  return true;
}
