/** Held sandboxes in virtual time, over a real store and a runtime that only remembers what it was asked. */
import { Writable } from 'node:stream';
import { expect, onTestFinished, test, vi } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import { sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Recipe, Runtime, ShellSpec } from '../../ports/runtime.ts';
import { openStore } from '../../store/store.ts';
import { HeldJobs, type HeldJobsParts } from './held-jobs.ts';

const minute = 60_000;
const never = new AbortController().signal;
const settled = () => new Promise<void>((resolve) => setImmediate(resolve));

const recipe = {
  env: { A: 'b' },
  mounts: [
    { host: '/data', container: '/data', readOnly: false, variable: null, cache: null },
    { host: '/c', container: '/root/.cache', readOnly: false, variable: null, cache: { name: 'c' } },
  ],
  unsafe: { privileged: true, pidHost: true, seccompUnconfined: false },
} as unknown as Recipe;

/** A host with sandboxes by agent; `false`: it runs. */
function host() {
  const dir = scratch();
  const store = openStore(dir.path);
  const clock = handClock();
  const sandboxes = new Map<AgentId, { held: boolean }>();
  const shells: { spec: ShellSpec; signal: AbortSignal; end: (code: number) => void }[] = [];
  const it = {
    free: 0.5 as number,
    size: 7 as number | null,
    failing: false,
    calls: [] as string[],
    inSlots: new Set<AgentId>(),
    /** How often files were measured, and the ms that it takes. */
    measured: 0,
    slow: 0,
    /** Where they differ from `size`. */
    sizes: new Map<AgentId, number>(),
    /** The files are there, but their copy for a shell vanishes. */
    uncopied: false,
    /** Images by the agents they were made for. */
    late: new Set<AgentId>(),
  };
  const runtime = {
    name: 'docker',
    // A runtime is an object: what it knows is its own.
    async disk(this: { readonly name: string } | undefined) {
      return { path: this?.name ?? '', free: this === undefined ? 1 : it.free };
    },
    async usage(agent: AgentId) {
      it.measured += 1;
      if (it.slow > 0) await sleep(clock, it.slow);
      return it.sizes.get(agent) ?? it.size;
    },
    holding: {
      async hold(agent: AgentId) {
        it.calls.push(`hold ${agent}`);
        const found = sandboxes.get(agent);
        if (found !== undefined) found.held = true;
        return found !== undefined;
      },
      async shell(agent: AgentId, spec: ShellSpec, signal: AbortSignal) {
        if (!sandboxes.has(agent)) throw new OnejobError('E_SANDBOX_LOST', 'gone');
        if (it.uncopied) throw new OnejobError('E_SANDBOX_LOST', 'The image has been removed.', { retry: true });
        const { promise, resolve, reject } = Promise.withResolvers<number>();
        signal.addEventListener('abort', () => reject(signal.reason));
        promise.catch(() => {});
        shells.push({ spec, signal, end: resolve });
        const output = (async function* () {})();
        return { stdin: new Writable(), output, resize: () => {}, ended: promise };
      },
      async release(agent: AgentId) {
        it.calls.push(`release ${agent}`);
        if (it.failing) throw new OnejobError('E_ENGINE_UNREACHABLE', 'away', { retry: true });
        sandboxes.delete(agent);
      },
      async sweep(held: Pick<ReadonlySet<AgentId>, 'has'>) {
        it.calls.push(`sweep ${[...sandboxes.keys()].filter((agent) => held.has(agent)).join()}`);
        if (it.failing) throw new OnejobError('E_ENGINE_UNREACHABLE', 'away', { retry: true });
        for (const agent of it.late) if (!held.has(agent)) it.late.delete(agent);
      },
    },
  } as unknown as Runtime;
  const changed: string[] = [];
  const open = (more: Partial<HeldJobsParts> = {}) =>
    new HeldJobs({
      clock,
      table: store.held,
      transaction: store.transaction,
      temporary: false,
      minFree: 0.1,
      log: { info() {}, warn() {}, error() {} },
      runtimes: () => [runtime],
      pools: [{ name: 'gpu', disk: null, holdFailed: 30 * minute }],
      placesOf: async (mounts) => mounts.map(({ host }) => host),
      newAgent: () => `shell-${shells.length}`,
      isInSlot: (agent) => it.inSlots.has(agent),
      changed: (job) => changed.push(job),
      boundary: () => {},
      ...more,
    });
  const failed = (agent: AgentId, holdFailed: number | null = 30 * minute) => {
    sandboxes.set(agent, { held: false });
    return { agent, job: `job-${agent}`, pool: 'gpu', slot: 'gpu/1', name: 'n', recipe, runtime, holdFailed };
  };
  const settings = { held: open() };
  /** What the executors do with an ended agent. */
  const end = async (agent: AgentId, holdFailed?: number | null) => {
    it.inSlots.add(agent);
    await settings.held.consider(failed(agent, holdFailed), never);
    const kept = await settings.held.keep(agent);
    it.inSlots.delete(agent);
    if (!kept) sandboxes.delete(agent);
    return kept;
  };
  const advance = async (ms: number) => {
    for (const until = clock.now() + ms; clock.now() < until; ) {
      clock.advance(Math.min(10_000, until - clock.now()));
      for (let n = 0; n < 20; n += 1) await settled();
    }
  };
  onTestFinished(async () => {
    await settings.held.close();
    expect(clock.next()).toBeNull();
    store.close();
    dir[Symbol.dispose]();
  });
  return {
    it,
    clock,
    store,
    sandboxes,
    shells,
    changed,
    runtime,
    open,
    failed,
    end,
    advance,
    get held() {
      return settings.held;
    },
    /** As after `kill -9`. */
    restart(more: Partial<HeldJobsParts> = {}) {
      void settings.held.close();
      settings.held = open(more);
      settings.held.start();
    },
  };
}

