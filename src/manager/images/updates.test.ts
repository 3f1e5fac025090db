/** A new image reaches one slot first, and the others once it has proved itself: over the real loop and fingerprints. */
import { describe, expect, test } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { recipe as plainRecipe } from '../../../test/kit/docker-runtime.ts';
import { poolLike } from '../../../test/kit/pool.ts';
import { oneDevice } from '../../../test/support/devices.ts';
import { provesAfter } from '../../core/rollout.ts';
import { type Change, emptySlot, type Reserved, type Slot, type SlotEvent } from '../../core/slot.ts';
import type { Recipe, Runtime } from '../../ports/runtime.ts';
import type { ImageEvidence } from '../../verdict/evidence.ts';
import { recipeOf } from '../actions/actions.ts';
import { poolFindings } from '../findings.ts';
import type { Origin } from '../loop/image-rollout.ts';
import { Reconciler } from '../loop/reconciler.ts';
import { planLines, poolViews, waitingReason } from '../status.ts';
import { Fingerprints } from './fingerprints.ts';
import { PoolImages } from './pool-images.ts';

interface Options {
  readonly slots?: number;
  readonly standby?: boolean;
  readonly binds?: 'late' | 'early';
  readonly pull?: Recipe['pull'];
  readonly equipment?: () => string;
}

