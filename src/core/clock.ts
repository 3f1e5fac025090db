/** The core's idea of time: a number. Kept behind an interface so that tests move it by hand. */
export interface Clock {
  /** Milliseconds since boot; never goes back, and the same for every process of this boot. */
  now(): number;
  /** Wall clock, ms since the epoch, for people only. */
  wall(): number;
  /** Calls `fn` once after `ms`; the returned function calls it off. */
  after(ms: number, fn: () => void): () => void;
}
