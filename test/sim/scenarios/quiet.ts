/** Days on which little goes wrong, so that one sees what takes longer than it should. */
import type { Scenario } from '../scenario.ts';

const three = 'pools: { default: { agents: 3, runtime: process, stop_grace: 5s } }\n';
const job = { what: 'submit', ms: [0, 20_000], exit: [0, 4], says: [0, 3] } as const;

export const quiet: readonly Scenario[] = [
  {
    name: 'quiet',
    about: 'Nothing goes wrong but a few short outages and a crash: no end, no wish and no free slot goes unnoticed for long.',
    config: three,
    hours: 1,
    with: ['stopwatch'],
    happens: [
      { ...job, count: 80, timeout: { oneOf: [null, null, 10_000] }, term: { oneOf: [0, 0, 2_000, null] } },
      { ...job, count: 20, ms: [60_000, 300_000], term: { oneOf: [0, 2_000, null] } },
      { what: 'cancel', count: 16, pick: [0, 1_000] },
      { what: 'outage', of: 'engine', count: 3, ms: [1_000, 180_000] },
      { what: 'crash', count: 1, down: [0, 5_000] },
    ],
    atLeast: { jobs: 100, cancelled: 3, peace: 600_000 },
    seeds: 6,
  },
  {
    name: 'rare',
    about: 'Two days with a handful of jobs: standbys grow old, and are made anew before they are used.',
    config: three,
    hours: 48,
    with: ['stopwatch'],
    happens: [
      { ...job, count: 8 },
      { what: 'crash', count: 1, down: [0, 5_000] },
    ],
    atLeast: { jobs: 8, peace: 3_600_000 },
    seeds: 2,
  },
  {
    name: 'trouble',
    about: 'Sandboxes cannot be made for a while, or end at once, and images change: pools are patient, and use nothing old.',
    config: 'pools: { default: { agents: 3, image: box, runtime: docker, stop_grace: 5s } }\n',
    runtime: 'docker',
    images: true,
    hours: 6,
    with: ['stopwatch', 'trouble'],
    happens: [
      { ...job, count: 60 },
      { what: 'trouble.refusal', count: 3, ms: [5_000, 1_800_000], retry: true },
      { what: 'trouble.refusal', count: 2, ms: [5_000, 600_000], retry: false },
      { what: 'trouble.gate', count: 3, ms: [5_000, 1_800_000], code: 1 },
      { what: 'trouble.image', count: 8 },
      { what: 'crash', count: 2, after: [1, 40], down: [0, 5_000] },
    ],
    atLeast: { jobs: 60, failures: 20, images: 8, peace: 3_600_000 },
    seeds: 4,
  },
];