/** What outlives a manager. */
function host({ slots = 3, standby = true, binds = 'late', pull = 'missing', equipment }: Options = {}) {
  let now = 0;
  const tags = new Map([['x:1', 'sha256:one']]);
  const gone = new Set<string>();
  const stored = new Map<string, Slot>();
  const written: { trusted: Origin | null; fails: boolean } = { trusted: null, fails: false };
  const ends = new Map<string, ImageEvidence>();
  for (let n = 1; n <= slots; n++) stored.set(`p/${n}`, emptySlot({ key: `p/${n}`, runtime: 'docker', grace: 0 }));
  let agents = 0;

  function start(image = 'x:1') {
    const clock = handClock(0, now);
    const config = {
      name: 'p',
      service: 'own',
      standby,
      standbyMaxAge: 1e9,
      stopGrace: 0,
      queue: 'q',
      tags: [],
      agents: slots,
      devices: { ...oneDevice, count: 0 },
      imageRecipe: null,
      recipe: { ...plainRecipe, image, pull },
    };
    const idOf = ({ image, imageId }: Recipe): string | null =>
      imageId === undefined ? (tags.get(image ?? '') ?? null) : gone.has(imageId) ? null : imageId;
    const stampOf = (recipe: Recipe): string => `${recipe.image} ${idOf(recipe)} ${recipe.mounts.map((one) => one.host).join()}`;
    const runtime = {
      name: 'docker',
      capabilities: { images: true },
      imageId: async (recipe: Recipe) => idOf(recipe),
      fingerprint: async (recipe: Recipe) => (idOf(recipe) === null ? null : stampOf(recipe)),
    } as unknown as Runtime;
    let waiting: Reserved[] = [];
    const taken = new Map<string, Reserved>();
    const mount = (path: string) => ({ host: path, container: '/agent', readOnly: true, variable: null, cache: null });
    const service = {
      name: 'own',
      capabilities: { binds, standsForSlots: false },
      jobs: {
        next: (_pool: string, _slot: string | null, only?: 'ownImage') =>
          waiting.find(({ cold }) => cold || only !== 'ownImage') ?? null,
        committed() {},
        syncing: () => () => {},
        rolledBack() {},
        recipeFor: (job: string, base: Recipe) =>
          job.startsWith('names ') ? { ...base, image: job.slice('names '.length) } : null,
        record(change: Change) {
          if (!('job' in change)) return;
          const known = waiting.find(({ job }) => job === change.job) ?? taken.get(change.job);
          if (known === undefined) return;
          waiting = waiting.filter((one) => one !== known);
          taken.set(change.job, known);
          if (change.change === 'returned') waiting.unshift(known);
        },
      },
      ...(equipment && { equip: (recipe: Recipe) => ({ ...recipe, mounts: [...recipe.mounts, mount(equipment())] }) }),
    };
    const reconciler = new Reconciler({
      clock,
      log: { info() {}, warn() {}, error() {} },
      random: () => 0,
      act() {},
      changed() {},
      store: {
        transaction: (write: () => void) => write(),
        sync: async () => {},
        syncNow() {},
        save: (_: Slot, slot: Slot) => void stored.set(slot.key, slot),
      },
      newAgent: () => `a${++agents}`,
      evidenceOf: (agent) => ends.get(agent) ?? null,
      saveProved: (_, origin) => {
        if (written.fails) return false;
        written.trusted = origin;
        return true;
      },
    });
    const pool = poolLike(config, { service, runtime });
    reconciler.add(pool, [...stored.values()]);
    const images = new PoolImages({
      log: { info() {}, warn() {}, error() {} },
      pools: [],
      auto: null,
      typeOf: () => 'own-queue',
      agentPackage: async () => null,
      builder: () => Promise.reject(new Error('nothing is built here')),
    });
    const fingerprints = new Fingerprints({
      log: { info() {}, warn() {}, error() {} },
      reconciler,
      nameOf: (key: string) => key,
      images,
      proved: () => written.trusted,
    });
    fingerprints.start();
    const never = new AbortController().signal;
    const status = {
      clock,
      reconciler,
      nameOf: (key: string) => key,
      noteOf: () => null,
      about: () => null,
      deviceManager: null,
      held: { count: () => 0 },
      conditions: () => [],
      notesOf: () => [],
    };
    const slot = (n: number): Slot => reconciler.slot(`p/${n}`) as Slot;
    const post = (n: number, event: SlotEvent): void => reconciler.post(`p/${n}`, event);
    const preparing = (n: number): string | null => {
      const { standby } = slot(n);
      return standby.kind === 'preparing' ? standby.agent : null;
    };
    /** The image of the slot's sandbox is there. Returns its agent and what it is made from. */
    const made = (n: number): { agent: string; fingerprint: string } => {
      const agent = preparing(n);
      if (agent === null) throw new Error(`p/${n} prepares nothing`);
      const reserved = reservedOf(slot(n));
      const own = recipeOf(pool, { key: `p/${n}`, name: 'p' }, null);
      const recipe = reserved?.cold === true ? { ...own, image: 'own:1' } : own;
      const about = { fingerprint: stampOf(recipe), imageId: idOf(recipe) ?? 'sha256:none' };
      return { agent, fingerprint: fingerprints.made(`p/${n}`, { agent, job: reserved?.job ?? null, recipe }, about) };
    };
    /** The slot's sandbox is made, and comes to its gate. */
    const ready = (n: number): void => post(n, { kind: 'ready', ...made(n) });
    const it = {
      reconciler,
      pool,
      slot,
      post,
      preparing,
      ready,
      brings: (n: number): string => made(n).agent,
      look: async (): Promise<void> => {
        await fingerprints.refresh(runtime, never);
        reconciler.replanAll();
      },
      fail(n: number, code = 'E_PULL_FAILED'): void {
        const agent = preparing(n) ?? '';
        post(n, { kind: 'prepareFailed', agent, failure: { code, message: 'it does not start.', retry: true } });
        post(n, { kind: 'cleared', agent, outcome: null });
      },
      /** The slot's agent registers, and its service sees it. */
      online(n: number): void {
        const agent = agentOf(slot(n));
        for (const kind of ['registered', 'released', 'online'] as const) post(n, { kind, agent });
      },
      /** Every slot with a sandbox to make makes it. */
      allReady(): void {
        for (let n = 1; n <= slots; n++) if (preparing(n) !== null) ready(n);
      },
      /** What the standbys are made from. */
      images: (): string[] =>
        Array.from({ length: slots }, (_, n) => {
          const { standby } = slot(n + 1);
          return standby.kind === 'standby' ? (standby.fingerprint.split(' ')[1] ?? '') : standby.kind;
        }),
      /** A job comes, and runs in this slot. */
      begin(job: string): number {
        waiting = [{ job, limit: null, cold: false }];
        reconciler.offer('p');
        const n = [1, 2, 3].find((one) => slot(one).agent.kind === 'releasing') ?? 0;
        if (n > 0) post(n, { kind: 'released', agent: agentOf(slot(n)) });
        return n;
      },
      /** A job comes to a pool without standbys. The slot that makes its sandbox; 0: it waits. */
      comes(job: string, { cold = false } = {}): number {
        waiting.push({ job, limit: null, cold });
        reconciler.offer('p');
        return it.makes(job);
      },
      makes: (job: string): number =>
        Array.from({ length: slots }, (_, at) => at + 1).find((one) => reservedOf(slot(one))?.job === job) ?? 0,
      /** Its sandbox is made, and it runs. What it was made from. */
      runs(job: string): string {
        const n = it.makes(job);
        ready(n);
        const { agent } = slot(n);
        post(n, { kind: 'released', agent: agentOf(slot(n)) });
        return agent.kind === 'releasing' ? (agent.fingerprint.split(' ')[1] ?? '') : agent.kind;
      },
      /** Its sandbox is gone, and its service starts it again: nobody writes down an end. */
      lose(n: number): void {
        const agent = agentOf(slot(n));
        post(n, { kind: 'gone', agent });
        ends.set(agent, { works: false, why: 'its agent was lost' });
      },
      /** It ends, which says this of its image, and its agent is cleared. */
      end(n: number, says: 'works' | 'fails' | 'nothing'): void {
        const agent = agentOf(slot(n));
        if (says !== 'nothing') ends.set(agent, { works: says === 'works', why: 'its agent was lost' });
        post(n, { kind: 'exited', agent, exit: { kind: 'code', code: 0 }, released: true });
        post(n, { kind: 'settled', agent });
        post(n, { kind: 'cleared', agent, outcome: null });
      },
      wait(ms: number): void {
        now += ms;
        while (clock.now() < now) clock.advance(Math.min(clock.next() ?? ms, now - clock.now()));
      },
      /** The slot that tries a new image; 0: none does. */
      tries: (): number => Number(it.said().status?.slot.slice('p/'.length) ?? 0),
      /** How often the pool itself has failed in a row. */
      waits: (): number => poolViews(status)[0]?.backoff?.failures ?? 0,
      said: () => ({
        status: poolViews(status)[0]?.update,
        plan: planLines(status),
        doctor: poolFindings(reconciler),
        waiting: waitingReason(reconciler, 'p'),
      }),
    };
    return it;
  }

  /** Its first image works. */
  async function begun() {
    const manager = start();
    await manager.look();
    manager.allReady();
    manager.wait(provesAfter);
    return manager;
  }
  return { tags, gone, written, start, begun };
}