test('a failed job is held for its time, and then nothing is left of it', async () => {
  const here = host();
  here.held.start();
  expect(await here.end('a')).toBe(true);
  expect(here.held.until('job-a')).toBe(here.clock.wall() + 30 * minute);
  expect(here.held.isOurs('a')).toBe(true);
  expect(here.held.count('gpu')).toBe(1);
  await here.advance(minute);
  expect(here.held.findings()[0]?.message).toBe('One failed job is held, with 7 B: job-a.');
  await here.advance(30 * minute);
  expect([...here.sandboxes.keys()]).toEqual([]);
  expect(here.held.until('job-a')).toBeNull();
  expect(here.held.isOurs('a')).toBe(false);
  expect(here.store.held.all()).toEqual([]);
  expect(new Set(here.changed)).toEqual(new Set(['job-a']));
  await here.held.close();
});

test('who asks for files that were given up is told why', async () => {
  const here = host();
  here.held.start();
  for (const name of ['a', 'b', 'c', 'd', 'e', 'f']) {
    await here.end(name);
    await here.advance(minute);
  }
  await expect(here.held.unhold('job-a')).rejects.toMatchObject({
    code: 'E_NOT_HELD',
    message: 'Job job-a is no longer held: its files were given up for newer ones, because a pool holds 5 at most.',
  });
  await here.held.unhold('job-b');
  await expect(here.held.unhold('job-b')).rejects.toThrow('Job job-b is no longer held: somebody has ended it.');
  await expect(here.held.unhold('job-x')).rejects.toThrow('Job job-x is not held.');
});

test('what could never be held names no key of the config', async () => {
  const here = host();
  const failure = { code: 'E_IMAGE_NOT_FOUND', message: 'no such image', retry: false } as const;
  const unstartable = { kind: 'unstartable', failure } as const;
  const refused = {
    code: 'E_NOT_HELD',
    message: 'Job job-x is not held: it could not be started, so it left no files.',
    hint: null,
  };
  expect(() => here.held.check('job-x', unstartable)).toThrow(expect.objectContaining(refused));
  await expect(here.held.unhold('job-x', unstartable)).rejects.toMatchObject(refused);
  const passed = 'Job job-x is not held: it passed, and only files of jobs that failed are held.';
  expect(() => here.held.check('job-x', { kind: 'code', code: 0 })).toThrow(
    expect.objectContaining({ message: passed, hint: null }),
  );
  const hint = { hint: expect.stringContaining('hold_failed') };
  expect(() => here.held.check('job-x', { kind: 'code', code: 1 })).toThrow(expect.objectContaining(hint));
});

test.each([
  ['its pool holds nothing', { holdFailed: null }],
  ['the disk is full', { free: 0.05 }],
  ['the manager is temporary', { temporary: true }],
])(
  'a failed job is not held if %s',
  async (_, { holdFailed, free = 0.5, temporary = false }: { holdFailed?: null; free?: number; temporary?: boolean }) => {
    const here = host();
    here.it.free = free;
    here.restart({ temporary });
    expect(await here.end('a', holdFailed)).toBe(false);
    expect(here.store.held.all()).toEqual([]);
  },
);

test('a disk that fills up ends all holds', async () => {
  const here = host();
  here.held.start();
  await here.end('a');
  here.it.free = 0.05;
  await here.advance(20_000);
  expect(here.sandboxes.size).toBe(0);
});

