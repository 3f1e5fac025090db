import { join } from 'node:path';
import { expect, test } from 'vitest';
import { eachScratch } from '../../test/support/each-scratch.ts';
import { OnejobError } from '../base/errors.ts';
import type { LogChunk, LogPosition, Runtime } from '../ports/runtime.ts';
import { readyMarker, releasedMarker } from '../runtimes/gate.ts';
import { LogFollower } from './followers.ts';
import { LogFile } from './log-file.ts';
import { readLog } from './read.ts';

const agent = 'a1b2c3d4e5';
const dir = eachScratch();

let time = 0n;
const chunk = (stream: 'stdout' | 'stderr', text: string): LogChunk => {
  time += 1n;
  return { stream, time, bytes: Buffer.from(text) };
};
const gate = () => [chunk('stdout', `${readyMarker(agent)}\n`), chunk('stdout', `${releasedMarker(agent)}\n`)];

/** A runtime whose output is what each attempt to read it yields; an error is thrown. */
function runtimeOf(...attempts: (readonly (LogChunk[] | Error)[])[]): { runtime: Runtime; asked: LogPosition[] } {
  const asked: LogPosition[] = [];
  async function* logs(_: string, from: LogPosition): AsyncGenerator<LogChunk[]> {
    asked.push(from);
    for (const part of attempts.shift() ?? []) {
      if (part instanceof Error) throw part;
      yield part;
    }
  }
  return { runtime: { logs } as unknown as Runtime, asked };
}

function keep(runtime: Runtime) {
  const path = join(dir.path, `${agent}.log`);
  const states: string[] = [];
  const failures: unknown[] = [];
  const follower = new LogFollower(agent, new LogFile(path), runtime, {
    state: (_, state) => states.push(state),
    failed: (_, error) => failures.push(error),
    pause: async () => {},
  });
  const text = async (stream: string): Promise<string> => {
    const parts: Uint8Array[] = [];
    for await (const piece of readLog(path)) if (piece.stream === stream) parts.push(piece.bytes);
    return Buffer.concat(parts).toString();
  };
  return { follower, states, failures, text };
}

test('reports the gate’s markers, and keeps only the job’s output', async () => {
  const { runtime } = runtimeOf([[...gate(), chunk('stdout', 'out'), chunk('stderr', 'err')]]);
  const { follower, states, text } = keep(runtime);
  expect(await follower.ended).toBe(true);
  expect(states).toEqual(['ready', 'released']);
  expect([await text('stdout'), await text('stderr')]).toEqual(['out', 'err']);
});

test('never takes an unreadable log for a complete one', async () => {
  const away = new OnejobError('E_ENGINE_UNREACHABLE', 'away', { retry: true });
  const { runtime, asked } = runtimeOf(
    [away],
    [away],
    [[...gate(), chunk('stdout', 'one ')], new Error('cut')],
    [[chunk('stdout', 'two')]],
  );
  const { follower, failures, text } = keep(runtime);
  expect(await follower.ended).toBe(true);
  expect(failures).toHaveLength(3);
  expect(follower.state).toBe('released');
  expect(await text('stdout')).toBe('one two');
  expect(asked.map((position) => position.atTime)).toEqual([0, 0, 0, 1]);
});

test('a follower that was stopped does not claim to have read everything', async () => {
  const never = new Promise<never>(() => {});
  async function* logs(_: string, __: LogPosition, signal: AbortSignal): AsyncGenerator<LogChunk[]> {
    yield [chunk('stdout', `${readyMarker(agent)}\n`)];
    await Promise.race([never, new Promise((resolve) => signal.addEventListener('abort', resolve))]);
  }
  const { follower } = keep({ logs } as unknown as Runtime);
  await follower.stop();
  expect(await follower.ended).toBe(false);
});

test('a job’s first words on stderr are kept, even if they are read before the marker on stdout', async () => {
  const { runtime } = runtimeOf([[chunk('stderr', 'early ')], gate(), [chunk('stderr', 'late')]]);
  const { follower, text } = keep(runtime);
  await follower.ended;
  expect(await text('stderr')).toBe('early late');
});