/** A tag has moved after its first image worked, and a look has seen that. `gone`: the first image is no longer there. */
async function moved({ gone: isGone = false, ...options }: Options & { readonly gone?: boolean } = {}) {
  const { tags, gone, written, begun } = host(options);
  const it = await begun();
  tags.set('x:1', 'sha256:two');
  if (isGone) gone.add('sha256:one');
  await it.look();
  return { it, tags, gone, written };
}

function agentOf({ agent }: Slot): string {
  return 'agent' in agent ? agent.agent : '';
}

function reservedOf({ standby }: Slot): Reserved | null {
  return standby.kind === 'preparing' ? standby.reserved : null;
}

describe('a tag that moved', () => {
  test('reaches one slot; the others continue, and make sandboxes of the old image by its id', async () => {
    const { it } = await moved();
    it.allReady();
    expect(it.images()).toEqual(['sha256:two', 'sha256:one', 'sha256:one']);
    it.begin('j1');
    it.begin('j2');
    it.begin('j3');
    it.allReady();
    expect(it.images()).toEqual(['sha256:two', 'sha256:one', 'sha256:one']);
    expect(it.said().status?.text).toBe('p/1 tries the new image x:1 (two) first; the other slots keep image x:1 (one)');
    expect(it.said().doctor).toMatchObject([{ level: 'ok', subject: 'pool p' }]);
  });

  test('reaches all once a job of it has ended by itself', async () => {
    const { it, written } = await moved();
    it.allReady();
    // Longest free first: the slot whose standby was made anew comes last.
    expect([it.begin('j1'), it.begin('j2'), it.begin('j3')]).toEqual([2, 3, 1]);
    it.end(2, 'works');
    expect(it.tries()).toBe(1);
    it.end(1, 'works');
    it.allReady();
    expect([it.images(), written.trusted?.id]).toEqual([['sha256:two', 'sha256:two', 'sha256:two'], 'sha256:two']);
    expect(it.said().status).toBeUndefined();
  });

  test('proves nothing with a job that somebody ended, but continues', async () => {
    const { it } = await moved();
    it.allReady();
    expect([it.begin('j1'), it.begin('j2'), it.begin('j3')]).toEqual([2, 3, 1]);
    it.allReady();
    it.end(1, 'nothing');
    expect([it.tries(), it.said().status?.failure]).toEqual([1, null]);
    it.wait(provesAfter);
    expect(it.tries()).toBe(0);
  });

  test('proves nothing with a job that was lost, and waits before it takes another one, which has to work', async () => {
    const { it } = await moved();
    it.allReady();
    expect([it.begin('j1'), it.begin('j2'), it.begin('j3')]).toEqual([2, 3, 1]);
    it.allReady();
    it.end(1, 'fails');
    expect(it.said().status?.text).toBe(
      'the new image x:1 (two) failed on p/1: its job did not end by itself: its agent was lost; the other slots keep image x:1 (one)',
    );
    expect([it.begin('j4'), it.slot(1).agent.kind]).toEqual([0, 'free']);
    it.wait(1_000);
    it.post(1, { kind: 'released', agent: agentOf(it.slot(1)) });
    it.allReady();
    it.end(1, 'nothing');
    it.wait(10 * provesAfter);
    expect(it.images().slice(2)).toEqual(['sha256:one']);
    it.end(2, 'works');
    it.end(3, 'works');
    expect(it.tries()).toBe(1);
    expect([it.begin('j5'), it.begin('j6'), it.begin('j7')].toSorted()).toEqual([1, 2, 3]);
    it.end(1, 'works');
    it.allReady();
    expect(it.images()).toEqual(['sha256:two', 'sha256:two', 'sha256:two']);
  });

  test('proves nothing with a lost job that starts again: the slot takes no other job at once, and waiting proves nothing', async () => {
    const { it } = await moved();
    it.allReady();
    expect([it.begin('j1'), it.begin('j2'), it.begin('j3')]).toEqual([2, 3, 1]);
    it.allReady();
    const lost = agentOf(it.slot(1));
    it.comes('j4');
    it.lose(1);
    expect(it.said().status?.text).toBe(
      'the new image x:1 (two) failed on p/1: its job did not end by itself: its agent was lost: its sandbox was removed by someone else; the other slots keep image x:1 (one)',
    );
    expect(it.slot(1).agent.kind).toBe('free');
    it.wait(1_000);
    // It counts once, although it is cleared only after the back-off.
    it.post(1, { kind: 'settled', agent: lost });
    it.post(1, { kind: 'cleared', agent: lost, outcome: null });
    expect([it.said().status?.retryIn, it.slot(1).agent.kind]).toEqual([0, 'releasing']);
    it.post(1, { kind: 'released', agent: agentOf(it.slot(1)) });
    it.allReady();
    it.end(1, 'nothing');
    it.wait(10 * provesAfter);
    expect([it.tries(), it.images()[2]]).toEqual([1, 'sha256:one']);
  });

  test('reaches all after ten minutes in which nothing happened, once that could be written down', async () => {
    const { it, written } = await moved();
    it.allReady();
    written.fails = true;
    it.wait(provesAfter + 5_000);
    expect(it.images()).toEqual(['sha256:two', 'sha256:one', 'sha256:one']);
    written.fails = false;
    it.wait(1_000);
    it.allReady();
    expect(it.images()).toEqual(['sha256:two', 'sha256:two', 'sha256:two']);
  });

  test('that moves back is tried by nobody', async () => {
    const { it, tags } = await moved();
    it.allReady();
    tags.set('x:1', 'sha256:one');
    await it.look();
    it.allReady();
    expect([it.images(), it.tries()]).toEqual([['sha256:one', 'sha256:one', 'sha256:one'], 0]);
  });

  test('with pull: always, the slot that pulled it tries it', async () => {
    const { tags, begun } = host({ pull: 'always' });
    const it = await begun();
    const n = it.begin('j1');
    tags.set('x:1', 'sha256:two');
    it.ready(n);
    it.allReady();
    expect([n, it.images()]).toEqual([1, ['sha256:two', 'sha256:one', 'sha256:one']]);
  });

  test('and whose sandbox ends at its gate before anybody looked delays only the slot that brought it', async () => {
    const { tags, begun } = host({ pull: 'always' });
    const it = await begun();
    const n = it.begin('j1');
    tags.set('x:1', 'sha256:two');
    const agent = it.brings(n);
    it.post(n, { kind: 'exited', agent, exit: { kind: 'code', code: 1 }, released: false });
    it.allReady();
    expect([it.tries(), it.said().status?.retryIn, it.waits()]).toEqual([n, 1_000, 0]);
    expect(it.images().slice(1)).toEqual(['sha256:one', 'sha256:one']);
  });
});