test('the sixth hold of a pool ends the first', async () => {
  const here = host();
  here.held.start();
  for (const agent of ['a', 'b', 'c', 'd', 'e', 'f']) {
    await here.end(agent);
    await here.advance(1_000);
  }
  await here.advance(20_000);
  expect([...here.sandboxes.keys()]).toEqual(['b', 'c', 'd', 'e', 'f']);
});

test('a hold survives its manager, whose shells are ended', async () => {
  const here = host();
  await here.end('a');
  here.it.calls.length = 0;
  here.restart();
  await here.advance(1_000);
  expect(here.it.calls).toEqual(['hold a', 'sweep a']);
  expect(here.held.until('job-a')).not.toBeNull();
  await here.held.unhold('job-a');
  expect(here.sandboxes.size).toBe(0);
  await expect(here.held.unhold('job-a')).rejects.toMatchObject({ code: 'E_NOT_HELD' });
});

test('a hold whose sandbox is gone ends, with what may be left of it', async () => {
  const here = host();
  await here.end('a');
  here.sandboxes.delete('a');
  here.restart();
  await here.advance(1_000);
  expect(here.store.held.all()).toEqual([]);
  expect(here.it.calls).toContain('release a');
  await here.end('b');
  here.held.gone('b');
  expect(here.held.until('job-b')).toBeNull();
  await here.advance(1_000);
  expect(here.it.calls).toContain('release b');
  expect(here.store.held.all()).toEqual([]);
});

test('a manager that holds nothing looks once for what an earlier one has left', async () => {
  const here = host();
  here.restart({ pools: [{ name: 'gpu', disk: null, holdFailed: null }] });
  await here.advance(60 * minute);
  expect(here.it.calls).toEqual(['sweep ']);
});

test('what the Engine finishes after the end of a hold is removed, also when nothing is held', async () => {
  const here = host();
  here.held.start();
  await here.end('a');
  await here.end('b');
  await here.advance(minute);
  await here.held.unhold('job-a');
  here.it.late = new Set(['a', 'b']);
  await here.advance(11 * minute);
  expect([...here.it.late]).toEqual(['b']);
  await here.held.unhold('job-b');
  await here.advance(11 * minute);
  expect([...here.it.late]).toEqual([]);
  here.it.late.add('from an earlier manager');
  here.restart();
  await here.advance(10_000);
  expect([...here.it.late]).toEqual([]);
});

const holdsNothing = [{ name: 'gpu', disk: null, holdFailed: null }];

test('a manager that holds nothing looks again for what an earlier one has left until it could', async () => {
  const here = host();
  here.it.late.add('from an earlier manager');
  here.it.failing = true;
  here.restart({ pools: holdsNothing });
  await here.advance(minute);
  here.it.failing = false;
  await here.advance(11 * minute);
  expect([...here.it.late]).toEqual([]);
  here.it.calls.length = 0;
  await here.advance(60 * minute);
  expect(here.it.calls).toEqual([]);
});

test('a stop removes what an earlier manager has left, also if it could not be found before', async () => {
  const here = host();
  here.it.late.add('from an earlier manager');
  here.it.failing = true;
  here.restart({ pools: holdsNothing });
  await here.advance(minute);
  here.it.failing = false;
  await here.held.removeAll();
  expect([...here.it.late]).toEqual([]);
});

test('a stop removes what the Engine has finished after the end of the last hold', async () => {
  const here = host();
  here.restart({ pools: holdsNothing });
  await here.advance(minute);
  // Its pool held failed jobs when it began.
  await here.end('a');
  await here.held.unhold('job-a');
  here.it.late.add('a');
  await here.held.removeAll();
  expect([...here.it.late]).toEqual([]);
});

test('a hold that was written down and not kept yet is kept by the next manager', async () => {
  const here = host();
  here.it.inSlots.add('a');
  await here.held.consider(here.failed('a'), never);
  here.restart();
  await here.advance(20_000);
  expect(here.it.calls.filter((call) => call.startsWith('hold'))).toEqual([]);
  expect(await here.held.keep('a')).toBe(true);
  expect(here.sandboxes.get('a')).toEqual({ held: true });
});

test('what cannot be removed is removed later, also by the next manager', async () => {
  const here = host();
  here.held.start();
  await here.end('a');
  here.it.failing = true;
  await expect(here.held.unhold('job-a')).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE' });
  expect(here.held.until('job-a')).toBeNull();
  expect(here.held.isOurs('a')).toBe(true);
  here.restart();
  await here.advance(20_000);
  expect(here.sandboxes.size).toBe(1);
  here.it.failing = false;
  await here.advance(20_000);
  expect(here.sandboxes.size).toBe(0);
  expect(here.store.held.all()).toEqual([]);
});

