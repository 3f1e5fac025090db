import { describe, expect, it } from 'vitest';
import type { Offer, Thing } from '../ports/cloud.ts';
import type { HostConfig } from '../schema/host-config.ts';
import type { Machine } from '../store/machine.ts';
import { Offers } from './offers.ts';
import {
  afterList,
  type CloudView,
  ended,
  isLeftOver,
  type Listed,
  orphansAfter,
  plan,
  tokenCameAgain,
  type View,
} from './plan.ts';

const now = 1_900_000_000;
const run = 'onejob-00000000000000aa';
const price = { perHour: 1, asOf: '2026-11-01' };

const host: HostConfig = {
  host: 'burst',
  cloud: 'sim',
  types: ['big', 'small'],
  spot: 'never',
  image: null,
  disk: 50,
  min: 0,
  max: 2,
  idle: 600_000,
  lifetime: 6 * 3_600_000,
  boot: 1_200_000,
  budget: null,
  prices: {},
  opengl: 'none',
  setup: [],
  agents: 1,
};

const machine = (more: Partial<Machine> = {}): Machine => ({
  run,
  owner: 'ours',
  cloud: 'sim',
  host: 'burst',
  offer: { type: 'big', spot: false, zone: 'a' },
  token: 't',
  by: 'profile ci',
  born: now - 600,
  expires: now + 3600,
  state: 'joined',
  since: now - 300,
  made: { id: 'i-1', place: 'here', zone: 'a' },
  end: 'a schedule',
  why: null,
  isFailure: false,
  joinedAt: now - 300,
  stage: 'joined',
  items: [],
  absent: [],
  seenAt: now - 30,
  tokenHash: '',
  credentialHash: null,
  price,
  console: null,
  registrations: null,
  ...more,
});

const thing = (more: Partial<Thing> = {}): Thing => ({
  kind: 'machine',
  id: 'i-1',
  place: 'here',
  run,
  host: 'burst',
  born: now - 600,
  expires: now + 3600,
  state: 'running',
  offer: null,
  ...more,
});

const listed = (things: readonly Thing[] = [], more: Partial<Listed> = {}): Listed => ({
  things,
  unknown: [],
  from: now - 12,
  at: now - 10,
  failed: null,
  ...more,
});

const cloud = (more: Partial<CloudView> = {}): CloudView => ({
  now,
  since: now - 86_400,
  deafAt: 0,
  listed: listed(),
  calling: new Set(),
  asked: new Map(),
  orphans: new Map(),
  notBefore: new Map(),
  types: new Map(['big', 'small'].map((type) => [type, { zones: ['a', 'b'], price, spotPrice: price }])),
  ...more,
});

const view = ({ here = cloud(), ...more }: Partial<View> & { readonly here?: CloudView } = {}): View => ({
  clouds: new Map([['sim', here]]),
  hosts: [host],
  machines: [],
  goneToday: [],
  reports: new Map(),
  waiting: new Map(),
  wanted: new Map(),
  offers: new Offers(),
  only: null,
  deaf: null,
  failing: new Map(),
  ...more,
});

const created = (given: View): readonly Offer[] => plan(given).steps.flatMap((step) => (step.do === 'create' ? [step.offer] : []));
const report = (more: object = {}) =>
  new Map([[run, { at: now - 5, busy: 0, agents: 1, idleFor: 0, problem: null, workedAt: now - 5, ...more }]]);
const waiting = (jobs: number) => new Map([['burst', jobs]]);