describe('a new image that fails', () => {
  test('delays only the slot that tries it, and everybody says so', async () => {
    const { begun, start, tags } = host();
    await begun();
    tags.set('x:2', 'sha256:two');
    const it = start('x:2');
    await it.look();
    expect(it.preparing(1)).not.toBeNull();
    it.fail(1);
    const text = 'the new image x:2 failed on p/1: it does not start; the other slots keep image x:1';
    const { status, plan, doctor } = it.said();
    expect(status).toMatchObject({ slot: 'p/1', image: 'image x:2', previous: 'image x:1', retryIn: 1_000, text });
    expect(plan).toEqual([{ slot: 'p/1', intent: 'nothing yet', because: `${text}; next try in 1 s` }]);
    expect(doctor).toMatchObject([{ level: 'warning', subject: 'pool p', message: `T${text.slice(1)}.` }]);
    expect(it.waits()).toBe(0);
    expect(it.slot(it.begin('j1')).key).not.toBe('p/1');
    it.wait(1_000);
    it.fail(1);
    expect([it.preparing(1), it.said().status?.retryIn]).toEqual([null, 2_000]);
    it.wait(2_000);
    it.ready(1);
    it.wait(provesAfter);
    it.allReady();
    expect(it.images()).toEqual(['sha256:two', 'sha256:two', 'sha256:two']);
  });

  test('is not blamed for a CI service that is away', async () => {
    const { begun, tags } = host({ binds: 'early' });
    const it = await begun();
    it.online(1);
    it.wait(provesAfter);
    tags.set('x:1', 'sha256:two');
    await it.look();
    it.fail(1, 'E_CI_UNREACHABLE');
    expect([it.waits(), it.said().status?.failure]).toEqual([1, null]);
  });

  test('and whose predecessor is gone: the other slots wait, until a sandbox of it has come to its gate', async () => {
    const { it } = await moved({ gone: true });
    it.fail(1);
    const text =
      'the new image x:1 (two) failed on p/1: it does not start; the other slots wait, because image x:1 (one) is no longer there';
    expect([it.said().status?.text, it.said().waiting]).toEqual([text, text]);
    expect(it.images()).toEqual(['none', 'sha256:one', 'sha256:one']);
    it.wait(1_000);
    it.ready(1);
    it.allReady();
    expect(it.images()).toEqual(['sha256:two', 'sha256:two', 'sha256:two']);
  });

  test('makes a pool with one slot back off as ever', async () => {
    const { it } = await moved({ slots: 1 });
    it.fail(1);
    expect([it.waits(), it.said().status]).toEqual([1, undefined]);
  });
});

