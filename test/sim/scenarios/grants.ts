/** An engine of others places the sandboxes: it has a queue, room that others take, and nodes that fail. */
import type { Scenario, Wish } from '../scenario.ts';

const config = `runtimes: { grid: { type: slurm, folder: /shared } }
pools:
  default: { runtime: grid, agents: 6, stop_grace: 5s }
`;
const grid = { config, runtime: 'grid', grants: 3 } as const;
const flaky: Wish = { what: 'faults', count: 1, within: [0, 0], fails: 0.05, answerLost: 0.05, eventLost: 0.1 };
const job = { what: 'submit', ms: [0, 20_000], exit: [0, 4], says: [0, 3] } as const;

export const grants: readonly Scenario[] = [
  {
    ...grid,
    name: 'grants-kills',
    about: 'Jobs come for an engine with little room, while the manager is killed between any two effects and answers get lost.',
    hours: 0.3,
    happens: [
      flaky,
      { ...job, count: 60 },
      {
        ...job,
        count: 20,
        cancelAfter: {
          oneOf: [
            [0, 1_000],
            [0, 20_000],
          ],
        },
      },
      { what: 'crash', count: 14, after: [1, 60], down: [0, 5_000] },
      { what: 'outage', of: 'engine', count: 3, ms: [0, 60_000] },
    ],
    atLeast: { jobs: 80, crashes: 8, engineOutages: 1 },
    seeds: 12,
  },
  {
    ...grid,
    name: 'grants-quota',
    about: 'Others take all the room for an hour; jobs wait without a failure, and nothing is asked for twice.',
    hours: 3,
    happens: [
      { ...job, count: 40 },
      { what: 'engine.quota', count: 1, within: [0.2, 0.4], left: 0, ms: 3_600_000 },
      { what: 'crash', count: 4, after: [1, 60], down: [0, 60_000] },
      { what: 'cancel', count: 6, pick: [0, 1_000] },
    ],
    atLeast: { jobs: 40 },
    seeds: 6,
  },
  {
    ...grid,
    name: 'grants-away',
    about: 'The engine does not answer for an hour, while jobs wait, run, end and are cancelled.',
    hours: 4,
    happens: [
      {
        ...job,
        count: 60,
        ms: {
          oneOf: [
            [0, 60_000],
            [0, 3_600_000],
          ],
        },
      },
      { what: 'outage', of: 'engine', count: 2, ms: 3_600_000 },
      { what: 'outage', of: 'engine', count: 6, ms: [100, 30_000] },
      { what: 'cancel', count: 8, pick: [0, 1_000] },
      { what: 'crash', count: 4, after: [1, 60], down: [0, 600_000] },
    ],
    atLeast: { jobs: 60, engineOutages: 2 },
    seeds: 6,
  },
  {
    ...grid,
    name: 'grants-nodes',
    about: 'Nodes fail under jobs and under agents at their gate, and people stop the manager in every way.',
    hours: 1,
    happens: [
      { ...job, count: 60, ms: [0, 60_000] },
      { what: 'engine.node', count: 12, pick: [0, 1_000] },
      { what: 'stop', count: 4, how: { oneOf: ['drain', 'end', 'leave'] }, down: [0, 20_000] },
      { what: 'hold', count: 2, ms: [5_000, 60_000] },
      { what: 'crash', count: 6, after: [1, 60], down: [0, 5_000] },
    ],
    atLeast: { jobs: 60 },
    seeds: 8,
  },
];