describe('a machine is created', () => {
  it('for a waiting job, and for none without', () => {
    expect(created(view())).toEqual([]);
    expect(created(view({ waiting: waiting(1) }))).toEqual([{ type: 'big', spot: false, zone: 'a' }]);
  });

  it.each([
    ['one starts', machine({ state: 'booting', joinedAt: null }), new Map(), 1, 0],
    ['nobody knows whether one was created', machine({ state: 'intent', made: null, joinedAt: null }), new Map(), 1, 0],
    ['one has a free agent', machine(), report(), 1, 0],
    ['the only one is busy', machine(), report({ busy: 1 }), 1, 1],
    ['one drains', machine({ state: 'draining' }), report(), 1, 1],
    ['more wait than start', machine({ state: 'booting', joinedAt: null }), new Map(), 5, 1],
  ] as const)('as its jobs need: %s', (_, one, reports, jobs, count) => {
    expect(created(view({ machines: [one], reports, waiting: waiting(jobs) }))).toHaveLength(count);
  });

  it('with several agents for as many jobs', () => {
    expect(created(view({ hosts: [{ ...host, agents: 4 }], waiting: waiting(4) }))).toHaveLength(1);
  });

  it('for `min`, and for people', () => {
    expect(created(view({ hosts: [{ ...host, min: 1 }] }))).toHaveLength(1);
    expect(created(view({ wanted: new Map([['burst', 1]]) }))).toHaveLength(1);
  });

  it('not beyond `max`, which counts those that end, and says why', () => {
    const machines = [machine({ state: 'ending' }), machine({ run: 'onejob-00000000000000bb', state: 'draining' })];
    const found = plan(view({ machines, waiting: waiting(3) }));
    expect(found.steps.filter((step) => step.do === 'create')).toEqual([]);
    expect(found.reasons.get('burst')).toBe('it has 2 of at most 2 machines');
  });

  it('not for other hosts than the one that a command is about, whose machines stay', () => {
    const given = view({ hosts: [{ ...host, min: 2 }], machines: [machine()], reports: report({ idleFor: 900 }), only: 'other' });
    expect(plan(given).steps).toEqual([]);
  });

  it('not while machines cannot join, and not at once after some that did not', () => {
    const deaf = plan(view({ waiting: waiting(1), deaf: 'another program listens there' }));
    expect(deaf.steps).toEqual([]);
    expect(deaf.reasons.get('burst')).toBe('machines cannot join this daemon: another program listens there');
    const failing = new Map([['burst', { failures: 2, at: now, until: now + 300, why: 'It did not join within 20 minutes.' }]]);
    const found = plan(view({ waiting: waiting(1), failing }));
    expect(found.steps).toEqual([]);
    expect(found.reasons.get('burst')).toMatch(
      /^its last 2 machines failed: It did not join within 20 minutes; the next one is made at/,
    );
  });

  it('of another type if the cloud tells nothing about the first', () => {
    const types = new Map([['small', { zones: ['a'], price, spotPrice: price }]]);
    const here = cloud({ types, notBefore: new Map([['learn big', now + 30]]) });
    expect(created(view({ here, waiting: waiting(1) }))).toMatchObject([{ type: 'small' }]);
  });

  it('not after `cloud down`, and says what to type', () => {
    const given = view({ wanted: new Map([['burst', -1]]), waiting: waiting(3) });
    expect(created(given)).toEqual([]);
    expect(plan(given).reasons.get('burst')).toContain('run "onejob cloud up burst" to use it again');
  });

  it('not in place of one that no complete list could disprove until its lifetime was over', () => {
    const lost = { state: 'ending', made: null, seenAt: null, joinedAt: null } as const;
    const given = (expires: number) =>
      view({ hosts: [{ ...host, max: 1 }], machines: [machine({ ...lost, expires })], waiting: waiting(1) });
    expect(created(given(now - 1))).toHaveLength(0);
    // Its create call was refused.
    expect(created(given(now + 3600))).toHaveLength(1);
  });

  it('only by a list that is fresh, and not while none comes', () => {
    const old = cloud({ listed: listed([], { at: now - 500, from: now - 502 }) });
    expect(plan(view({ here: old, waiting: waiting(1) })).steps).toEqual([{ do: 'list', cloud: 'sim' }]);
    const failed = cloud({ listed: listed([], { failed: 'The cloud gave no answer.' }) });
    const found = plan(view({ here: failed, waiting: waiting(1) }));
    expect(found.steps).toEqual([]);
    expect(found.reasons.get('burst')).toBe('The cloud gave no answer');
  });

  it('after the facts about its types are known', () => {
    const here = cloud({ types: new Map() });
    const step = { do: 'learn', cloud: 'sim' } as const;
    expect(plan(view({ here, waiting: waiting(1) })).steps).toEqual([
      { ...step, type: 'big' },
      { ...step, type: 'small' },
    ]);
  });
});