describe('a pool without standbys', () => {
  /** Its three slots have worked with the first image, and all have jobs when another one comes. */
  async function allBusy({ tags, start }: ReturnType<typeof host>) {
    const it = start();
    await it.look();
    it.comes('old1');
    it.runs('old1');
    it.wait(provesAfter);
    for (const job of ['old2', 'old3']) {
      it.comes(job);
      it.runs(job);
    }
    tags.set('x:1', 'sha256:two');
    return it;
  }

  test('whose old image is gone: the slot that is free first tries the new one, and the job that waits gets it', async () => {
    const world = host({ standby: false });
    const it = await allBusy(world);
    world.gone.add('sha256:one');
    await it.look();
    expect(it.tries()).toBe(1);
    expect([it.comes('new1'), it.comes('new2')]).toEqual([0, 0]);
    it.end(3, 'works');
    expect([it.makes('new1'), it.makes('new2'), it.tries()]).toEqual([3, 0, 3]);
    expect(it.runs('new1')).toBe('sha256:two');
    it.end(2, 'works');
    expect(it.makes('new2')).toBe(2);
    expect(it.runs('new2')).toBe('sha256:two');
  });

  test('and a failure of the new image delays the slot that tries it now, which then continues by itself', async () => {
    const world = host({ standby: false });
    const it = await allBusy(world);
    world.gone.add('sha256:one');
    await it.look();
    it.comes('new1');
    it.end(3, 'works');
    it.fail(3);
    it.end(2, 'works');
    expect([it.makes('new1'), it.tries()]).toEqual([0, 3]);
    it.wait(1_000);
    expect(it.makes('new1')).toBe(3);
  });

  test('whose old image is there: the others continue with it, and a slot that is free tries the new one', async () => {
    const world = host({ standby: false });
    const it = await allBusy(world);
    await it.look();
    expect(it.tries()).toBe(1);
    it.end(2, 'works');
    expect(it.tries()).toBe(2);
    it.end(3, 'works');
    expect([it.tries(), it.comes('new1'), it.comes('new2')]).toEqual([2, 2, 3]);
    expect([it.runs('new1'), it.runs('new2')]).toEqual(['sha256:two', 'sha256:one']);
    // Its job is of the new image: it stays the one that tries it.
    it.end(3, 'works');
    expect(it.tries()).toBe(2);
  });
});