test('says once that output may be missing, however often a full disk refuses the output after it', async () => {
  const { runtime } = runtimeOf([
    [...gate(), { ...chunk('stdout', 'late'), gap: true }, { ...chunk('stdout', 'later'), gap: true }],
  ]);
  const { follower, text } = keep(runtime);
  const append = follower.file.append.bind(follower.file);
  let refusals = 5;
  follower.file.append = (one, kept) => {
    if (kept.length > 0 && refusals > 0) {
      refusals -= 1;
      throw new OnejobError('E_STATE_FULL', 'full', { retry: true });
    }
    append(one, kept);
  };
  expect(await follower.ended).toBe(true);
  expect([refusals, await text('stdout')]).toEqual([0, 'latelater']);
  expect((await text('note')).match(/may be missing here, after 0 bytes|may be missing here, after 4 bytes/g)).toHaveLength(2);
});

test('a sandbox that floods stderr before its release costs no memory', async () => {
  const flood = Array.from({ length: 64 }, () => chunk('stderr', 'x'.repeat(64 * 1024)));
  const { runtime } = runtimeOf([flood, gate(), [chunk('stdout', 'done')]]);
  const { follower, text } = keep(runtime);
  await follower.ended;
  expect(await text('stdout')).toBe('done');
  expect((await text('stderr')).length).toBe(1 << 20);
});

test('output that was deleted before anybody looked is the script’s, since a gate prints two short lines: it has begun', async () => {
  const { runtime } = runtimeOf([[{ ...chunk('stdout', 'late'), missing: 100 << 20 }], [chunk('stdout', 'r')]]);
  const { follower, states, text } = keep(runtime);
  expect(await follower.ended).toBe(true);
  expect([follower.state, states]).toEqual(['released', ['ready', 'released']]);
  expect(await text('stdout')).toBe('later');
  expect(await text('note')).toMatch(/104,857,600 bytes/);
});

test.each(['stdout', 'stderr'] as const)(
  'so is much %s in which the gate’s lines are missing, where nobody counts what was deleted',
  async (stream) => {
    const piece = 'x'.repeat(1 << 20);
    const { runtime } = runtimeOf(Array.from({ length: 20 }, () => [chunk(stream, piece)]));
    const { follower, text } = keep(runtime);
    expect(await follower.ended).toBe(true);
    expect(follower.state).toBe('released');
    expect((await text(stream)).endsWith(piece.repeat(3))).toBe(true);
    expect(await text('note')).toMatch(/may be missing here/);
  },
);

test.each([
  ['blank lines', '\n'],
  ['lines of twenty bytes', `${'x'.repeat(19)}\n`],
])('so are %s that fill more files than an Engine keeps: it counts about 26 bytes more for each line', async (_, line) => {
  // What two files of 16 MiB hold. Payload alone would be far below the limit.
  const lines = Math.floor((32 << 20) / (28 + line.length));
  const part = line.repeat(Math.ceil(lines / 8));
  const { runtime } = runtimeOf(Array.from({ length: 8 }, () => [chunk('stdout', part)]));
  const { follower, text } = keep(runtime);
  expect(await follower.ended).toBe(true);
  expect(follower.state).toBe('released');
  expect(await text('note')).toMatch(/may be missing here/);
});

test('so is output after a gap of unknown length behind the gate’s first line', async () => {
  const { runtime } = runtimeOf([[chunk('stdout', `${readyMarker(agent)}\n`)], [{ ...chunk('stdout', 'late'), gap: true }]]);
  const { follower, text } = keep(runtime);
  expect(await follower.ended).toBe(true);
  expect([follower.state, await text('stdout')]).toEqual(['released', 'late']);
});

test.each([
  ['the gate waits', [`${readyMarker(agent)}\n`], true],
  ['the gate said nothing', [], false],
  ['the gate’s first line was deleted', ['x\n'], false],
  ['the script began', [`${readyMarker(agent)}\n${releasedMarker(agent)}\n`], false],
  ['a full disk took the second line, and left its own', [`${readyMarker(agent)}\n`, '\nonejob: output is missing here\n'], false],
  ['a full disk took a part of the second line', [`${readyMarker(agent)}\n`, '\u001eonejob rel'], false],
])('%s: whether its log shows that the script has not begun', async (_, output, isProved) => {
  const { runtime } = runtimeOf([output.map((text) => chunk('stdout', text))]);
  const { follower } = keep(runtime);
  await follower.ended;
  expect(follower.showsNothingBegan).toBe(isProved);
});
