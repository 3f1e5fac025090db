/** Days on which images change, some of them for the worse. */
import type { Scenario } from '../scenario.ts';

const config = 'pools: { default: { agents: 3, image: box, runtime: docker, stop_grace: 5s } }\n';
const job = { what: 'submit', ms: [0, 20_000], exit: [0, 4], says: [0, 3] } as const;
const ours = { config, runtime: 'docker', images: true, with: ['stopwatch', 'updates'] } as const;

export const updates: readonly Scenario[] = [
  {
    ...ours,
    name: 'updates',
    about: 'Images are pushed, and some do not work: one slot tries each, the others continue, and all get the last one.',
    hours: 8,
    happens: [
      { ...job, count: 150 },
      { what: 'updates.push', count: 5, within: [0.5, 7] },
      { what: 'updates.push', count: 3, within: [0.5, 7], bad: true },
      { what: 'updates.push', count: 1, within: [7.5, 8] },
      { what: 'crash', count: 3, within: [1, 8], after: [1, 40], down: [0, 5_000] },
      { what: 'outage', of: 'engine', count: 2, ms: [0, 60_000] },
    ],
    atLeast: { jobs: 150, pushed: 9, trials: 1, failures: 5, peace: 3_600_000 },
    seeds: 4,
  },
  {
    ...ours,
    name: 'updates-quick',
    about: 'Somebody moves the image back and forth and removes old ones, while jobs are many and the manager is killed.',
    hours: 2,
    happens: [
      { ...job, count: 200, ms: [0, 60_000] },
      { what: 'faults', count: 1, within: [0, 0], fails: 0.02, answerLost: 0.02, eventLost: 0.05 },
      { what: 'updates.push', count: 20, within: [0.2, 1.9], bad: { oneOf: [true, false, false] } },
      { what: 'updates.prune', count: 6, within: [0.3, 1.9] },
      { what: 'updates.push', count: 1, within: [1.95, 2] },
      { what: 'crash', count: 8, after: [1, 60], down: [0, 5_000] },
    ],
    with: ['updates'],
    atLeast: { jobs: 200, pushed: 21, crashes: 4 },
    seeds: 6,
  },
  {
    ...ours,
    name: 'updates-bare',
    about: 'Nothing is kept ready, old images are removed at once, and long jobs bring their own: no slot waits for one of those.',
    config: config.replace('stop_grace', 'standby: false, stop_grace'),
    hours: 3,
    happens: [
      { ...job, count: 80 },
      { ...job, count: 25, ms: [60_000, 900_000], image: 'own' },
      { what: 'updates.push', count: 15, within: [0.5, 2.9] },
      { what: 'updates.prune', count: 30, within: [0.5, 2.9] },
    ],
    atLeast: { jobs: 105, pushed: 15, pruned: 30, peace: 3_600_000 },
    seeds: 2,
  },
];
