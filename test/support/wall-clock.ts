/**
 * A wall clock that a test can move in one process: an `--import` for Node (by `ONEJOB_NODE_OPTIONS`) that adds to `Date` what a
 * file says, in ms. The monotonic clock stays as it is, as when a person or NTP sets the time of a machine.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

export interface WallClock {
  /** For the environment of the process. */
  readonly env: Readonly<Record<string, string>>;
  /** Moves it to `ms` from the true time. */
  jump(ms: number): void;
}

export function wallClock(dir: string): WallClock {
  const [offset, preload] = [join(dir, 'wall-offset'), join(dir, 'wall-clock.mjs')];
  const jump = (ms: number): void => writeFileSync(offset, String(ms));
  jump(0);
  writeFileSync(
    preload,
    `import { readFileSync } from 'node:fs';
const True = Date;
const now = () => True.now() + Number(readFileSync(${JSON.stringify(offset)}, 'utf8'));
globalThis.Date = class Date extends True {
  constructor(...args) { args.length === 0 ? super(now()) : super(...args); }
  static now() { return now(); }
};
`,
  );
  return { env: { ONEJOB_NODE_OPTIONS: `--import=${preload}` }, jump };
}
