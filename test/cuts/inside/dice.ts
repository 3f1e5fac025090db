/** Numbers in [0, 1), like `Math.random`, and the same ones whenever the seed is the same. */
export function dice(seed: number): () => number {
  // mulberry32: small, and spread well enough for waits.
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
