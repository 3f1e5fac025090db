import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { gpu } from '../../../test/support/devices.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import type { ToolReply } from '../../gpu/run.ts';
import { openStore, type Store } from '../../store/store.ts';
import { ClockLocks } from './benchmark-clocks.ts';
import { KnownDevices } from './known-devices.ts';

const card = gpu(0);
const clock = { now: () => 0, wall: () => 5_000, after: () => () => {} };
const { signal } = new AbortController();
const never = new Promise<ToolReply>(() => {});

let dir: Scratch;
let store: Store;
let known: KnownDevices;
let locks: ClockLocks;
/** What the driver has, which outlives managers. */
let locked: string | null;
let called: string[];
/** What the next call does instead of answering. */
let fault: 'dies before' | 'dies after' | 'hangs' | 'refuses' | 'is killed' | 'is cut' | null;

const answer: ToolReply = { tool: 'nvidia-smi', args: [], output: 'All done.\n', code: 0, hung: false, missing: false, cut: false };

async function run(_tool: string, args: readonly string[]): Promise<ToolReply> {
  called.push(args.join(' '));
  if (fault === 'refuses') return { ...answer, code: 4, output: '\nThe current user does not have permission.\n' };
  if (fault === 'dies before') return never;
  if (args[2] === '-lgc') locked = args[3] ?? null;
  else if (args[2] === '-rgc') locked = null;
  if (fault === 'hangs') return { ...answer, code: null, hung: true };
  if (fault === 'is killed') return { ...answer, output: '', code: 128 + 9 };
  if (fault === 'is cut') return { ...answer, code: null, cut: true };
  return fault === 'dies after' ? never : answer;
}

/** A manager starts on what the last one has written. */
function starts(): void {
  store = openStore(dir.path);
  known = new KnownDevices({ clock, store });
  locks = new ClockLocks({ clock, runner: { run }, known });
}
/** `kill -9`: what it waits for never comes, and nothing is written any more. */
function restarts(): void {
  store.close();
  fault = null;
  starts();
}
async function settled(): Promise<void> {
  for (let turns = 0; turns < 10; turns += 1) await Promise.resolve();
}

beforeEach(() => {
  dir = scratch();
  locked = null;
  called = [];
  fault = null;
  starts();
  known.updateSeen([card]);
});
afterEach(() => {
  store.close();
  dir[Symbol.dispose]();
});

const lock = () => locks.lock(card.uuid, 'a1', 1410, signal);

test('one card is locked at one clock, and set back', async () => {
  await lock();
  expect(locked).toBe('1410,1410');
  expect(locks.left).toEqual([{ uuid: card.uuid, agent: 'a1' }]);
  expect(await locks.reset(card.uuid, signal)).toBeNull();
  expect(locked).toBeNull();
  expect(locks.left).toEqual([]);
  expect(called).toEqual([`-i ${card.uuid} -lgc 1410,1410`, `-i ${card.uuid} -rgc`]);
});

test('a card that is not locked costs no call', async () => {
  expect(await locks.reset(card.uuid, signal)).toBeNull();
  expect(await locks.reset('GPU-nobody', signal)).toBeNull();
  expect(called).toEqual([]);
});

describe('a manager that is killed leaves nothing locked', () => {
  const setsBack = async (): Promise<void> => {
    restarts();
    for (const { uuid } of locks.left) expect(await locks.reset(uuid, signal)).toBeNull();
    expect(locked).toBeNull();
    restarts();
    expect(locks.left).toEqual([]);
  };

  test.each(['dies before', 'dies after'] as const)('while it locks: the tool %s its answer', async (how) => {
    fault = how;
    void lock();
    await settled();
    expect(locked === null).toBe(how === 'dies before');
    await setsBack();
  });

  test('while the job runs', async () => {
    await lock();
    restarts();
    expect(locks.left).toEqual([{ uuid: card.uuid, agent: 'a1' }]);
    await setsBack();
  });

  test.each(['dies before', 'dies after'] as const)('while it sets back: the tool %s its answer', async (how) => {
    await lock();
    fault = how;
    void locks.reset(card.uuid, signal);
    await settled();
    expect(locked === null).toBe(how === 'dies after');
    await setsBack();
  });

  test('also with a reboot, in which the driver has forgotten it', async () => {
    await lock();
    locked = null;
    await setsBack();
  });
});

test('a tool that refuses has locked nothing, and says why', async () => {
  fault = 'refuses';
  await expect(lock()).rejects.toMatchObject({
    code: 'E_CLOCKS',
    message: `Cannot lock the clocks of ${card.uuid} at 1410 MHz: nvidia-smi says "The current user does not have permission".`,
  });
  expect(locks.left).toEqual([]);
});

test.each(['hangs', 'is killed', 'is cut'] as const)('after a tool that %s nobody knows, so it is set back', async (how) => {
  fault = how;
  await expect(lock()).rejects.toMatchObject({ code: 'E_CLOCKS' });
  expect(locks.left).toHaveLength(1);
});

test.each(['refuses', 'hangs'] as const)('a card that cannot be set back is not used: the tool %s', async (how) => {
  await lock();
  fault = how;
  const dirty = await locks.reset(card.uuid, signal);
  expect(dirty).toMatchObject({ kind: 'dirty', remedy: 'look', hint: expect.stringContaining(`nvidia-smi -i ${card.uuid} -rgc`) });
  expect(dirty?.message).toMatch(
    /^Its clocks are still locked at 1410 MHz for a measurement, and could not be set back: nvidia-smi /,
  );
  expect(locks.left).toHaveLength(1);
});

test('a card that nobody knows is not locked', async () => {
  await expect(locks.lock('GPU-nobody', 'a1', 1410, signal)).rejects.toMatchObject({ code: 'E_CLOCKS' });
  expect(called).toEqual([]);
});
