/** How a container ended, with an Engine that the test controls: the same for every caller, at any time. */
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import type { Exit } from '../../core/slot.ts';
import { Exits } from './exits.ts';

const never = new AbortController().signal;
const removed: Exit = { kind: 'lost', reason: 'somebody removed its container' };

const container = (state: { Status: string; ExitCode: number; OOMKilled?: boolean }) => ({
  Id: 'c1',
  Name: '/c',
  Image: 'sha256:i',
  State: { Running: false, OOMKilled: false, FinishedAt: '2026-01-01T00:00:00Z', Pid: 0, ...state },
  Config: { User: '' },
});

/** Of an Engine whose containers outlive it, or do not; `there`: null when it has none. */
async function over(there: ReturnType<typeof container> | null, LiveRestoreEnabled = true, kernel = async (_: string) => false) {
  const answers: Readonly<Record<string, object | null>> = {
    '/info': { LiveRestoreEnabled },
    '/version': {},
    // Its clock was an hour ahead when it started.
    '/networks/bridge': { Id: 'this-start', Name: 'bridge', Created: '2026-01-01T01:00:00Z' },
    '/containers/c1/json': there,
  };
  const fake = fakeEngine('exits', (path, _, reply) => {
    const answer = answers[path] ?? null;
    return answer === null ? reply.writeHead(404).end('{"message":"no"}') : reply.end(JSON.stringify(answer));
  });
  const engine = await fake.connect();
  return {
    exits: new Exits(engine, null, undefined, kernel),
    [Symbol.asyncDispose]: fake.stop,
  };
}

test.each<[string, Parameters<typeof container>[0], Exit]>([
  ['by itself', { Status: 'exited', ExitCode: 7 }, { kind: 'code', code: 7 }],
  ['for want of memory', { Status: 'exited', ExitCode: 137, OOMKilled: true }, { kind: 'oom' }],
  ['by a kill', { Status: 'exited', ExitCode: 137 }, { kind: 'code', code: 137 }],
  ['by a kill for its removal', { Status: 'removing', ExitCode: 137 }, removed],
  ['by itself, and is being removed', { Status: 'removing', ExitCode: 0 }, { kind: 'code', code: 0 }],
])('one that ended %s: the same as it dies, and to who comes afterwards', async (_, state, exit) => {
  const one = container(state);
  await using here = await over(one);
  expect(await here.exits.atDeath('c1', state.ExitCode, undefined, never)).toEqual(exit);
  here.exits.forget('c1');
  expect(await here.exits.afterwards([one], never)).toEqual(new Map([['c1', exit]]));
  // The first result stays, and is not judged again.
  expect(await here.exits.atDeath('c1', state.ExitCode, undefined, never)).toEqual(exit);
});

test('one that the kernel ended for want of memory, which its Engine has missed', async () => {
  const one = container({ Status: 'exited', ExitCode: 137 });
  await using here = await over(one, true, async (id) => id === 'c1');
  expect(await here.exits.atDeath('c1', 137, undefined, never)).toEqual({ kind: 'oom' });
  here.exits.forget('c1');
  expect(await here.exits.afterwards([one], never)).toEqual(new Map([['c1', { kind: 'oom' }]]));
  here.exits.forget('c1');
  expect(await here.exits.atDeath('c1', 1, undefined, never)).toEqual({ kind: 'code', code: 1 });
});

test('the log of the kernel is not read for what is known anyhow: engines of agents, containers of another boot', async () => {
  const asked: string[] = [];
  const one = container({ Status: 'exited', ExitCode: 137 });
  const engines = { ...one, Config: { ...one.Config, Labels: { 'onejob.user': 'engine' } } };
  await using here = await over(engines, true, async (id) => asked.push(id) > 0);
  expect(await here.exits.atDeath('c1', 137, undefined, never)).toEqual({ kind: 'code', code: 137 });
  here.exits.forget('c1');
  expect(await here.exits.afterwards([engines], never)).toEqual(new Map([['c1', { kind: 'code', code: 137 }]]));
  await here.exits.afterwards([one], never);
  expect(asked).toEqual([]);
});

test('a killed container that is gone when its death is reported was removed', async () => {
  await using here = await over(null);
  expect(await here.exits.atDeath('c1', 137, undefined, never)).toEqual(removed);
  here.exits.forget('c1');
  expect(await here.exits.atDeath('c1', 3, undefined, never)).toEqual({ kind: 'code', code: 3 });
});

