/** A token bucket (the generic cell rate algorithm): calls beyond a burst wait until their turn by rate comes, none is refused. */

export interface Rate {
  /** Takes one call's place. @param now monotonic, ms @returns how long the call must wait, ms */
  take(now: number): number;
}

export function createRate(perSecond: number, burst: number): Rate {
  const each = 1000 / perSecond;
  let due = Number.NEGATIVE_INFINITY;
  return {
    take(now) {
      const wait = Math.max(0, due - burst * each - now);
      due = Math.max(due, now) + each;
      return wait;
    },
  };
}
