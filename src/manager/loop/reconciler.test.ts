import { expect, test } from 'vitest';
import { World } from '../../../test/sim/world.ts';

const world = () => new World({ slots: 1, binds: 'late', standby: true });

test('an end and the next release are one commit, so that the next job starts at once', () => {
  const it = world();
  it.goOn();
  it.submit(false);
  it.goOn();
  it.goOn();
  it.submit(false);
  const before = it.commits;
  it.exit(0, 0);
  it.deliver(it.reports.length - 1, 'once');
  expect(it.commits - before).toBe(1);
  expect(it.pending.map((one) => one.action.act)).toContain('release');
  expect(it.loop.slot('pool/1')?.agent.kind).toBe('releasing');
});

test('a failed commit has no effect, pauses everything with the reason, and succeeds later', () => {
  const it = world();
  it.goOn();
  it.diskFull = true;
  it.submit(false);
  expect(it.loop.slot('pool/1')?.agent.kind).toBe('free');
  expect(it.pending).toEqual([]);
  expect(it.loop.pause.details).toEqual(['the disk is full']);
  it.advance(5_000);
  expect(it.loop.slot('pool/1')?.agent.kind).toBe('free');
  it.diskFull = false;
  it.advance(1_000);
  expect(it.loop.pause.any).toBe(false);
  expect(it.loop.slot('pool/1')?.agent).toMatchObject({ kind: 'releasing', job: 'j1' });
});

test('a report that came while nothing could be committed is not lost', () => {
  const it = world();
  it.goOn();
  it.submit(false);
  it.goOn();
  it.diskFull = true;
  it.exit(0, 7);
  it.deliverAll();
  expect(it.jobs.get('j1')?.results).toEqual([]);
  it.diskFull = false;
  it.advance(2_000);
  expect(it.jobs.get('j1')?.results).toEqual([{ kind: 'code', code: 7 }]);
});

test('a failing pool backs off longer each time, and continues by itself', () => {
  const it = world();
  const waits: number[] = [];
  for (let i = 0; i < 4; i++) {
    it.perform(0, 'fails');
    it.deliver(0, 'once');
    waits.push((it.pool.backoff?.until ?? 0) - it.now);
    while (it.pending.some((one) => one.action.act === 'clear')) it.perform(0, 'works');
    it.deliverAll();
    it.advance(waits.at(-1) ?? 0);
  }
  expect(waits).toEqual([1_000, 2_000, 4_000, 8_000]);
  it.goOn();
  expect(it.pool.backoff).toBeNull();
});

test('a simultaneous failure in two slots of a pool is logged once, and again if it fails after the wait', () => {
  const it = new World({ slots: 2, binds: 'late', standby: true });
  const fail = () => {
    const at = it.pending.findIndex((one) => one.action.act === 'prepare');
    it.perform(at, 'fails');
    it.deliver(it.reports.length - 1, 'once');
  };
  fail();
  fail();
  expect(it.pool.backoff?.failures).toBe(1);
  expect(it.warnings).toEqual(['pool backs off']);
  it.advance((it.pool.backoff?.until ?? 0) - it.now);
  while (it.pending.some((one) => one.action.act === 'clear')) {
    it.perform(
      it.pending.findIndex((one) => one.action.act === 'clear'),
      'works',
    );
    it.deliverAll();
  }
  fail();
  expect(it.warnings).toHaveLength(2);
});

test('a pause ends only when its holder releases it', () => {
  const it = world();
  it.goOn();
  it.pool.pause.hold('alice');
  it.pool.pause.hold('bob');
  it.submit(false);
  it.pool.pause.release('alice');
  it.loop.replanAll();
  expect(it.loop.slot('pool/1')?.agent.kind).toBe('free');
  it.pool.pause.release('bob');
  it.loop.replanAll();
  expect(it.loop.slot('pool/1')?.agent.kind).toBe('releasing');
});

test('a deadline that passes while commits fail waits, once, and does not spin', () => {
  const it = world();
  it.goOn();
  it.submit(false);
  it.goOn();
  it.diskFull = true;
  const before = it.attempts;
  it.advance(60_000);
  expect(it.attempts - before).toBeLessThan(70);
  it.diskFull = false;
  it.advance(2_000);
  expect(it.loop.slot('pool/1')?.agent).toMatchObject({ kind: 'ending', signal: 'TERM', why: 'timeout' });
});

test.each(['ended in time', 'still runs'])(
  'a time limit that passes while the runtime is away decides nothing: a job that %s',
  (was) => {
    const it = world();
    it.goOn();
    it.submit(false);
    it.goOn();
    it.loop.away('sim', 'The Engine is away.');
    it.advance(60_000);
    expect(it.loop.slot('pool/1')?.agent.kind).toBe('busy');
    it.loop.back('sim');
    if (was === 'ended in time') it.exit(0, 7);
    it.deliverAll();
    it.loop.catchUp('sim');
    it.advance(1);
    if (was === 'ended in time') expect(it.jobs.get('j1')?.results).toEqual([{ kind: 'code', code: 7 }]);
    else expect(it.loop.slot('pool/1')?.agent).toMatchObject({ kind: 'ending', why: 'timeout' });
  },
);

