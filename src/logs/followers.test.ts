import { expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { eachScratch } from '../../test/support/each-scratch.ts';
import type { LogChunk, Runtime } from '../ports/runtime.ts';
import { readyMarker, releasedMarker } from '../runtimes/gate.ts';
import { LogFollowers } from './followers.ts';
import { createLogFolder } from './log-file.ts';
import { readLog } from './read.ts';

const agent = 'a1b2c3d4e5';
const dir = eachScratch();

/** A sandbox whose output comes when it is given. */
function slowly(listener: (agent: string) => ((line: string) => void) | null = () => null, oneStream = false) {
  const clock = handClock();
  const logs = createLogFolder(dir.path);
  const path = logs.path(agent);
  let wake = Promise.withResolvers<LogChunk[] | null>();
  async function* output(): AsyncGenerator<LogChunk[]> {
    for (let next = await wake.promise; next !== null; next = await wake.promise) yield next;
  }
  const followers = new LogFollowers({
    clock,
    logs,
    state: () => {},
    failed: () => {},
    listener,
  });
  followers.follow(agent, { logs: output, capabilities: { oneStream } } as unknown as Runtime);
  let time = 0n;
  const give = async (text: string | null, stream: 'stdout' | 'stderr' = 'stdout'): Promise<void> => {
    // The follower waits for it by then.
    await new Promise(setImmediate);
    const { resolve } = wake;
    wake = Promise.withResolvers();
    time += 1n;
    resolve(text === null ? null : [{ stream, time, bytes: Buffer.from(text) }]);
    for (let i = 0; i < 10; i += 1) await new Promise(setImmediate);
  };
  return { clock, followers, path, give };
}

test('the end is awaited as long as more output arrives, however long that takes', async () => {
  const { clock, followers, give } = slowly();
  await give(`${readyMarker(agent)}\n${releasedMarker(agent)}\n`);
  let whole: boolean | null = null;
  const complete = followers.complete(agent, 60_000).then((is) => {
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

test('a stalled log is given up, and says that its end is missing', async () => {
  const { clock, followers, path, give } = slowly();
  await give(`${readyMarker(agent)}\n${releasedMarker(agent)}\nfirst\n`);
  const complete = followers.complete(agent, 60_000);
  clock.advance(60_000);
  expect(await complete).toBe(false);
  followers.lostEnd(agent);
  await give(null);
  let text = '';
  for await (const { bytes } of readLog(path)) text += Buffer.from(bytes).toString();
  expect(text).toBe('first\nthe end of the output is missing here: reading it failed\n');
});

test('a released agent’s standard error is passed on line by line, completely and before its log is complete', async () => {
  const lines: string[] = [];
  const { followers, give } = slowly((one) => (line) => void lines.push(`${one}: ${line}`));
  await give('too early\n', 'stderr');
  expect(lines).toEqual([]);
  await give(`${readyMarker(agent)}\n${releasedMarker(agent)}\nfrom its job\n`);
  await give('a line\nhalf a ', 'stderr');
  await give('line\u00e9\nlast', 'stderr');
  await expect.poll(() => lines).toEqual([`${agent}: too early`, `${agent}: a line`, `${agent}: half a line\u00e9`]);
  await give(null);
  expect(await followers.complete(agent, 60_000)).toBe(true);
  expect(lines.at(-1)).toBe(`${agent}: last`);
});

test('where standard error comes as standard output, all lines are passed on, but none of before its release', async () => {
  const lines: string[] = [];
  const { followers, give } = slowly(() => (line) => void lines.push(line), true);
  await give(`before\n${readyMarker(agent)}\n${releasedMarker(agent)}\na line\nand `);
  await give('another\n');
  await give(null);
  expect(await followers.complete(agent, 60_000)).toBe(true);
  expect(lines).toEqual(['a line', 'and another']);
});

test('a later manager gets all of it again', async () => {
  const before = slowly();
  await before.give(`${readyMarker(agent)}\n${releasedMarker(agent)}\n`);
  await before.give('first\n', 'stderr');
  await before.give(null);
  const lines: string[] = [];
  const { give } = slowly(() => (line) => void lines.push(line));
  await expect.poll(() => lines).toEqual(['first']);
  await give(null);
});

test('what comes from another host is followed until its end, kept, and continued after a restart', async () => {
  const clock = handClock();
  const open = () => new LogFollowers({ clock, logs: createLogFolder(dir.path), state: () => {}, failed: () => {} });
  const followers = open();
  const file = followers.feed(agent);
  expect(followers.feed(agent)).toBe(file);
  const read = async (from: LogFollowers, follow: boolean) => {
    let text = '';
    for await (const { bytes } of from.read(agent, { follow })) text += Buffer.from(bytes).toString();
    return text;
  };
  const append = (to: typeof file, text: string) =>
    to.append({ stream: 'stdout', time: 1n, bytes: Buffer.from(text) }, Buffer.from(text));
  const followed = read(followers, true);
  append(file, 'one ');
  append(file, 'two');
  followers.unfeed(agent);
  followers.unfeed(agent);
  expect(await followed).toBe('one two');
  const later = open();
  const again = later.feed(agent);
  expect(again.position).toMatchObject({ stdout: 7, stderr: 0 });
  append(again, ' three');
  const [rest] = [read(later, true)];
  await later.close();
  expect([await rest, again.closed, await read(later, false)]).toEqual(['one two three', true, 'one two three']);
});