test.each<[string, string, Exit]>([
  ['the same start of its Engine: as its exit code says', 'this-start', { kind: 'code', code: 0 }],
  ['an earlier start: the Engine ended it', 'earlier', { kind: 'lost', reason: expect.stringContaining('the Engine was stopped') }],
])('a container that ended while the clock is an hour back, made in %s', async (_, made, exit) => {
  const one = { ...container({ Status: 'exited', ExitCode: 0 }), Config: { User: '', Labels: { 'onejob.engine': made } } };
  await using here = await over(one, false);
  await here.exits.refresh(never);
  expect(await here.exits.atDeath('c1', 0, made, never)).toEqual(exit);
  here.exits.forget('c1');
  expect(await here.exits.afterwards([one], never)).toEqual(new Map([['c1', exit]]));
});

test('exit code 255 counts if the Engine did not go away since the container was alive, whatever the clock says', async () => {
  const unrecorded: Exit = { kind: 'lost', reason: expect.stringContaining('did not record') };
  const one = container({ Status: 'exited', ExitCode: 255 });
  await using here = await over(one);
  await here.exits.refresh(never);
  expect(await here.exits.atDeath('c1', 255, undefined, never)).toEqual(unrecorded);
  here.exits.forget('c1');
  here.exits.sawAlive(['c1']);
  expect(await here.exits.afterwards([one], never)).toEqual(new Map([['c1', { kind: 'code', code: 255 }]]));
  here.exits.forget('c1');
  here.exits.sawAlive(['c1']);
  here.exits.interrupted();
  await here.exits.refresh(never);
  expect(await here.exits.afterwards([one], never)).toEqual(new Map([['c1', unrecorded]]));
});

/** What happens on a host: its clock is set, its Engine is started anew, a job ends, seen by onejob or while it was away. */
const happening = fc.oneof(
  fc.record({ what: fc.constant('clock' as const), hours: fc.integer({ min: -48, max: 48 }) }),
  fc.record({ what: fc.constant('restart' as const) }),
  fc.record({ what: fc.constantFrom('ends' as const, 'ends unseen' as const), code: fc.constantFrom(0, 1, 137) }),
);

test('a job counts by its exit code if no Engine was started since it was made, however the clock is set meanwhile', async () => {
  const world = { starts: 0, wall: Date.UTC(2026, 0, 1), created: '', live: new Map<string, ReturnType<typeof container>>() };
  const isoNow = () => new Date(world.wall).toISOString();
  const fake = fakeEngine('exits-clock', (path, _, reply) => {
    const answers: Readonly<Record<string, object | undefined>> = {
      '/info': { LiveRestoreEnabled: false },
      '/version': {},
      '/networks/bridge': { Id: `start ${world.starts}`, Name: 'bridge', Created: world.created },
    };
    const answer = answers[path] ?? world.live.get(/^\/containers\/(\w+)\/json$/.exec(path)?.[1] ?? '');
    return answer === undefined ? reply.writeHead(404).end('{"message":"no"}') : reply.end(JSON.stringify(answer));
  });
  const engine = await fake.connect();
  const exits = new Exits(engine, null);
  const again = async (): Promise<void> => {
    exits.interrupted();
    await exits.refresh(never);
  };
  let made = 0;
  const make = () => {
    made += 1;
    const id = `c${made}`;
    const state = { Status: 'running', ExitCode: 0, FinishedAt: '0001-01-01T00:00:00Z' };
    const one = { ...container(state), Id: id, Config: { User: '', Labels: { 'onejob.engine': `start ${world.starts}` } } };
    world.live.set(id, one);
    exits.sawAlive([id]);
    return one;
  };
  const over = (one: ReturnType<typeof make>, ExitCode: number) => {
    const ended = { ...one, State: { ...one.State, Status: 'exited', ExitCode, FinishedAt: isoNow() } };
    world.live.set(one.Id, ended);
    return ended;
  };
  try {
    await fc.assert(
      fc.asyncProperty(fc.array(happening, { maxLength: 8 }), async (happenings) => {
        world.created = isoNow();
        await again();
        let job = make();
        for (const one of happenings) {
          world.wall += 60_000;
          if (one.what === 'clock') world.wall += one.hours * 3_600_000;
          else if (one.what === 'restart') {
            // It ends what runs, with whatever code that then has, and makes its bridge anew.
            const ended = over(job, 0);
            world.starts += 1;
            world.created = isoNow();
            await again();
            const lost = { kind: 'lost', reason: expect.stringContaining('the Engine was stopped') };
            expect(await exits.afterwards([ended], never)).toEqual(new Map([[ended.Id, lost]]));
            job = make();
          } else {
            const { code } = one;
            const ended = over(job, code);
            const exit = { kind: 'code', code };
            if (one.what === 'ends')
              expect(await exits.atDeath(ended.Id, code, ended.Config.Labels['onejob.engine'], never)).toEqual(exit);
            else {
              await again();
              expect(await exits.afterwards([ended], never)).toEqual(new Map([[ended.Id, exit]]));
            }
            job = make();
          }
        }
      }),
      { numRuns: 12 },
    );
  } finally {
    await fake.stop();
  }
});
