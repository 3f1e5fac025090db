/** The own queue and the loop under everything that a host goes through. */
import type { Scenario, Wish } from '../scenario.ts';

const three = 'pools: { default: { agents: 3, runtime: process, stop_grace: 5s } }\n';
const one = 'pools: { default: { agents: 1, runtime: process, stop_grace: 5s } }\n';
/** A host such as the ones that onejob is made for: many agents in pools of several kinds. */
const eighteen = `pools:
  upload: { agents: 1, runtime: process }
  build: { agents: 14, runtime: process, stop_grace: 30s }
  rare: { agents: 2, runtime: process, standby: false }
  long: { agents: 1, runtime: process, timeout: 2h }
`;
const job = { what: 'submit', ms: [0, 20_000], exit: [0, 4], says: [0, 3] } as const;
const flaky: Wish = { what: 'faults', count: 1, within: [0, 0], fails: 0.05, answerLost: 0.05, eventLost: 0.1 };
const anyPool = { oneOf: ['upload', 'build', 'build', 'build', 'rare', 'long'] };

export const ownQueue: readonly Scenario[] = [
  {
    name: 'kills',
    about: 'Jobs come while the manager is killed between any two effects, the Engine goes away, and answers get lost.',
    config: three,
    hours: 0.15,
    happens: [
      flaky,
      { ...job, count: 40 },
      { what: 'crash', count: 12, after: [1, 40], down: [0, 5_000] },
      { what: 'outage', of: 'engine', count: 3, ms: [0, 60_000] },
    ],
    atLeast: { done: 40, crashes: 8, engineOutages: 1 },
    seeds: 12,
  },
  {
    name: 'each-effect',
    about: 'One job, and the manager is killed at its first effect, its second, and so on: before it, and after it.',
    config: one,
    hours: 0.01,
    happens: [{ what: 'submit', count: 1, within: [0.001, 0.002], ms: 3_000, exit: 3, says: 2 }],
    atLeast: { done: 1 },
    eachEffect: 'any',
    seeds: 120,
  },
  {
    name: 'power-cuts',
    about:
      'The host loses power at any moment and at any effect: every commit after the last sync is gone, and what ran has ended.',
    config: three,
    hours: 0.5,
    happens: [
      { ...job, count: 60 },
      { ...job, count: 20, ms: [30_000, 120_000], cancelAfter: { oneOf: [null, [0, 20_000]] } },
      { what: 'power', count: 12, after: [1, 40], down: [1_000, 10_000] },
      { what: 'power', count: 6, of: 'runtime', after: [1, 8], down: [1_000, 10_000] },
      { what: 'power', count: 8, of: 'sync', after: [1, 12], down: [1_000, 10_000] },
      { what: 'power', count: 4, down: [1_000, 10_000] },
      { what: 'crash', count: 4, after: [1, 40], down: [0, 2_000] },
      { what: 'hold', count: 2, ms: [5_000, 20_000] },
    ],
    atLeast: { jobs: 80, cuts: 12 },
    seeds: 12,
  },
  {
    name: 'slow-disk-cuts',
    about: 'A sync takes seconds, and the host loses power meanwhile, mostly right after the Engine was asked for something.',
    config: three,
    hours: 1,
    syncs: [500, 6_000],
    happens: [
      { ...job, count: 80 },
      { what: 'power', count: 20, of: 'runtime', after: [1, 12], down: [1_000, 5_000] },
      { what: 'power', count: 6, after: [1, 40], down: [1_000, 5_000] },
    ],
    atLeast: { jobs: 80, cuts: 12 },
    seeds: 6,
  },
  {
    name: 'each-cut',
    about: 'One job, and the host loses power at the first effect of its manager, its second, and so on: before it, and after it.',
    config: one,
    hours: 0.01,
    happens: [{ what: 'submit', count: 1, within: [0.001, 0.002], ms: 3_000, exit: 3, says: [0, 3] }],
    atLeast: {},
    eachEffect: 'any',
    instead: { what: 'power', ms: 0 },
    seeds: 120,
  },
  {
    name: 'each-outage',
    about: 'One short job, and the Engine goes away for half a minute at its first call, its second, and so on.',
    config: one,
    hours: 0.01,
    happens: [{ what: 'submit', count: 1, within: [0.001, 0.002], ms: 5, exit: 3, says: 2 }],
    atLeast: { done: 1 },
    eachEffect: 'runtime',
    instead: { what: 'outage', ms: 30_000 },
    seeds: 40,
  },
  {
    name: 'each-full',
    about: 'One short job, and the disk is full for some seconds from its first effect on, its second, and so on.',
    config: one,
    hours: 0.01,
    happens: [{ what: 'submit', count: 1, within: [0.001, 0.002], ms: 1_000, exit: 3, says: 2 }],
    atLeast: { done: 1 },
    eachEffect: 'any',
    instead: { what: 'full', ms: 8_000 },
    seeds: 80,
  },
  {
    name: 'other-minds',
    about: 'Jobs are cancelled as soon as they are handed in, or just begin, while the manager is killed and answers get lost.',
    config:
      'pools: { default: { agents: 3, runtime: process, stop_grace: 5s }, cold: { agents: 2, runtime: process, standby: false, stop_grace: 5s } }\n',
    hours: 0.2,
    happens: [
      flaky,
      { ...job, count: 20, pool: 'cold', cancelAfter: [0, 1_000] },
      { ...job, count: 10, ms: [250_000, 300_000], cancelAfter: [2_000, 20_000], kill: [1, 7] },
      { ...job, count: 60, cancelAfter: { oneOf: [null, [0, 20], [0, 1_000]] } },
      { what: 'crash', count: 20, after: [1, 20], down: [0, 5_000] },
    ],
    atLeast: { jobs: 90, cancelled: 20, crashes: 12 },
    seeds: 8,
  },
  {
    name: 'stops',
    about: 'People stop the manager in every way, some of them hurry it, and start it again.',
    config: three,
    hours: 0.5,
    happens: [
      { ...job, count: 60, term: { oneOf: [0, 2_000, null] } },
      { ...job, count: 10, ms: [30_000, 120_000], term: { oneOf: [0, 2_000, null] } },
      { what: 'stop', count: 5, how: { oneOf: ['drain', 'end', 'leave'] }, down: [0, 20_000] },
      { what: 'stop', count: 3, how: { oneOf: ['drain', 'end'] }, down: [0, 20_000], second: [0, 8_000] },
      { what: 'crash', count: 4, after: [1, 60], down: [0, 5_000] },
      { what: 'outage', of: 'engine', count: 2, ms: [0, 30_000] },
    ],
    atLeast: { jobs: 60, stops: 3 },
    seeds: 12,
  },
  {
    name: 'wishes',
    about: 'Jobs are cancelled and run out of time, at every moment, some deaf to TERM, under kills and lost answers.',
    config: three,
    hours: 0.3,
    happens: [
      { ...flaky },
      { ...job, count: 40, ms: [0, 60_000], timeout: { oneOf: [null, 5_000, 30_000] }, term: { oneOf: [0, 3_000, null] } },
      { ...job, count: 20, priority: [-2, 3] },
      { what: 'cancel', count: 20, pick: [0, 1_000] },
      { what: 'crash', count: 8, after: [1, 60], down: [0, 5_000] },
    ],
    atLeast: { jobs: 60, cancelled: 3, timedOut: 3, crashes: 5 },
    seeds: 12,
  },
  {
    name: 'backlog',
    about: 'Many jobs wait for one agent, and some that wait are cancelled; nothing restarts, so nothing is repaired that way.',
    config: one,
    hours: 0.3,
    happens: [
      { ...job, count: 60, within: [0, 0.05] },
      { what: 'cancel', count: 20, pick: [0, 1_000], within: [0.05, 0.1] },
    ],
    atLeast: { jobs: 60, cancelled: 8 },
    seeds: 3,
  },
  {
    name: 'outages',
    about: 'The Engine is away for an hour, or for moments, at every phase of jobs.',
    config: three,
    hours: 12,
    happens: [
      {
        ...job,
        count: 120,
        ms: {
          oneOf: [
            [0, 60_000],
            [0, 7_200_000],
          ],
        },
      },
      { what: 'outage', of: 'engine', count: 4, ms: 3_600_000 },
      { what: 'outage', of: 'engine', count: 20, ms: [100, 30_000] },
      { what: 'crash', count: 4, after: [1, 60], down: [0, 600_000] },
    ],
    atLeast: { done: 120, engineOutages: 12 },
    seeds: 6,
  },
  {
    name: 'full-disk',
    about: 'The disk of the state directory is full now and then, also while the manager starts and while it is killed.',
    config: three,
    hours: 0.5,
    happens: [
      { ...job, count: 60, says: [0, 20] },
      { what: 'full', count: 10, ms: [100, 60_000] },
      { what: 'crash', count: 6, after: [1, 60], down: [0, 5_000] },
    ],
    atLeast: { done: 60, fulls: 3 },
    seeds: 10,
  },
  {
    name: 'clock-jumps',
    about: 'The wall clock is set forward and back by up to a day; no deadline moves and no job is lost.',
    config: three,
    hours: 2,
    happens: [
      { ...job, count: 60, timeout: { oneOf: [null, 30_000] } },
      { what: 'jump', count: 12, ms: [-86_400_000, 86_400_000] },
      { what: 'crash', count: 4, after: [1, 60], down: [0, 5_000] },
    ],
    atLeast: { done: 60, jumps: 12 },
    seeds: 6,
  },
  {
    name: 'every-commit',
    about: 'For a day the manager is killed right after each commit of its store, so that it never gets further than one.',
    config: three,
    hours: 24,
    happens: [
      { ...job, count: 60, ms: [0, 120_000] },
      { what: 'crash', count: 1_200, of: 'commit', after: 2, down: [100, 2_000] },
    ],
    atLeast: { done: 60, crashes: 900 },
    seeds: 1,
  },
  {
    name: 'two-hundred',
    about: 'Two hundred short jobs at once for 18 agents, with faults, kills and outages.',
    config: eighteen,
    hours: 0.1,
    happens: [
      flaky,
      { ...job, count: 200, pool: anyPool },
      { what: 'crash', count: 6, after: [1, 400], down: [0, 5_000] },
      { what: 'outage', of: 'engine', count: 2, ms: [0, 30_000] },
    ],
    atLeast: { done: 200, crashes: 4 },
    seeds: 4,
  },
  {
    name: 'day',
    about: 'A day of a host with 18 agents: some hundred jobs, a few restarts, a few short outages.',
    config: eighteen,
    hours: 24,
    happens: [
      { ...job, count: 300, pool: anyPool, ms: [0, 1_200_000], priority: [0, 3] },
      { what: 'cancel', count: 10, pick: [0, 1_000] },
      { what: 'crash', count: 2, after: [1, 200], down: [0, 60_000] },
      { what: 'stop', count: 1, how: { oneOf: ['leave', 'drain'] }, down: [1_000, 60_000] },
      { what: 'outage', of: 'engine', count: 3, ms: [1_000, 120_000] },
      { what: 'faults', count: 6, ms: 600_000, fails: 0.02, answerLost: 0.02, eventLost: 0.02 },
    ],
    atLeast: { jobs: 300, done: 290 },
    seeds: 1,
  },
  {
    name: 'month',
    about: 'Thirty days of the same host in one go, with hour-long outages.',
    config: eighteen,
    hours: 720,
    happens: [
      { ...job, count: 3_000, pool: anyPool, ms: [0, 3_600_000] },
      { what: 'cancel', count: 60, pick: [0, 1_000] },
      { what: 'crash', count: 30, after: [1, 400], down: [0, 600_000] },
      { what: 'outage', of: 'engine', count: 12, ms: [1_000, 3_600_000] },
      { what: 'jump', count: 4, ms: [-3_600_000, 3_600_000] },
    ],
    atLeast: { jobs: 3_000, crashes: 25, engineOutages: 10 },
    seeds: 0,
  },
];