describe('a budget', () => {
  const day = Math.floor(now / 86_400) * 86_400;
  const hosts = [{ ...host, budget: 5 }];
  const gone = (hours: number): Machine => machine({ state: 'gone', born: day, since: day + hours * 3600 });

  it('stops new machines once it is used up, and says so', () => {
    const given = (hours: number) => view({ hosts, goneToday: [gone(hours)], waiting: waiting(1) });
    expect(created(given(4))).toHaveLength(1);
    expect(created(given(4.5))).toHaveLength(0);
    expect(plan(given(4.5)).reasons.get('burst')).toBe(
      'its budget of 5 USD a day allows no other machine (4.50 USD since 00:00 UTC, and 1.00 for the next hour of all machines)',
    );
    const living = machine({ born: now, state: 'booting', joinedAt: null });
    const more = { hosts: [{ ...host, budget: 1.5, max: 4 }], machines: [living], waiting: waiting(3) };
    expect(created(view(more))).toHaveLength(0);
  });

  it('counts what a failed create call has made all the same', () => {
    const denied = (kind: 'machine' | 'group') => ({ ...gone(5), made: null, items: [{ kind, id: 'x', place: 'here' }] });
    const given = (one: Machine) => view({ hosts, goneToday: [one], waiting: waiting(1) });
    expect(created(given({ ...denied('machine'), joinedAt: null }))).toHaveLength(0);
    expect(created(given({ ...denied('group'), joinedAt: null }))).toHaveLength(1);
    // It lived, for it spoke.
    expect(created(given(denied('group')))).toHaveLength(0);
  });

  it('allows no machine whose price nobody knows', () => {
    const types = new Map([['big', { zones: ['a'], price: null, spotPrice: null }]]);
    const given = view({ hosts: [{ ...host, types: ['big'], budget: 5 }], here: cloud({ types }), waiting: waiting(1) });
    expect(created(given)).toEqual([]);
    expect(plan(given).reasons.get('burst')).toContain('the price of big is unknown');
  });

  it('allows another type whose price is known, and says why not the first one', () => {
    const types = new Map([
      ['big', { zones: ['a'], price: null, spotPrice: null }],
      ['small', { zones: ['a'], price, spotPrice: price }],
    ]);
    const given = view({ hosts, here: cloud({ types }), waiting: waiting(1) });
    expect(created(given)).toMatchObject([{ type: 'small' }]);
    expect(plan(given).reasons.get('burst')).toContain('the price of big is unknown');
    expect(
      created(view({ hosts: [{ ...host, budget: 5, prices: { big: 1 } }], here: cloud({ types }), waiting: waiting(1) })),
    ).toMatchObject([{ type: 'big' }]);
  });
});