describe('a job with its own image', () => {
  test('is not stopped although the other slots cannot go back, also behind a job that has to wait', async () => {
    const { it } = await moved({ gone: true });
    it.fail(1);
    expect([it.comes('normal'), it.comes('own', { cold: true })]).toEqual([0, 2]);
    expect(it.runs('own')).toBe('null');
    it.fail(2);
    expect([it.slot(2).agent.kind, it.slot(2).standby.kind, it.makes('normal'), it.begin('more')]).toEqual(['busy', 'none', 0, 0]);
  });

  test('that is what its pool had gets it by its name, once what the pool had is gone', async () => {
    const { begun, start, tags, gone } = host();
    await begun();
    tags.set('x:2', 'sha256:two');
    const it = start('x:2');
    await it.look();
    const recipe = () => recipeOf(it.pool, { key: 'p/2', name: 'p' }, 'names x:1');
    expect(recipe()).toMatchObject({ image: 'x:1', imageId: 'sha256:one' });
    gone.add('sha256:one');
    await it.look();
    expect([recipe().image, recipe().imageId]).toEqual(['x:1', undefined]);
  });

  test('is not stopped while the slot that tries a new image waits for its next try', async () => {
    const { it } = await moved({ slots: 2 });
    it.begin('j1');
    it.fail(1);
    expect([it.comes('normal'), it.comes('own', { cold: true })]).toEqual([0, 1]);
    it.runs('own');
    expect([it.slot(1).agent.kind, it.preparing(1), it.makes('normal')]).toEqual(['busy', null, 0]);
  });
});