test('a pool that has left the config ends its holds, but not for a temporary manager with another config', async () => {
  const here = host();
  await here.end('a');
  here.restart({ temporary: true, pools: [] });
  await here.advance(20_000);
  await here.held.removeAll();
  expect(here.sandboxes.size).toBe(1);
  here.restart({ pools: [] });
  await here.advance(20_000);
  expect(here.sandboxes.size).toBe(0);
});

test('a stop removes all', async () => {
  const here = host();
  here.held.start();
  await here.end('a');
  await here.end('b');
  await here.held.removeAll();
  expect(here.sandboxes.size).toBe(0);
  expect(here.store.held.all()).toEqual([]);
});

test('a shell has no device, no right over the host, and may only read caches', async () => {
  const here = host();
  await here.end('a');
  await here.held.shell('job-a', { command: null, terminal: null }, never);
  const { spec } = here.shells[0]?.spec ?? {};
  expect(spec).toMatchObject({
    devices: [],
    recipe: {
      env: { A: 'b', ONEJOB: 'true', ONEJOB_JOB_ID: 'job-a' },
      mounts: [{ readOnly: false }, { readOnly: true }],
      unsafe: { privileged: false, pidHost: false },
    },
  });
  expect(here.held.isOurs(spec?.agent ?? '')).toBe(true);
  here.shells[0]?.end(0);
  await settled();
  expect(here.held.isOurs(spec?.agent ?? '')).toBe(false);
});

test('a shell has what a volume of its job led to when that was checked', async () => {
  const here = host();
  const asked: unknown[] = [];
  here.restart({
    placesOf: async (mounts) => {
      asked.push(...mounts);
      return mounts.map(({ host, real }) => real ?? host);
    },
  });
  const mounts = [{ host: '/link', real: '/srv/data', container: '/in', readOnly: true, variable: null, cache: null }];
  await here.held.consider({ ...here.failed('a'), recipe: { ...recipe, mounts } }, never);
  await here.held.keep('a');
  await here.held.shell('job-a', { command: null, terminal: null }, never);
  expect(asked).toEqual(mounts);
  expect(here.shells[0]?.spec.spec.places).toEqual(['/srv/data']);
});

test('a shell ends with its hold, and with the manager', async () => {
  const here = host();
  await here.end('a');
  await here.end('b');
  const first = await here.held.shell('job-a', { command: null, terminal: null }, never);
  const second = await here.held.shell('job-b', { command: null, terminal: null }, never);
  await here.held.unhold('job-a');
  await expect(first.ended).rejects.toMatchObject({ code: 'E_NOT_HELD', message: expect.stringContaining('job-a') });
  await here.held.close();
  await expect(second.ended).rejects.toMatchObject({ code: 'E_DAEMON_STOPPING' });
});

test('a shell that writes more than its pool may hold ends, says so, and leaves the hold', async () => {
  const here = host();
  here.restart({ pools: [{ name: 'gpu', disk: 100, holdFailed: 30 * minute }] });
  await here.end('a');
  await here.advance(20_000);
  const shell = await here.held.shell('job-a', { command: null, terminal: null }, never);
  const ended = vi.fn();
  shell.ended.catch(ended);
  here.it.size = 99;
  await here.advance(20_000);
  expect(ended).not.toHaveBeenCalled();
  here.it.size = 101;
  await here.advance(10_000);
  expect(ended).toHaveBeenCalledWith(
    expect.objectContaining({ code: 'E_SHELL', message: expect.stringMatching(/"gpu".* 101 B.*"disk" of 100 B/) }),
  );
  // What it had outside of the workspace has gone with it.
  here.it.size = 60;
  await here.advance(20_000);
  expect(here.held.findings()[0]?.message).toBe('One failed job is held, with 60 B: job-a.');
});

test('what a shell writes ends no other hold before it lasts', async () => {
  const here = host();
  here.restart({ pools: [{ name: 'gpu', disk: 100, holdFailed: 30 * minute }] });
  await here.end('a');
  await here.advance(20_000);
  await here.end('b');
  await here.advance(20_000);
  const shell = await here.held.shell('job-b', { command: null, terminal: null }, never);
  here.it.size = 95;
  await here.advance(10_000);
  await expect(shell.ended).rejects.toMatchObject({ code: 'E_SHELL' });
  expect([...here.sandboxes.keys()]).toEqual(['a', 'b']);
  await here.advance(20_000);
  expect([...here.sandboxes.keys()]).toEqual(['b']);
});

