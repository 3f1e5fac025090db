/**
 * What cannot be read now is unknown, never absent. `/proc/self/mem` replaces a failing disk: it opens, but reading its first
 * byte is an input/output error.
 */

import {
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { leftoversOf, plainRecipe } from '../../../test/kit/process-runtime.ts';
import { follow, specOf, watch } from '../../../test/kit/runtime-contract/contract.ts';
import type { Runtime } from '../../ports/runtime.ts';
import { allPids, isAlive } from '../../system/process-identity.ts';
import { systemClock } from '../../system/system-clock.ts';
import { frame, readyMarker } from '../gate.ts';
import { firstProcessOf, readIntent, supervisorOf } from './folder.ts';
import { createProcessRuntime, followExits } from './process.ts';

const never = new AbortController().signal;
const owner = `disk-${process.pid}`;
let dir: string;
let runtime: Runtime;

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), 'onejob-disk-'));
  runtime = await createProcessRuntime({ owner, dir });
});
afterEach(async () => {
  for (const { agent } of await runtime.list(never)) await runtime.remove(agent);
  await runtime.sweep(never);
  expect(leftoversOf(dir, owner)).toEqual([]);
  rmSync(dir, { recursive: true });
});

const standby = async (by = runtime) => {
  const spec = specOf(plainRecipe);
  await by.prepare(spec, () => {}, never);
  const log = follow(by, spec.agent);
  await log.until(`${readyMarker(spec.agent)}\n`);
  return { agent: spec.agent, folder: join(dir, 'agents', spec.agent), log };
};
/** Reading the file fails until this is disposed. A reader meanwhile finds one or the other, never nothing. */
const broken = (path: string): Disposable => {
  linkSync(path, `${path}.good`);
  symlinkSync('/proc/self/mem', `${path}.bad`);
  renameSync(`${path}.bad`, path);
  return { [Symbol.dispose]: () => renameSync(`${path}.good`, path) };
};

test.each(['spec.json', 'proc', 'job'])('a sandbox whose %s cannot be read is unknown, not lost', async (file) => {
  const { agent, folder } = await standby();
  {
    using _ = broken(join(folder, file));
    if (file !== 'job') await expect(runtime.list(never)).rejects.toMatchObject({ code: 'E_SANDBOX_UNREAD', retry: true });
  }
  expect(await runtime.list(never)).toMatchObject([{ agent, state: { kind: 'running' } }]);
});

test('a sandbox whose exit cannot be read is neither running nor lost', async () => {
  const { agent } = await standby();
  const events = watch(runtime);
  await events.connected();
  {
    using _ = broken(join(dir, 'exits', agent));
    await expect.poll(() => events.seen.map(({ kind }) => kind)).toContain('lost');
    await expect(runtime.list(never)).rejects.toMatchObject({ code: 'E_SANDBOX_UNREAD' });
  }
  await runtime.release(agent, frame(agent, 'exit 6'), never);
  expect(await events.exit(agent)).toEqual({ kind: 'code', code: 6 });
  const kinds = events.seen.map(({ kind }) => kind);
  // It may be found readable again before or after the end.
  expect(kinds.filter((kind) => kind !== 'connected')).toEqual(['lost', 'exited']);
  await events.stop();
});

test('events report that the folder of sandboxes cannot be read, and continue once it can', async () => {
  const stop = new AbortController();
  const at = { agents: join(dir, 'late'), exits: join(dir, 'exits') };
  const seen: string[] = [];
  for await (const event of followExits(
    systemClock,
    at,
    () => ({ kind: 'exited', exit: { kind: 'code', code: 7 } }),
    stop.signal,
  )) {
    seen.push(event.kind);
    if (event.kind === 'lost') mkdirSync(join(at.agents, 'a1'), { recursive: true });
    if (seen.length === 4) stop.abort();
  }
  expect(seen.sort()).toEqual(['connected', 'connected', 'exited', 'lost']);
  rmSync(at.agents, { recursive: true });
});

test('a log that cannot be read now is read later', async () => {
  const { agent, folder, log } = await standby();
  log.stop();
  await log.ended;
  const again = (() => {
    using _ = broken(join(folder, 'log/stdout'));
    return follow(runtime, agent);
  })();
  await runtime.release(agent, frame(agent, 'echo still here'), never);
  await again.ended;
  expect(again.text()).toContain('still here\n');
});

test('a log that somebody removed has not ended', async () => {
  const { agent, folder, log } = await standby();
  log.stop();
  await log.ended;
  unlinkSync(join(folder, 'log/stdout'));
  await expect(follow(runtime, agent).ended).rejects.toMatchObject({ code: 'E_FILES', retry: false });
});

test.each(['auto', 'off'] as const)('a damaged sandbox is ended before its folder goes (bubblewrap %s)', async (mode) => {
  const other = mode === 'auto' ? runtime : await createProcessRuntime({ owner, dir, bubblewrap: mode });
  const { agent, folder, log } = await standby(other);
  await other.release(agent, frame(agent, 'echo up; (setsid sleep 610 &); exec sleep 611'), never);
  await log.until('up\n');
  const first = firstProcessOf(folder);
  const supervisor = supervisorOf(folder);
  const about = readIntent({ agents: join(dir, 'agents'), exits: join(dir, 'exits') }, agent);
  const uid = typeof about === 'object' ? about?.uid : null;
  for (const file of ['spec.json', 'proc', 'job']) writeFileSync(join(folder, file), '');
  expect(await other.list(never)).toMatchObject([{ agent, state: { kind: 'exited', exit: { kind: 'lost' } } }]);
  await other.remove(agent);
  expect([first, supervisor].map((one) => one !== null && isAlive(one))).toEqual([false, false]);
  expect(commandsOf(uid ?? null)).toEqual([]);
  await other.sweep(never);
  expect(leftoversOf(dir, owner)).toEqual([]);
});

/** Command lines of the user's processes. */
function commandsOf(uid: number | null): string[] {
  if (uid === null) return [];
  return allPids().flatMap((pid) => {
    try {
      const owned = new RegExp(`^Uid:\\t${uid}\\b`, 'm').test(readFileSync(`/proc/${pid}/status`, 'utf8'));
      const isDead = /^State:\tZ/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
      return owned && !isDead ? [readFileSync(`/proc/${pid}/cmdline`, 'utf8')] : [];
    } catch {
      return [];
    }
  });
}
