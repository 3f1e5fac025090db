/** Days on which the Engine is not what it should be: slow, deaf, forgetful, started anew, or in somebody else's hands. */
import type { Scenario } from '../scenario.ts';

const three = 'pools: { default: { agents: 3, runtime: process, stop_grace: 5s } }\n';
const job = { what: 'submit', exit: [0, 4], says: [0, 3] } as const;

export const engine: readonly Scenario[] = [
  {
    name: 'engine-restarts',
    about:
      'The Engine is started anew and ends all that runs, also while the manager is away; jobs that ran are lost, and no job twice.',
    config: three,
    hours: 4,
    happens: [
      { ...job, count: 100, ms: [0, 300_000], retries: [0, 2] },
      { what: 'engine.restart', count: 10, ms: [0, 60_000] },
      { what: 'crash', count: 8, after: [1, 40], down: [0, 60_000] },
    ],
    atLeast: { done: 100, engineRestarts: 5, lost: 1, crashes: 3 },
    seeds: 6,
  },
  {
    name: 'engine-slow',
    about: 'Calls take half a minute or are not answered at all, and events come late, twice, or not.',
    config: three,
    hours: 4,
    happens: [
      {
        what: 'faults',
        count: 1,
        within: [0, 0],
        fails: 0.02,
        answerLost: 0.03,
        slow: 0.1,
        hung: 0.03,
        eventLost: 0.05,
        eventTwice: 0.2,
        eventLate: 0.1,
      },
      { ...job, count: 120, ms: [0, 60_000] },
      { what: 'crash', count: 6, after: [1, 60], down: [0, 30_000] },
      { what: 'cancel', count: 8, pick: [0, 1_000] },
    ],
    atLeast: { done: 110, crashes: 4 },
    seeds: 8,
  },
  {
    name: 'engine-strangers',
    about: 'Somebody removes sandboxes by hand, and the kernel ends what has no memory left.',
    config: three,
    hours: 2,
    happens: [
      { ...job, count: 80, ms: [0, 180_000] },
      { what: 'engine.ends', who: 'somebody', count: 15, pick: [0, 1_000] },
      { what: 'engine.ends', who: 'kernel', count: 15, pick: [0, 1_000] },
      { what: 'crash', count: 4, after: [1, 40], down: [0, 10_000] },
      { what: 'outage', of: 'engine', count: 2, ms: [0, 60_000] },
    ],
    atLeast: { done: 80, seized: 15, crashes: 2 },
    seeds: 6,
  },
];
