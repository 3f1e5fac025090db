/** Devices: who gets which, and that each is clean before the next agent is let at it. */
import type { Scenario, Wish } from '../scenario.ts';

const job = { what: 'submit', ms: [0, 60_000], exit: [0, 3] } as const;
const standing =
  'pools: { lab: { agents: 3, devices: 1, runtime: process, stop_grace: 5s }, cpu: { agents: 1, runtime: process } }\n';
const cards: readonly Wish[] = [
  { what: 'gpu.leftover', count: 8, ms: { oneOf: [2_000, 20_000, 300_000] } },
  { what: 'gpu.person', count: 4, card: [0, 5], ms: [10_000, 900_000] },
  { what: 'gpu.fall', count: 3, card: [0, 5], ms: [10_000, 600_000] },
  { what: 'gpu.xid', count: 4, card: [0, 5], xid: 31 },
  { what: 'gpu.hang', count: 3, how: { oneOf: ['hang', 'mismatch'] }, ms: [5_000, 240_000] },
];

export const gpus: readonly Scenario[] = [
  {
    name: 'gpu-kills',
    about: 'Jobs on cards of their own; the manager is killed between any two effects, and agents leave processes behind.',
    with: ['gpus'],
    config: standing,
    hours: 0.5,
    happens: [
      { ...job, count: 20, pool: 'lab', timeout: { oneOf: [null, 20_000] }, term: { oneOf: [0, null] } },
      // More than there are cards, so that each card has its next agent at once.
      { ...job, count: 25, pool: 'lab', within: [0.1, 0.12] },
      { ...job, count: 5, pool: 'cpu' },
      { what: 'crash', count: 12, after: [1, 60], down: [0, 20_000] },
      { what: 'faults', count: 1, within: [0, 0], fails: 0.03, answerLost: 0.03, eventLost: 0.05 },
      { what: 'gpu.leftover', count: 12, within: [0.1, 0.3], ms: { oneOf: [2_000, 20_000, 120_000] }, mib: { oneOf: [0, 512] } },
    ],
    atLeast: { jobs: 50, crashes: 8, gpuReleases: 35, leftovers: 3 },
    seeds: 4,
  },
  {
    name: 'gpu-each-effect',
    about: 'One job on a card that leaves a process behind, and the manager is killed at its first commit, its second, and so on.',
    with: ['gpus'],
    config: 'pools: { lab: { agents: 1, devices: 1, runtime: process, stop_grace: 5s } }\n',
    hours: 0.01,
    calm: 0.05,
    happens: [
      { what: 'gpu.leftover', count: 1, within: [0, 0], ms: 3_000 },
      { ...job, count: 2, pool: 'lab', within: [0.001, 0.002], ms: 2_000 },
    ],
    atLeast: { jobs: 2 },
    eachEffect: 'commit',
    seeds: 48,
  },
  {
    name: 'gpu-bad-days',
    about: 'Cards fall off the bus, people sit on them, the tool hangs, the kernel complains; jobs wait and nothing dirty is used.',
    with: ['gpus'],
    config: standing,
    hours: 3,
    happens: [
      { ...job, count: 60, pool: 'lab' },
      ...cards,
      { what: 'gpu.xid', count: 1, card: [0, 4], xid: 95 },
      { what: 'crash', count: 4, after: [1, 60], down: [0, 60_000] },
      { what: 'outage', of: 'engine', count: 2, ms: [1_000, 120_000] },
    ],
    atLeast: { jobs: 60, gpuReleases: 50, people: 4, falls: 1, hangs: 1, xids: 5 },
    seeds: 3,
  },
  {
    name: 'gpu-leases',
    about:
      'Pools lease cards and MIG instances when a job waits; whole cards, two at a time, a shared one, in the order of the file.',
    with: ['gpus'],
    config: `pools:
  pair: { agents: 1, devices: { count: 2, model: H100 }, standby: false, runtime: process }
  one: { agents: 3, devices: { count: 1, model: H100 }, standby: false, runtime: process, stop_grace: 5s }
  mig: { agents: 3, devices: { count: 1, mig: true }, runtime: process }
`,
    hours: 3,
    happens: [
      { ...job, count: 70, pool: { oneOf: ['pair', 'one', 'one', 'mig'] } },
      ...cards,
      { what: 'cancel', count: 6, pick: [0, 1_000] },
      { what: 'crash', count: 6, after: [1, 60], down: [0, 30_000] },
      { what: 'stop', count: 2, how: { oneOf: ['leave', 'end', 'drain'] }, down: [1_000, 20_000] },
    ],
    atLeast: { jobs: 70, gpuReleases: 50, crashes: 3 },
    seeds: 2,
  },
  {
    name: 'gpu-packing',
    about: 'Jobs of one, two and four cards of one pool: each gets as many as it asks for, and none is starved by smaller ones.',
    with: ['gpus'],
    config: `pools:
  any: { agents: 5, devices: { count: 1, model: H100 }, standby: false, runtime: process, stop_grace: 5s }
`,
    hours: 2,
    happens: [
      { ...job, count: 70, pool: 'any', devices: { oneOf: [1, 1, 2, 4] }, timeout: { oneOf: [30_000, 120_000, 600_000] } },
      // More than there are cards, so that large ones wait while small ones come.
      {
        ...job,
        count: 30,
        pool: 'any',
        devices: { oneOf: [1, 2, 4] },
        timeout: { oneOf: [20_000, 120_000, 300_000, null] },
        within: [0.5, 0.55],
      },
      { what: 'gpu.leftover', count: 6, ms: { oneOf: [2_000, 20_000] } },
      { what: 'gpu.person', count: 2, card: [0, 3], ms: [10_000, 300_000] },
      { what: 'cancel', count: 10, pick: [0, 1_000] },
      { what: 'crash', count: 5, after: [1, 60], down: [0, 30_000] },
    ],
    atLeast: { jobs: 100, gpuReleases: 80, crashes: 3, several: 30, passed: 1 },
    seeds: 2,
  },
  {
    name: 'gpu-neighbours',
    about:
      'Another manager takes cards, people reserve some, the driver is replaced, and memory stays without a process; a card is shared.',
    with: ['gpus'],
    config: `pools:
  shared: { agents: 2, devices: { count: 1, model: H100, share: 2 }, runtime: process, stop_grace: 5s }
  lab: { agents: 2, devices: { count: 1, model: H100 }, standby: false, runtime: process, stop_grace: 5s }
  mig: { agents: 2, devices: { count: 1, mig: true }, runtime: process }
`,
    hours: 3,
    happens: [
      { ...job, count: 70, pool: { oneOf: ['shared', 'lab', 'lab', 'mig'] } },
      { what: 'submit', count: 12, pool: 'shared', ms: [30_000, 90_000], exit: 0, within: [0.2, 0.3] },
      { what: 'gpu.rival', count: 16, card: [0, 5], ms: [10_000, 600_000] },
      { what: 'gpu.reserve', count: 6, card: [0, 5], ms: [60_000, 900_000] },
      { what: 'gpu.driver', count: 2, ms: [1_000, 60_000] },
      { what: 'gpu.leftover', count: 8, how: { oneOf: ['memory', 'process'] }, ms: { oneOf: [2_000, 20_000, 300_000] } },
      { what: 'crash', count: 5, after: [1, 60], down: [0, 30_000] },
    ],
    atLeast: {
      jobs: 80,
      gpuReleases: 70,
      crashes: 3,
      rivals: 3,
      rivalsRefused: 1,
      reserved: 3,
      drivers: 1,
      leftovers: 4,
      shared: 1,
    },
    seeds: 2,
  },
  {
    name: 'gpu-18',
    about: 'A host of 18 agents and more: instances, whole cards, two at a time, and a pool that takes what is left.',
    with: ['gpusOf18'],
    config: `defaults: { runtime: process, stop_grace: 5s }
pools:
  upload: { agents: 1, devices: 0 }
  a100: { agents: 14, devices: { count: 1, mig: true, model: A100 } }
  rtx5000: { agents: 1, devices: { count: 1, model: RTX 5000 } }
  multigpu: { agents: 1, devices: { count: 2, model: RTX 5000 } }
  lab: { agents: per-device, devices: { count: 1, memory: ">=40GiB", compute: ">=8.0" } }
`,
    hours: 1,
    happens: [
      { ...job, count: 150, pool: { oneOf: ['a100', 'a100', 'a100', 'rtx5000', 'multigpu', 'lab', 'upload'] } },
      { what: 'gpu.leftover', count: 8, how: { oneOf: ['memory', 'process'] }, ms: { oneOf: [2_000, 20_000, 300_000] } },
      { what: 'gpu.person', count: 3, card: [0, 6], ms: [10_000, 600_000] },
      { what: 'gpu.fall', count: 2, card: [0, 6], ms: [10_000, 300_000] },
      { what: 'gpu.hang', count: 2, ms: [5_000, 120_000] },
      { what: 'crash', count: 4, after: [1, 100], down: [0, 20_000] },
    ],
    atLeast: { jobs: 150, gpuReleases: 100, crashes: 3, leftovers: 4, people: 3, falls: 1, hangs: 1 },
    seeds: 1,
  },
  {
    name: 'gpu-quiet',
    about: 'A day on which hardly anything happens: cards are looked at, and nothing is taken away or made anew for it.',
    with: ['gpus'],
    config: standing,
    hours: 24,
    happens: [
      { ...job, count: 8, pool: 'lab' },
      { what: 'gpu.xid', count: 2, card: [0, 5], xid: 31 },
    ],
    atLeast: { jobs: 8, gpuReleases: 8, tools: 100 },
    seeds: 0,
  },
];
