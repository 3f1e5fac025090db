/** Buildkite by job acquisition, under everything that a host, its service, and the people of both go through. */
import { buildkiteUrl, keyFile, tokenFile } from '../buildkite.ts';
import type { Scenario } from '../scenario.ts';

const config = (agents: number, pool = '', service = '') => `secrets: { key: { file: "$DIR/${keyFile}" } }
defaults: { trust: { network: default } }
services:
  bk: { type: buildkite, mode: acquire, endpoint: "${buildkiteUrl}", token: { file: "$DIR/${tokenFile}" }, agent: { from: image }${service} }
pools:
  ci: { service: bk, queue: default, agents: ${agents}, runtime: docker, image: "debian", stop_grace: 35s${pool} }
`;
const job = { what: 'buildkite.queue', ms: [1_000, 60_000], exit: [0, 4], says: [0, 6], secret: 0.2 } as const;

export const buildkite: readonly Scenario[] = [
  {
    name: 'buildkite-kills',
    about: 'Jobs of Buildkite come while the manager is killed between any two effects.',
    config: config(3),
    hours: 0.3,
    with: ['buildkite'],
    runtime: 'docker',
    happens: [
      { ...job, count: 60 },
      { what: 'crash', count: 12, after: [1, 80], down: [0, 5_000] },
    ],
    atLeast: { bkDone: 60, bkPassed: 55, crashes: 8 },
    seeds: 6,
  },
];