describe('a machine that works', () => {
  const changes = (given: View) => plan(given).steps.flatMap((step) => (step.do === 'change' ? [step.machine] : []));

  it('drains when it was idle for long enough', () => {
    expect(changes(view({ machines: [machine()], reports: report({ idleFor: 599 }) }))).toEqual([]);
    expect(changes(view({ machines: [machine()], reports: report({ idleFor: 600 }) }))).toMatchObject([
      { state: 'draining', why: 'It had no job for 600 s.', isFailure: false },
    ]);
  });

  it.each([
    ['its report is old', { reports: report({ idleFor: 900, at: now - 61 }) }],
    ['jobs wait', { reports: report({ idleFor: 900 }), waiting: waiting(1) }],
    ['it is one of `min`', { reports: report({ idleFor: 900 }), hosts: [{ ...host, min: 1 }] }],
    ['the cloud has not told the time', { reports: report({ idleFor: 900 }), here: cloud({ since: null }) }],
  ] as const)('does not while %s', (_, more) => {
    expect(changes(view({ machines: [machine()], ...more }))).toEqual([]);
  });

  it('of two idle ones only one drains where one must stay', () => {
    const other = 'onejob-00000000000000bb';
    const reports = new Map([
      ...report({ idleFor: 900 }),
      [other, { at: now, busy: 0, agents: 1, idleFor: 900, problem: null, workedAt: now }],
    ]);
    const given = view({ hosts: [{ ...host, min: 1 }], machines: [machine(), machine({ run: other })], reports });
    expect(changes(given)).toHaveLength(1);
  });

  it('drains before its end, and ends at it', () => {
    expect(changes(view({ machines: [machine({ expires: now + 800 })] }))).toMatchObject([{ state: 'draining' }]);
    expect(changes(view({ machines: [machine({ expires: now })] }))).toMatchObject([
      { state: 'ending', why: 'Its lifetime is over.' },
    ]);
  });

  it('that nobody hears any more is given up, a busy one later; not by a controller that cannot hear', () => {
    const silent = (seconds: number, busy: number) => ({
      machines: [machine({ joinedAt: now - 80_000, state: 'joined' })],
      reports: report({ at: now - seconds, busy }),
    });
    expect(changes(view(silent(1799, 0)))).toEqual([]);
    expect(changes(view(silent(1800, 0)))).toMatchObject([
      { state: 'ending', why: 'It was silent for too long.', isFailure: true },
    ]);
    expect(changes(view(silent(7199, 1)))).toEqual([]);
    expect(changes(view(silent(7200, 1)))).toHaveLength(1);
    expect(changes(view({ ...silent(90_000, 0), deaf: 'another program listens there' }))).toEqual([]);
    expect(changes(view({ ...silent(90_000, 0), here: cloud({ since: now - 60 }) }))).toEqual([]);
    // It had no time to speak since it could not be heard.
    expect(changes(view({ ...silent(90_000, 0), here: cloud({ deafAt: now - 60 }) }))).toEqual([]);
  });

  it('has no free agent if it says that something is wrong, or said nothing lately', () => {
    const wanting = (more: object) => created(view({ machines: [machine()], reports: report(more), waiting: waiting(1) }));
    expect(wanting({})).toHaveLength(0);
    expect(wanting({ problem: 'the daemon does not answer' })).toHaveLength(1);
    expect(wanting({ at: now - 61 })).toHaveLength(1);
  });

  it('whose host left the config drains, and ends if nobody can tell it to', () => {
    const given = (one: Machine, more: Partial<View> = {}) => changes(view({ hosts: [], machines: [one], ...more }));
    expect(given(machine())).toMatchObject([{ state: 'draining', why: 'The config has no such host any more.' }]);
    const draining = machine({ state: 'draining', since: now - 7200, joinedAt: now - 7200 });
    expect(given(draining)).toMatchObject([{ state: 'ending' }]);
    expect(given(draining, { reports: report() })).toEqual([]);
    expect(given(machine({ state: 'draining' }))).toEqual([]);
  });

  it('that cannot work counts as failed after as long as one that does not join, unless a job runs', () => {
    const problem = 'pool gpu: HTTP 401 from github.com';
    const changesOf = (more: object, one = machine({ joinedAt: now - 1300 })) =>
      changes(view({ machines: [one], reports: report({ problem, workedAt: null, ...more }) }));
    expect(changesOf({})).toMatchObject([
      { state: 'ending', isFailure: true, stage: 'failed', why: `It could not work for 20 minutes: ${problem}` },
    ]);
    expect(changesOf({ busy: 1 })).toEqual([]);
    expect(changesOf({ workedAt: now - 1199 })).toEqual([]);
    expect(changesOf({ workedAt: now - 1200 })).toHaveLength(1);
    expect(changesOf({}, machine({ joinedAt: now - 1199 }))).toEqual([]);
    expect(changesOf({ at: now - 61 })).toEqual([]);
  });

  it('that could never work yet is waited for as for one that boots, and named next to `max`', () => {
    const problem = 'pool gpu: HTTP 401 from github.com';
    const given = (more: object, max = 2) =>
      view({ hosts: [{ ...host, max }], machines: [machine()], reports: report({ problem, ...more }), waiting: waiting(1) });
    expect(created(given({ workedAt: null }))).toEqual([]);
    expect(created(given({ workedAt: now - 60 }))).toHaveLength(1);
    expect(plan(given({ workedAt: now - 60 }, 1)).reasons.get('burst')).toBe(
      `it has 1 of at most 1 machines; ${run} cannot work: ${problem}`,
    );
    expect(plan(given({ workedAt: null })).reasons.get('burst')).toBe(`${run} cannot work: ${problem}`);
    const unheard = (joinedAt: number) => created(view({ machines: [machine({ joinedAt })], waiting: waiting(1) }));
    expect([unheard(now - 59), unheard(now - 60)].map(({ length }) => length)).toEqual([0, 1]);
  });

  it('that does not join in time is a failure', () => {
    const late = machine({ state: 'booting', joinedAt: null, born: now - 1200 });
    expect(changes(view({ machines: [late] }))).toMatchObject([
      { state: 'ending', why: 'It did not join within 20 minutes.', isFailure: true },
    ]);
  });
});

