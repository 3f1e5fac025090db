/** Buildkite by job acquisition, under everything that a host, its service, and the people of both go through. */
import { buildkiteUrl, keyFile, tokenFile } from '../buildkite.ts';
import type { Scenario, Wish } from '../scenario.ts';

/** `pool`: more keys of the pool; `more`: more pools, as lines. */
const config = (agents: number, pool = '', more = '') => `secrets: { key: { file: "$DIR/${keyFile}" } }
defaults: { trust: { network: default } }
services:
  bk: { type: buildkite, mode: acquire, endpoint: "${buildkiteUrl}", token: { file: "$DIR/${tokenFile}" }, agent: { from: image } }
pools:
  ci: { service: bk, queue: default, agents: ${agents}, runtime: docker, image: "debian", stop_grace: 35s${pool} }
${more}`;
const job = { what: 'buildkite.queue', ms: [1_000, 60_000], exit: [0, 4], says: [0, 6], secret: 0.2 } as const;
const crash = { what: 'crash', after: [1, 80], down: [0, 5_000] } as const;
const flakyEngine: Wish = { what: 'faults', count: 1, within: [0, 0], fails: 0.05, answerLost: 0.05, eventLost: 0.1 };
const anyOutage = { oneOf: ['refused', 'silent', 'sick'] };
const whole = { with: ['buildkite'], runtime: 'docker' } as const;

