import { afterEach, beforeEach, expect, test } from 'vitest';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { handClock } from '../core/testing.ts';
import { readyMarker, releasedMarker } from '../runtimes/gate.ts';
import type { LogChunk, Runtime } from '../runtimes/runtime.ts';
import { Keepers } from './keepers.ts';
import { deleteLog, LogFile, logPath } from './log-file.ts';
import { readLog } from './read.ts';

const agent = 'a1b2c3d4e5';
let dir: Scratch;
beforeEach(() => {
  dir = scratch();
});
afterEach(() => dir[Symbol.dispose]());

/** A sandbox whose output comes when it is given. */
function slowly() {
  const clock = handClock();
  const path = logPath(dir.path, agent);
  let wake = Promise.withResolvers<LogChunk[] | null>();
  async function* logs(): AsyncGenerator<LogChunk[]> {
    for (let next = await wake.promise; next !== null; next = await wake.promise) yield next;
  }
  const keepers = new Keepers({
    clock,
    open: () => new LogFile(path),
    forget: () => deleteLog(path),
    state: () => {},
    failed: () => {},
  });
  keepers.follow(agent, { logs } as unknown as Runtime);
  let time = 0n;
  const give = async (text: string | null): Promise<void> => {
    // The follower waits for it by then.
    await new Promise(setImmediate);
    const { resolve } = wake;
    wake = Promise.withResolvers();
    time += 1n;
    resolve(text === null ? null : [{ stream: 'stdout', time, bytes: Buffer.from(text) }]);
    for (let i = 0; i < 10; i += 1) await new Promise(setImmediate);
  };
  return { clock, keepers, path, give };
}

test('an end is waited for as long as more of the output comes, however long that takes', async () => {
  const { clock, keepers, give } = slowly();
  await give(`${readyMarker(agent)}\n${releasedMarker(agent)}\n`);
  let whole: boolean | null = null;
  const complete = keepers.complete(agent, 60_000).then((is) => {
    whole = is;
  });
  for (let i = 0; i < 10; i += 1) {
    clock.advance(59_000);
    await give(`line ${i}\n`);
    expect(whole).toBe(null);
  }
  await give(null);
  await complete;
  expect(whole).toBe(true);
});

test('one that stands still is given up, and the log says that its end is missing', async () => {
  const { clock, keepers, path, give } = slowly();
  await give(`${readyMarker(agent)}\n${releasedMarker(agent)}\nfirst\n`);
  const complete = keepers.complete(agent, 60_000);
  clock.advance(60_000);
  expect(await complete).toBe(false);
  keepers.lostEnd(agent);
  await give(null);
  let text = '';
  for await (const { bytes } of readLog(path)) text += Buffer.from(bytes).toString();
  expect(text).toBe('first\nthe end of the output is missing here: it could not be read\n');
});
