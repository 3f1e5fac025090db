/** Azure Pipelines under everything that a host, its service, and the people of both go through. */
import { azureToken, azureUrl } from '../azure.ts';
import type { Scenario } from '../scenario.ts';

const config = (agents: number, more = '') => `services:
  azure: { type: azure-pipelines, url: "${azureUrl}", token: { file: "$DIR/${azureToken}" }, poll: 5s }
pools:
  ci: { service: azure, queue: gpu, agents: ${agents}, runtime: docker, image: "agent:1", stop_grace: 35s, tags: "flavour=blue"${more} }
`;
const job = { what: 'azure.queue', ms: [1_000, 60_000], result: { oneOf: ['succeeded', 'succeeded', 'failed'] } } as const;

export const azure: readonly Scenario[] = [
  {
    name: 'azure-kills',
    about: 'Jobs of Azure Pipelines come while the manager is killed between any two effects.',
    config: config(3),
    hours: 0.3,
    with: ['azure'],
    runtime: 'docker',
    happens: [
      { ...job, count: 60 },
      { what: 'crash', count: 12, after: [1, 80], down: [0, 5_000] },
    ],
    atLeast: { azureDone: 60, crashes: 8 },
    seeds: 6,
  },
];