describe('in the slot that tries a new image, it is not blamed for', () => {
  const failure = { code: 'E_GATE_SILENT', message: 'the gate said nothing.', retry: true };
  const exit = { kind: 'code', code: 1 } as const;

  test.each<[string, (agent: string) => SlotEvent]>([
    ['the release', (agent) => ({ kind: 'releaseFailed', agent, failure, countsAgainst: 'pool' })],
    ['the gate', (agent) => ({ kind: 'exited', agent, exit, released: false })],
  ])('the image of a job: %s fails', async (_, fails) => {
    const { it } = await moved({ slots: 2 });
    it.begin('j1');
    it.fail(1);
    expect(it.comes('own', { cold: true })).toBe(1);
    it.ready(1);
    it.post(1, fails(agentOf(it.slot(1))));
    expect([it.said().status?.failure, it.waits()]).toEqual(['it does not start.', 1]);
  });

  test('jobs that a stop of onejob ends', async () => {
    const { it } = await moved({ slots: 2 });
    it.allReady();
    expect([it.begin('j1'), it.begin('j2')]).toEqual([2, 1]);
    it.reconciler.beginStop();
    it.post(1, { kind: 'stop', agent: agentOf(it.slot(1)), why: 'shutdown', grace: 0 });
    it.lose(1);
    expect([it.tries(), it.said().status?.failure]).toEqual([1, null]);
  });

  test('the end of a standby of the old one', async () => {
    const { begun, tags } = host();
    const it = await begun();
    tags.set('x:1', 'sha256:two');
    it.reconciler.pause.hold('test', 'nothing new starts');
    await it.look();
    const { standby } = it.slot(1);
    it.post(1, { kind: 'exited', agent: 'agent' in standby ? standby.agent : '', exit, released: false });
    expect([it.tries(), it.said().status?.failure, it.waits()]).toEqual([1, null, 1]);
  });

  test('but for its own gate', async () => {
    const { it } = await moved();
    it.ready(1);
    const { standby } = it.slot(1);
    it.post(1, { kind: 'exited', agent: 'agent' in standby ? standby.agent : '', exit, released: false });
    expect([it.said().status?.retryIn, it.waits()]).toEqual([1_000, 0]);
  });
});

test('early binding: the agent has to come online, and the others are renewed ten minutes later', async () => {
  const { begun, tags } = host({ binds: 'early' });
  const it = await begun();
  for (const n of [1, 2, 3]) it.online(n);
  it.allReady();
  it.wait(provesAfter);
  tags.set('x:1', 'sha256:two');
  await it.look();
  it.allReady();
  const retired = (): string[] => [1, 2, 3].filter((n) => it.slot(n).agent.kind === 'retiring').map((n) => `p/${n}`);
  expect([it.images(), retired()]).toEqual([['sha256:two', 'sha256:one', 'sha256:one'], ['p/1']]);
  const old = agentOf(it.slot(1));
  it.post(1, { kind: 'retired', agent: old });
  it.post(1, { kind: 'exited', agent: old, exit: { kind: 'code', code: 0 }, released: true });
  it.wait(2 * provesAfter);
  expect([it.slot(1).agent.kind, retired()]).toEqual(['registering', []]);
  it.online(1);
  it.wait(provesAfter);
  it.allReady();
  expect([it.images().slice(1), retired()]).toEqual([['sha256:two', 'sha256:two'], ['p/2']]);
});

test('another agent that the service mounts is tried first, too', async () => {
  let path = '/agents/1';
  const { begun } = host({ equipment: () => path });
  const it = await begun();
  path = '/agents/2';
  await it.look();
  it.allReady();
  const made = [1, 2, 3].map((n) => (it.slot(n).standby as { fingerprint: string }).fingerprint.split(' ')[2]);
  expect(made).toEqual(['/agents/2', '/agents/1', '/agents/1']);
  expect(it.said().status?.text).toBe('p/1 tries the new agent of image x:1 first; the other slots keep the one before');
});

test('a manager that was killed continues with the slot that has the new image, and starts nothing twice', async () => {
  const { begun, start, tags } = host();
  const first = await begun();
  tags.set('x:1', 'sha256:two');
  first.reconciler.offer('p');
  await first.look();
  first.allReady();
  const before = [1, 2, 3].map((n) => first.slot(n).standby);
  const second = start();
  await second.look();
  expect([1, 2, 3].map((n) => second.slot(n).standby)).toEqual(before);
  expect(second.tries()).toBe(1);
  second.wait(provesAfter);
  second.allReady();
  expect(second.images()).toEqual(['sha256:two', 'sha256:two', 'sha256:two']);
});
