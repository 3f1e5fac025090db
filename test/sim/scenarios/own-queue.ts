/** The own queue and the loop under everything that a host goes through. */
import type { Scenario } from '../scenario.ts';

const three = 'pools: { default: { agents: 3, runtime: process, stop_grace: 5s } }\n';
const job = { what: 'submit', ms: [0, 20_000], exit: [0, 4], says: [0, 3] } as const;
const flaky = { what: 'faults', fails: 0.05, answerLost: 0.05, eventLost: 0.1 } as const;

export const ownQueue: readonly Scenario[] = [
  {
    name: 'kills',
    about: 'Jobs come while the manager is killed between any two effects, the Engine goes away, and answers get lost.',
    config: three,
    hours: 0.15,
    happens: [
      { ...flaky, count: 1, within: [0, 0] },
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
    config: 'pools: { default: { agents: 1, runtime: process, stop_grace: 5s } }\n',
    hours: 0.01,
    happens: [{ what: 'submit', count: 1, within: [0.001, 0.002], ms: 3_000, exit: 3, says: 2 }],
    atLeast: { done: 1 },
    eachEffect: 'any',
    seeds: 120,
  },
];