export const buildkite: readonly Scenario[] = [
  {
    ...whole,
    name: 'buildkite-kills',
    about: 'Jobs of Buildkite come while the manager is killed between any two effects, and the Engine loses answers.',
    config: config(3),
    hours: 0.3,
    calm: 0.1,
    happens: [flakyEngine, { ...job, count: 60 }, { ...crash, count: 14 }],
    atLeast: { bkDone: 60, bkPassed: 55, crashes: 8 },
    seeds: 3,
  },
  {
    ...whole,
    name: 'buildkite-each-effect',
    about: 'One job of Buildkite, and the manager is killed at its first effect, its second, and so on.',
    config: config(1),
    hours: 0.01,
    calm: 0.05,
    happens: [{ ...job, count: 1, within: [0.001, 0.002], ms: 3_000, exit: 3, says: 2 }],
    atLeast: { bkDone: 1 },
    eachEffect: 'any',
    seeds: 120,
  },
  {
    ...whole,
    name: 'buildkite-stops',
    about: 'People stop the manager in every way while it has jobs of Buildkite, some of them hurry it, and start it again.',
    config: config(3),
    hours: 0.5,
    calm: 0.1,
    happens: [
      { ...job, count: 60 },
      { what: 'stop', count: 8, how: { oneOf: ['drain', 'end', 'leave'] }, down: [0, 20_000] },
      { what: 'stop', count: 4, how: { oneOf: ['drain', 'end'] }, down: [0, 20_000], second: [0, 8_000] },
      { ...crash, count: 4 },
      { what: 'outage', of: 'engine', count: 2, ms: [0, 30_000] },
    ],
    atLeast: { bkDone: 60, bkPassed: 30, stops: 5 },
    seeds: 3,
  },
  {
    ...whole,
    name: 'buildkite-bad-days',
    about: 'The service refuses, is slow, loses answers, and is away for minutes; its clock is wrong; it loses agents and stacks.',
    config: config(4),
    hours: 2,
    calm: 0.1,
    happens: [
      { ...job, count: 120 },
      { what: 'buildkite.faults', count: 6, ms: [10_000, 300_000], fails: 0.2, lost: 0.1, slow: 0.1 },
      { what: 'buildkite.outage', count: 6, ms: [1_000, 900_000], how: anyOutage },
      { what: 'buildkite.outage', count: 4, ms: [1_000, 600_000], how: anyOutage, network: true },
      { what: 'buildkite.lose', count: 3, pick: [0, 1_000] },
      { what: 'buildkite.unstack', count: 2 },
      { what: 'buildkite.skew', count: 1, ms: [-7_200_000, 7_200_000] },
      { ...crash, count: 8 },
    ],
    atLeast: { bkDone: 120, bkPassed: 70, bkOutages: 4, bkFaults: 20 },
    seeds: 3,
  },
  {
    ...whole,
    name: 'buildkite-tokens',
    about: 'The token is revoked and replaced while jobs run, wait and are reserved, and queues are paused.',
    config: config(3),
    hours: 3,
    calm: 0.1,
    happens: [
      { ...job, count: 80 },
      { what: 'buildkite.token', count: 4, ms: [1_000, 1_200_000] },
      { what: 'buildkite.pause', count: 4, ms: [1_000, 600_000] },
      { ...crash, count: 6 },
    ],
    atLeast: { bkDone: 80, bkPassed: 75, bkTokens: 1, bkPauses: 4 },
    seeds: 2,
  },
  {
    ...whole,
    name: 'buildkite-agents',
    about: 'Agents never call in, end at once, die with their jobs, stay after them, and do not hear that they should end.',
    config: config(4),
    hours: 1,
    calm: 0.1,
    happens: [
      {
        ...job,
        count: 40,
        bad: { oneOf: [null, 'dies', 'vanishes', 'lingers', 'deaf'] },
        cancelAfter: { oneOf: [null, null, [0, 90_000]] },
      },
      { ...job, count: 20, habits: { oneOf: [['silent'], ['ends'], ['ends', 'silent'], ['ends', 'ends', 'ends', 'ends']] } },
      { what: 'buildkite.fault', count: 10, route: 'jobs/:id/acquire', fault: { kind: 'error', status: 422 } },
      { ...crash, count: 8 },
      { what: 'outage', of: 'engine', count: 2, ms: [0, 30_000] },
    ],
    atLeast: { bkDone: 60, bkPassed: 15, bkRefused: 1, bkTried: 5 },
    seeds: 3,
  },
  {
    ...whole,
    name: 'buildkite-cancels',
    about: 'Jobs of Buildkite are cancelled at every step: before they are reserved, while their sandbox is made, while they run.',
    config: config(3, ', standby: false, timeout: 50s'),
    hours: 0.5,
    calm: 0.1,
    happens: [
      { ...job, count: 80, ms: [1_000, 30_000], cancelAfter: [0, 25_000] },
      { ...job, count: 10, ms: [60_000, 100_000] },
      { ...crash, count: 8 },
    ],
    atLeast: { bkDone: 90, bkCancelled: 20, bkTimedOut: 3 },
    seeds: 3,
  },
  {
    ...whole,
    name: 'buildkite-forks',
    about: 'Jobs of forks are refused before there is a sandbox; the others have their secrets.',
    config: config(3, ', trust: { forks: refuse }'),
    hours: 0.5,
    calm: 0.1,
    happens: [
      { ...job, count: 80, fork: 0.3, secret: 0.5 },
      { ...crash, count: 8 },
    ],
    atLeast: { bkDone: 80, bkRefused: 10, bkSecrets: 10 },
    seeds: 2,
  },
  {
    ...whole,
    name: 'buildkite-untrusted',
    about: 'Jobs of forks run without secrets, in sandboxes of their own kind.',
    config: config(3, ', trust: { forks: run-without-secrets }'),
    hours: 0.5,
    calm: 0.1,
    happens: [
      { ...job, count: 80, fork: 0.3, secret: 0.5 },
      { ...crash, count: 8 },
    ],
    atLeast: { bkDone: 80, bkPassed: 75, bkForks: 10, bkSecrets: 10 },
    seeds: 2,
  },
  {
    ...whole,
    name: 'buildkite-rivals',
    about: 'Other hosts reserve jobs, forget them, and take those that are reserved here.',
    config: config(3),
    hours: 0.5,
    calm: 0.1,
    happens: [
      { ...job, count: 80 },
      { ...job, count: 40, within: [0.2, 0.21] },
      {
        what: 'buildkite.rival',
        count: 60,
        pick: [0, 1_000],
        how: { oneOf: ['reserves', 'forgets', 'steals'] },
        ms: [1_000, 60_000],
      },
      { ...crash, count: 8 },
    ],
    atLeast: { bkDone: 120, bkRivals: 5 },
    seeds: 3,
  },
  {
    ...whole,
    name: 'buildkite-tags',
    about: 'Two pools of one queue and one of another: each job runs where its tags fit, or nowhere; the important ones first.',
    config: config(
      2,
      ', tags: "os=linux"',
      `  big: { service: bk, queue: default, agents: 1, runtime: docker, image: "debian", tags: "gpu=a100,cuda=12,cuda=13" }
  slow: { service: bk, queue: slow, agents: 1, runtime: docker, image: "debian" }
`,
    ),
    hours: 0.5,
    calm: 0.1,
    happens: [
      { ...job, count: 40, priority: [-2, 3] },
      { ...job, count: 20, rules: { oneOf: [['gpu=a100'], ['cuda=*'], ['gpu=a100', 'cuda=12'], ['os=linux']] } },
      { ...job, count: 10, queue: 'slow' },
      { ...job, count: 5, rules: { oneOf: [['gpu=h100'], ['gpu=a100', 'os=linux'], ['other=*']] }, fits: 0 },
      { ...crash, count: 8 },
    ],
    atLeast: { bkDone: 70, bkPassed: 70, bkStrange: 5 },
    seeds: 2,
  },
  {
    ...whole,
    name: 'buildkite-two-hundred',
    about: 'Two hundred jobs, a quarter of them of forks, through faults of the service and the Engine, kills, stops and outages.',
    config: config(
      6,
      ', trust: { forks: run-without-secrets }',
      '  cold: { service: bk, queue: cold, agents: 2, runtime: docker, image: "debian", standby: false }\n',
    ),
    hours: 1,
    calm: 0.1,
    happens: [
      flakyEngine,
      { ...job, count: 160, fork: 0.25 },
      { ...job, count: 40, fork: 0.25, queue: 'cold', bad: { oneOf: [null, null, 'dies', 'vanishes', 'lingers'] } },
      { what: 'buildkite.faults', count: 1, within: [0, 0], fails: 0.03, lost: 0.02, slow: 0.02 },
      { what: 'buildkite.outage', count: 2, ms: [1_000, 120_000], how: anyOutage },
      { what: 'buildkite.cancel', count: 10, pick: [0, 1_000] },
      { what: 'outage', of: 'engine', count: 3, ms: [0, 60_000] },
      { what: 'stop', count: 3, how: { oneOf: ['drain', 'leave'] }, down: [0, 10_000] },
      { ...crash, count: 20 },
    ],
    atLeast: { bkDone: 200, bkPassed: 140, crashes: 12, bkFaults: 50 },
    seeds: 3,
  },
  {
    ...whole,
    name: 'buildkite-engine',
    about: 'The Engine refuses a fifth of all calls and is away now and then, while each sandbox is made for its job.',
    config: config(3, ', standby: false'),
    hours: 0.5,
    calm: 0.1,
    happens: [
      { ...flakyEngine, fails: 0.2, answerLost: 0.1, eventLost: 0.2 },
      { ...job, count: 60 },
      { what: 'outage', of: 'engine', count: 6, ms: [0, 120_000] },
      { ...crash, count: 4 },
    ],
    atLeast: { bkDone: 60, bkPassed: 55, engineOutages: 3 },
    seeds: 3,
  },
  {
    ...whole,
    name: 'buildkite-hours',
    about: 'The service, the network to it, and the Engine are away for an hour each, at every phase of jobs.',
    config: config(3),
    hours: 12,
    calm: 0.1,
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
      { what: 'buildkite.outage', count: 3, ms: 3_600_000, how: anyOutage },
      { what: 'buildkite.outage', count: 2, ms: 3_600_000, how: anyOutage, network: true },
      { what: 'outage', of: 'engine', count: 2, ms: 3_600_000 },
      { ...crash, count: 6, down: [0, 600_000] },
    ],
    atLeast: { bkDone: 120, bkOutages: 3, engineOutages: 1 },
    seeds: 1,
  },
];