describe('what ends', () => {
  const asked = (given: View) =>
    plan(given).steps.flatMap((step) => (step.do === 'destroy' ? [`${step.thing.kind} ${step.thing.id}`] : []));
  const ending = machine({ state: 'ending', since: now - 60, why: 'x' });
  const disk = thing({ kind: 'disk', id: 'vol-1' });

  it('is asked to go before it was listed', () => {
    expect(asked(view({ machines: [{ ...ending, since: now }] }))).toEqual(['machine i-1']);
  });

  it('goes machine first, then what it leaves', () => {
    expect(asked(view({ machines: [ending], here: cloud({ listed: listed([thing(), disk]) }) }))).toEqual(['machine i-1']);
    expect(asked(view({ machines: [ending], here: cloud({ listed: listed([disk]) }) }))).toEqual(['disk vol-1']);
  });

  it('is asked again: soon if it does not go, later if it does', () => {
    const again = (seconds: number, state: Thing['state']) =>
      asked(
        view({
          machines: [ending],
          here: cloud({ listed: listed([thing({ state })]), asked: new Map([['machine here i-1', now - seconds]]) }),
        }),
      ).length;
    expect([again(29, 'running'), again(30, 'running'), again(299, 'ending'), again(300, 'ending')]).toEqual([0, 1, 0, 1]);
  });
});

