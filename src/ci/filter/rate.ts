export type Rate = ReturnType<typeof createRate>;

/** A token bucket (generic cell rate algorithm): calls beyond a burst wait; none is refused. */
export function createRate(perSecond: number, burst: number) {
  const each = 1000 / perSecond;
  let due = Number.NEGATIVE_INFINITY;
  return {
    /** @param now monotonic, ms @returns how long this call must wait, ms */
    take(now: number): number {
      const wait = Math.max(0, due - burst * each - now);
      due = Math.max(due, now) + each;
      return wait;
    },
  };
}