/** A held job in a pool that may hold 100 B, with 7 B, whose files take so long to measure that they are only every 400 s. */
async function slowToMeasure() {
  const here = host();
  here.restart({ pools: [{ name: 'gpu', disk: 100, holdFailed: 60 * minute }] });
  await here.end('a', 60 * minute);
  await here.advance(20_000);
  here.it.slow = 20_000;
  /** How the shell ended; null: it is open. */
  const open = async () => {
    const it: { ended: unknown } = { ended: null };
    const shell = await here.held.shell('job-a', { command: null, terminal: null }, never);
    shell.ended.catch((error: unknown) => {
      it.ended = error;
    });
    return it;
  };
  return { here, open };
}
const wroteTooMuch = expect.objectContaining({ code: 'E_SHELL' });

test('a shell does not end for what an earlier one wrote, which has gone', async () => {
  const { here, open } = await slowToMeasure();
  const first = await open();
  here.it.size = 150;
  await here.advance(minute);
  expect(first.ended).toEqual(wroteTooMuch);
  here.it.size = 7;
  const second = await open();
  await here.advance(20 * minute);
  expect(second.ended).toBeNull();
  here.it.size = 150;
  await here.advance(10 * minute);
  expect(second.ended).toEqual(wroteTooMuch);
});

test('a shell can remove what an earlier one left in the workspace, but not add to it', async () => {
  const { here, open } = await slowToMeasure();
  const first = await open();
  here.it.size = 150;
  await here.advance(minute);
  expect(first.ended).toEqual(wroteTooMuch);
  const cleaning = await open();
  await here.advance(20 * minute);
  expect(cleaning.ended).toBeNull();
  here.it.size = 120;
  await here.advance(10 * minute);
  expect(cleaning.ended).toBeNull();
  here.it.size = 161;
  await here.advance(10 * minute);
  expect(cleaning.ended).toEqual(wroteTooMuch);
});

test('what a shell wrote while its files were measured does not count once it has ended', async () => {
  const { here, open } = await slowToMeasure();
  await open();
  await here.advance(10_000);
  // It is being measured.
  here.it.size = 150;
  here.shells[0]?.end(0);
  const second = await open();
  await here.advance(20_000);
  here.it.size = 7;
  await here.advance(20 * minute);
  expect(second.ended).toBeNull();
});

test('a shell that stays does not end for what another had written', async () => {
  const { here, open } = await slowToMeasure();
  const staying = await open();
  await open();
  here.it.size = 60;
  await here.advance(minute);
  here.it.size = 7;
  here.shells[1]?.end(0);
  await settled();
  // With this one, the pool would be above its limit.
  here.it.slow = 0;
  here.it.sizes.set('b', 50);
  await here.end('b', 60 * minute);
  await here.advance(10 * minute);
  expect(staying.ended).toBeNull();
});

test('files are measured while a shell is open, and no longer than a twentieth of the time', async () => {
  const here = host();
  here.held.start();
  await here.end('a');
  await here.advance(20_000);
  expect(here.it.measured).toBe(1);
  await here.advance(minute);
  expect(here.it.measured).toBe(1);
  await here.held.shell('job-a', { command: null, terminal: null }, never);
  await here.advance(minute);
  expect(here.it.measured).toBeGreaterThanOrEqual(5);
  here.it.measured = 0;
  here.it.slow = 20_000;
  await here.advance(20 * minute);
  expect(here.it.measured).toBeGreaterThanOrEqual(2);
  expect(here.it.measured).toBeLessThanOrEqual(4);
});

test('there is no shell in what is not held', async () => {
  const here = host();
  const shell = () => here.held.shell('job-a', { command: null, terminal: null }, never);
  await expect(shell()).rejects.toMatchObject({ code: 'E_NOT_HELD' });
  await here.end('a');
  here.sandboxes.delete('a');
  await expect(shell()).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
  await expect(shell()).rejects.toMatchObject({ code: 'E_NOT_HELD' });
});

test('a shell whose copy of the files has vanished can be started again: the files are still held', async () => {
  const here = host();
  await here.end('a');
  const shell = () => here.held.shell('job-a', { command: null, terminal: null }, never);
  here.it.uncopied = true;
  await expect(shell()).rejects.toMatchObject({ code: 'E_SANDBOX_LOST', retry: true });
  here.it.uncopied = false;
  await shell();
  expect([...here.sandboxes.keys()]).toEqual(['a']);
});