describe('after a list', () => {
  const seen = (one: Machine, list: Listed, isCreating = false): Machine =>
    afterList(
      one,
      list,
      list.things.filter((each) => each.run === one.run),
      { isCreating },
    );
  const ending = machine({ state: 'ending', since: now - 60 });

  it('gone is what two complete lists do not contain', () => {
    const once = seen(ending, listed());
    expect(once).toMatchObject({ state: 'ending', absent: [now - 10] });
    const twice = seen(once, listed([], { from: now, at: now + 2 }));
    expect(twice).toMatchObject({ state: 'gone', absent: [now - 10, now + 2] });
  });

  it.each([
    ['is incomplete', { unknown: ['zone b (unreachable)'] }, false],
    ['failed', { failed: 'no answer' }, false],
    ['was asked for before', { from: now - 61 }, false],
    ['came while the create call was under way', {}, true],
  ])('one that %s proves nothing', (_, more, isCreating) => {
    expect(seen(ending, listed([], more), isCreating)).toBe(ending);
  });

  it('what was never made but left a group behind is found out, and the group is removed', () => {
    const intent = machine({ state: 'intent', made: null, joinedAt: null, seenAt: null, since: now - 200 });
    const group = thing({ kind: 'group', id: 'rg-1' });
    const once = seen(intent, listed([group]));
    const twice = seen(once, listed([group], { from: now, at: now + 2 }));
    expect(twice).toMatchObject({ state: 'intent', absent: [now - 10, now + 2], items: [{ kind: 'group' }] });
    const found = plan(view({ machines: [twice], here: cloud({ listed: listed([group]) }) }));
    expect(found.steps).toMatchObject([{ do: 'change', machine: { state: 'ending' } }]);
  });

  it('a time that a wrong clock wrote is put right', () => {
    const odd = { ...ending, since: now + 30_000 };
    const once = seen(odd, listed());
    expect(once).toMatchObject({ state: 'ending', since: now - 10, absent: [] });
    expect(seen(seen(once, listed([], { from: now, at: now + 2 })), listed([], { from: now + 8, at: now + 9 }))).toMatchObject({
      state: 'gone',
    });
  });

  it('a machine that speaks lives, and one that was stopped ends', () => {
    const quiet = machine({ absent: [now - 40] });
    const list = listed();
    expect(afterList(quiet, list, [], { isCreating: false, heardAt: now - 11 })).toMatchObject({ state: 'joined', absent: [] });
    expect(seen(machine(), listed([thing({ state: 'stopped' })]))).toMatchObject({ state: 'ending', why: 'It was stopped.' });
  });

  it('what appears later comes back, and is removed', () => {
    const gone = machine({ state: 'gone', absent: [now - 100, now - 90] });
    expect(seen(gone, listed([thing()]))).toMatchObject({ state: 'ending', absent: [], isFailure: true });
  });

  it('a create call without an answer has made what a list shows', () => {
    const intent = machine({ state: 'intent', made: null, joinedAt: null, end: null });
    expect(seen(intent, listed([thing({ id: 'i-9' })]))).toMatchObject({ state: 'made', made: { id: 'i-9', place: 'here' } });
    expect(seen(intent, listed([thing({ id: 'i-9' })]), true)).toMatchObject({ state: 'intent', made: null });
  });

  it('a machine that the cloud no longer lists has ended, but not one that was not listed yet', () => {
    const twice = (one: Machine) => seen(seen(one, listed()), listed([], { from: now, at: now + 2 }));
    expect(twice(machine())).toMatchObject({ state: 'ending', why: 'The cloud has ended it.' });
    expect(twice(machine({ state: 'booting', seenAt: null, since: now - 30 }))).toMatchObject({ state: 'booting' });
  });

  it('a used join token ends it only while it could still be the machine that asks', () => {
    const twice = (born: number, joinedAt: number | null, state: Machine['state'] = 'joined') =>
      tokenCameAgain(machine({ born, joinedAt, state }), now, host, '192.0.2.7').state;
    expect(twice(now - 600, now - 300)).toBe('ending');
    expect(twice(now - 600, null, 'booting')).toBe('ending');
    expect(twice(now - 7_200, null, 'booting')).toBe('ending');
    expect(twice(now - 1_200, now - 900)).toBe('joined');
  });

  it('people who want its end only note it while nobody knows whether it exists', () => {
    const intent = machine({ state: 'intent', made: null });
    expect(ended(intent, now, 'It was ended with "onejob cloud down".', false)).toMatchObject({
      state: 'intent',
      why: 'It was ended with "onejob cloud down".',
    });
  });
});

describe('what no ledger knows', () => {
  const disk = thing({ kind: 'disk', id: 'vol-1', born: now - 1000 });

  it('is removed after its end, whatever it is', () => {
    expect(isLeftOver(thing({ expires: now }), new Map(), now)).toBe(true);
    expect(isLeftOver(thing(), new Map(), now)).toBe(false);
  });

  it('is removed when two complete lists show it without a machine', () => {
    const one = orphansAfter(new Map(), listed([disk]));
    expect(isLeftOver(disk, one, now)).toBe(false);
    const incomplete = orphansAfter(one, listed([disk], { unknown: ['zone b'] }));
    expect(isLeftOver(disk, incomplete, now)).toBe(false);
    const two = orphansAfter(one, listed([disk]));
    expect(isLeftOver(disk, two, now)).toBe(true);
    // Its machine appeared late, and may be in the part that is missing now.
    expect(isLeftOver(disk, orphansAfter(two, listed([disk], { unknown: ['zone b'] })), now)).toBe(false);
    expect(orphansAfter(one, listed([disk, thing()])).size).toBe(0);
  });

  it('stays while its machine could still appear, also when no later list was answered', () => {
    const early = listed([disk], { from: now - 500, at: now - 500 });
    const twice = orphansAfter(orphansAfter(new Map(), early), early);
    expect(isLeftOver(disk, twice, now)).toBe(false);
  });

  it('is left alone without our tags', () => {
    expect(isLeftOver(thing({ run: null, expires: 1 }), new Map(), now)).toBe(false);
    expect(isLeftOver(thing({ expires: null }), new Map(), now)).toBe(false);
  });
});
