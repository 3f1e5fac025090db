/** A token bucket (generic cell rate algorithm): calls beyond a burst wait; none is refused. */

/** Returns a function that takes the time, monotonic, ms, and answers how long a call must wait, ms. */
export function createRate(perSecond: number, burst: number): (now: number) => number {
  const each = 1000 / perSecond;
  let due = Number.NEGATIVE_INFINITY;
  return (now) => {
    const wait = Math.max(0, due - burst * each - now);
    due = Math.max(due, now) + each;
    return wait;
  };
}