test('an empty slot takes over its pool’s current runtime', () => {
  const it = world();
  it.loop.close();
  it.storeAs('another runtime');
  it.boot();
  expect(it.loop.slot('pool/1')?.runtime).toBe('sim');
  expect(it.loop.slot('pool/1')?.standby.kind).toBe('preparing');
});

test('standbys that get ready and then end make the pool wait longer each time', () => {
  const it = world();
  const waits: number[] = [];
  for (let i = 0; i < 3; i++) {
    it.goOn();
    it.exit(0, 1);
    it.deliverAll();
    waits.push((it.pool.backoff?.until ?? 0) - it.now);
    while (it.pending.some((one) => one.action.act === 'clear')) it.perform(0, 'works');
    it.deliverAll();
    it.advance(waits.at(-1) ?? 0);
  }
  expect(waits).toEqual([1_000, 2_000, 4_000]);
});

test('a timer that fires a moment too early does not lose its deadline', () => {
  const it = world();
  it.goOn();
  it.submit(false);
  it.perform(0, 'works');
  it.early = 0.5;
  it.deliver(0, 'once');
  expect(it.loop.slot('pool/1')?.agent).toMatchObject({ kind: 'busy' });
  it.tick = 0.3;
  it.advance(29_999.5);
  it.tick = 0;
  it.advance(1);
  expect(it.loop.slot('pool/1')?.agent).toMatchObject({ kind: 'ending', signal: 'TERM', why: 'timeout' });
});

test('a service whose agents stand for slots learns what each slot could do with a job, once per change', () => {
  const it = new World({ slots: 1, binds: 'late', standby: true, standsForSlots: true });
  expect(it.offers).toEqual(['pool/1 closed']);
  it.goOn();
  expect(it.offers.splice(0)).toEqual(['pool/1 closed', 'pool/1 open']);
  it.loop.replanAll();
  expect(it.offers).toEqual([]);
  it.pool.pause.hold('person', 'not now');
  it.loop.replanAll();
  it.pool.pause.release('person');
  it.loop.replanAll();
  it.submit(false);
  it.loop.replan('pool/1');
  expect(it.offers.splice(0)).toEqual(['pool/1 closed', 'pool/1 open', 'pool/1 closed']);
  it.loop.beginStop();
  expect(it.offers).toEqual(['pool/1 gone']);
});

test('no slot is open to jobs while commits fail, and each is again afterwards', () => {
  const it = new World({ slots: 2, binds: 'late', standby: true, standsForSlots: true });
  it.perform(0, 'works');
  it.perform(0, 'works');
  it.deliverAll();
  expect(it.offers.splice(0)).toEqual(expect.arrayContaining(['pool/1 open', 'pool/2 open']));
  it.diskFull = true;
  it.submit(false);
  expect(it.offers.splice(0).sort()).toEqual(['pool/1 closed', 'pool/2 closed']);
  it.loop.replanAll();
  it.advance(30_000);
  expect(it.offers).toEqual([]);
  it.diskFull = false;
  it.advance(1_000);
  expect(it.loop.slot('pool/1')?.agent.kind).toBe('releasing');
  expect(it.offers).toEqual(['pool/2 open']);
});

const wishes = (it: World) => it.pending.map(({ action }) => `${action.act} ${action.agent}`).sort();

test.each(['not yet', 'wholly'])(
  'a sandbox that the previous manager was making is removed and made again: it existed %s',
  (there) => {
    const it = world();
    if (there === 'wholly') it.perform(0, 'works');
    it.crash();
    expect(wishes(it)).toEqual(['clear a1', 'prepare a2']);
    expect(it.loop.slot('pool/1')?.standby).toMatchObject({ kind: 'preparing', agent: 'a2' });
  },
);

test('a job whose sandbox the previous manager was making gets another one', () => {
  const it = new World({ slots: 1, binds: 'late', standby: false });
  it.submit(false);
  it.crash();
  expect(wishes(it)).toEqual(['clear a1', 'prepare a2']);
  it.settle();
  expect(it.jobs.get('j1')).toMatchObject({ state: 'ended', runs: 1, results: [{ kind: 'code', code: 0 }] });
});

test('a sandbox that the previous manager made for one job is made again, as the job needs it now', () => {
  const it = new World({ slots: 1, binds: 'late', standby: false });
  it.submit(false);
  it.pool.pause.hold('person', 'not now');
  it.goOn();
  expect(it.loop.slot('pool/1')?.standby).toMatchObject({ kind: 'standby', agent: 'a1', reserved: { job: 'j1' } });
  it.crash();
  expect(wishes(it)).toEqual(['clear a1', 'prepare a2']);
});

test('a sandbox that the previous manager was making is not continued while its removal cannot be committed', () => {
  const it = world();
  it.diskFull = true;
  it.crash();
  expect(wishes(it)).toEqual([]);
  it.diskFull = false;
  it.advance(1_000);
  expect(wishes(it)).toEqual(['clear a1', expect.stringMatching('prepare')]);
});
