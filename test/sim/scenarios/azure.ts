/** Azure Pipelines under everything that a host, its service, and the people of both go through. */
import { azureToken, azureUrl } from '../azure.ts';
import type { Scenario } from '../scenario.ts';

const config = (agents: number, more = '', service = 'poll: 10s') => `services:
  azure: { type: azure-pipelines, url: "${azureUrl}", token: { file: "$DIR/${azureToken}" }, ${service} }
pools:
  ci: { service: azure, queue: gpu, agents: ${agents}, runtime: docker, image: "agent:1", stop_grace: 35s, tags: "flavour=blue"${more} }
`;
/** A second pool of the same agent pool, whose agents say something else. */
const two = `${config(2)}  red: { service: azure, queue: gpu, agents: 2, runtime: docker, image: "agent:1", stop_grace: 35s, tags: "flavour=red,big" }
`;
const azureHost = { runtime: 'docker', with: ['azure'], calm: 0.2 } as const;
const mostlyGood = { oneOf: ['succeeded', 'succeeded', 'failed'] } as const;
const job = { what: 'azure.queue', ms: [1_000, 60_000], result: mostlyGood } as const;
/** What an agent of the first pool says: by its tags, its environment, its image, by itself, and all of that together. */
const demands = {
  oneOf: [
    ['flavour -equals blue'],
    ['MARK -equals yes', 'flavour'],
    ['git', 'Agent.OS -equals Linux'],
    ['Agent.Version -gtVersion 2.182.1'],
    ['onejob.pool -equals ci', 'flavour -equals blue', 'MARK', 'sh', 'Agent.OSArchitecture'],
    [],
  ],
} as const;
const kill = { what: 'crash', after: [1, 120], down: [0, 5_000] } as const;
const anyOutage = { what: 'azure.outage', how: { oneOf: ['refused', 'silent', 'sick'] } } as const;

export const azure: readonly Scenario[] = [
  {
    ...azureHost,
    name: 'azure-kills',
    about: 'Jobs of Azure Pipelines come while the manager is killed between any two effects.',
    config: config(3),
    hours: 0.3,
    happens: [
      { ...job, count: 60 },
      { ...kill, count: 12 },
    ],
    atLeast: { azureDone: 60, crashes: 8 },
    seeds: 3,
  },
  {
    ...azureHost,
    name: 'azure-each-effect',
    about: 'One job of Azure Pipelines, and the manager is killed at one of its effects until the job has ended.',
    config: config(1),
    hours: 0.02,
    happens: [
      { what: 'azure.queue', count: 1, within: [0.003, 0.004], ms: 8_000, result: 'succeeded' },
      { what: 'crash', count: 1, within: [0, 0], after: [1, 300] },
    ],
    atLeast: { azureDone: 1 },
    seeds: 30,
  },
  {
    ...azureHost,
    name: 'azure-stops',
    about: 'People stop the manager in every way, pause and drain it, while jobs wait, are on their way to agents, run and end.',
    config: config(2),
    hours: 1,
    happens: [
      { ...job, count: 80, demands },
      { what: 'stop', count: 8, how: { oneOf: ['drain', 'end', 'leave'] }, down: [0, 60_000] },
      { what: 'stop', count: 3, how: { oneOf: ['drain', 'end'] }, down: [0, 20_000], second: [0, 40_000] },
      { what: 'hold', count: 5, how: { oneOf: ['pause', 'drain'] }, ms: [1_000, 600_000] },
      { ...kill, count: 4 },
    ],
    atLeast: { azureDone: 80, stops: 6, holds: 5, azureStops: 2 },
    seeds: 4,
  },
  {
    ...azureHost,
    name: 'azure-bad-days',
    about: 'Azure DevOps is away for moments and for an hour, answers get lost, come late, half, or are not its own.',
    config: config(4),
    hours: 6,
    happens: [
      { ...job, count: 60 },
      { ...job, count: 12, ms: [300_000, 3_600_000] },
      { ...anyOutage, count: 2, ms: 3_600_000 },
      { ...anyOutage, count: 14, ms: [1_000, 240_000] },
      { what: 'azure.outage', count: 4, ms: [1_000, 600_000], network: true },
      { what: 'azure.faults', count: 8, ms: 600_000, fails: 0.1, lost: 0.1, slow: 0.05 },
      { ...kill, count: 6, down: [0, 300_000] },
    ],
    atLeast: { azureDone: 72, azureOutages: 8, azureFaults: 40 },
    seeds: 2,
  },
  {
    ...azureHost,
    name: 'azure-network',
    about: 'The network is away for longer than sessions last, just when jobs are given to agents, which never hear of them.',
    config: config(3),
    hours: 3,
    happens: [
      { ...job, count: 60 },
      { what: 'azure.outage', count: 8, ms: [240_000, 900_000], network: true, how: { oneOf: ['refused', 'silent'] } },
      { ...kill, count: 3 },
    ],
    atLeast: { azureDone: 60, azureOutages: 4, azureDisturbed: 1 },
    seeds: 3,
  },
  {
    ...azureHost,
    name: 'azure-lost-answers',
    about: 'Each request that changes something is answered into the void now and then, and the manager is killed with it.',
    config: config(3),
    hours: 0.5,
    happens: [
      { ...job, count: 80 },
      { what: 'azure.faults', count: 1, within: [0, 0], who: 'managers', fails: 0.05, lost: 0.15, slow: 0.02 },
      { what: 'crash', count: 10, of: 'service', after: [1, 30], down: [0, 5_000] },
    ],
    atLeast: { azureDone: 80, azureFaults: 30, crashes: 6 },
    seeds: 4,
  },
  {
    ...azureHost,
    name: 'azure-token',
    about: 'The token is refused at the start and in the middle of a day, or may not manage the pool, and is replaced hours later.',
    config: config(2),
    hours: 8,
    happens: [
      { ...job, count: 60, ms: [1_000, 1_200_000] },
      { what: 'azure.token', count: 1, within: [0, 0], ms: [1_000, 1_800_000] },
      { what: 'azure.token', count: 3, ms: [10_000, 3_600_000] },
      { what: 'azure.rights', count: 2, ms: [10_000, 3_600_000] },
      { ...kill, count: 3, down: [0, 60_000] },
      { what: 'stop', count: 1, how: 'leave', down: [0, 60_000] },
    ],
    atLeast: { azureDone: 60, azureTokens: 3, azureRights: 1 },
    seeds: 1,
  },
  {
    ...azureHost,
    name: 'azure-bad-agents',
    about: 'Agents never come online, end at once, are late; die with their job, vanish, hang, linger, do not hear TERM.',
    config: config(3),
    hours: 6,
    happens: [
      { ...job, count: 80 },
      { ...job, count: 24, bad: { oneOf: ['crash', 'vanish', 'hang', 'linger', 'deaf'] } },
      { what: 'azure.agents', count: 3, ms: 1_200_000, never: 0.2, ends: 0.2, slow: 0.2 },
      { what: 'azure.agents', count: 1, ms: 1_800_000, never: 0, ends: 1, slow: 0 },
      { what: 'azure.update', count: 1, ms: 1_800_000 },
      { what: 'azure.requeue', count: 1 },
      { what: 'azure.second', count: 2, ms: 120_000 },
      { ...kill, count: 4 },
      { what: 'stop', count: 2, how: { oneOf: ['drain', 'end'] }, down: [0, 20_000] },
    ],
    atLeast: { azureDone: 104, azureAbandoned: 5 },
    seeds: 2,
  },
  {
    ...azureHost,
    name: 'azure-placeholder',
    about:
      '200 jobs with all kinds of demands come to a pool whose only agent comes and goes, and has another image for a while: none fails for want of an agent.',
    config: config(1),
    hours: 2,
    happens: [
      { ...job, count: 200, ms: [500, 20_000], demands },
      { what: 'stop', count: 6, how: { oneOf: ['drain', 'end', 'leave'] }, down: [0, 120_000] },
      { ...kill, count: 8, down: [0, 60_000] },
      { what: 'hold', count: 4, how: { oneOf: ['pause', 'drain'] }, ms: [1_000, 300_000] },
      { what: 'configure', count: 1, within: [0.3, 0.6], from: 'agent:1', to: 'agent:2' },
      { what: 'configure', count: 1, within: [1.3, 1.6], from: 'agent:2', to: 'agent:1' },
      { what: 'azure.faults', count: 2, ms: 300_000, who: 'managers', fails: 0.1, lost: 0.1, slow: 0 },
    ],
    atLeast: { azureDone: 200, crashes: 6, stops: 4, holds: 3, azureOtherImage: 10 },
    seeds: 2,
  },
  {
    ...azureHost,
    name: 'azure-two-hundred',
    about:
      'Two pools run 200 jobs through kills, faults of the service and agents that die with their job; nothing is lost or left.',
    config: two,
    hours: 2,
    happens: [
      { ...job, count: 130 },
      { ...job, count: 60, demands: { oneOf: [['big'], ['flavour -equals red']] } },
      { ...job, count: 10, bad: { oneOf: ['crash', 'vanish'] } },
      { what: 'azure.faults', count: 6, ms: 300_000, fails: 0.05, lost: 0.05, slow: 0.02 },
      { what: 'faults', count: 4, ms: 300_000, fails: 0.05, answerLost: 0.05, eventLost: 0.05 },
      { what: 'outage', of: 'engine', count: 3, ms: [1_000, 60_000] },
      { ...kill, count: 12 },
    ],
    atLeast: { azureDone: 200, azureFaults: 20, crashes: 8 },
    seeds: 2,
  },
  {
    ...azureHost,
    name: 'azure-renewals',
    about: 'Agents are made anew every minute or two, and jobs come just as somebody looks whether they have one.',
    config: config(3, ', standby_max_age: 1m'),
    hours: 1,
    calm: 0,
    happens: [
      { ...job, count: 60, ms: [1_000, 20_000] },
      { ...job, count: 60, what: 'azure.trap', ms: [1_000, 20_000] },
      { ...kill, count: 2 },
    ],
    atLeast: { azureDone: 80, azureAgents: 150 },
    seeds: 1,
  },
  {
    ...azureHost,
    name: 'azure-late-agents',
    about: 'The network is away for minutes while agents begin, so that they come online late: none is given up for that.',
    config: config(4, '', 'poll: 10s, boot_timeout: 120s'),
    hours: 2,
    happens: [
      { ...job, count: 120, ms: [1_000, 10_000] },
      { what: 'azure.agents', count: 1, within: [0, 0], ms: 7_200_000, slow: 0.5 },
      { what: 'azure.outage', count: 20, ms: [130_000, 200_000], network: true, how: { oneOf: ['refused', 'silent', 'sick'] } },
    ],
    atLeast: { azureDone: 120, azureOutages: 8 },
    seeds: 1,
  },
  {
    ...azureHost,
    name: 'azure-people',
    about: 'People cancel jobs, delete, disable and update agents at the service, and delete the placeholder.',
    config: config(3),
    hours: 4,
    happens: [
      { ...job, count: 120, ms: [1_000, 120_000] },
      { what: 'azure.cancel', count: 30, pick: [0, 1_000] },
      { what: 'azure.delete', count: 8, pick: [0, 1_000] },
      { what: 'azure.disable', count: 8, pick: [0, 1_000], ms: [1_000, 300_000] },
      { what: 'azure.update', count: 2, ms: [10_000, 300_000] },
      { what: 'azure.unplace', count: 2, pick: [0, 1_000] },
      { ...kill, count: 4 },
    ],
    atLeast: { azureDone: 120, azureCancelled: 2, azurePeople: 10 },
    seeds: 2,
  },
  {
    ...azureHost,
    name: 'azure-day',
    about:
      'A day of a host with 18 agents of Azure Pipelines: hundreds of jobs, a few restarts, short outages, a cancelled job or two.',
    config: config(18, '', 'poll: 30s'),
    hours: 24,
    happens: [
      { what: 'azure.pace', count: 1, within: [0, 0], ms: 240_000 },
      { ...job, count: 500, ms: [1_000, 900_000], demands },
      { what: 'azure.cancel', count: 10, pick: [0, 1_000] },
      { ...anyOutage, count: 6, ms: [1_000, 120_000] },
      { what: 'azure.faults', count: 6, ms: 600_000, fails: 0.02, lost: 0.02, slow: 0.01 },
      { what: 'outage', of: 'engine', count: 3, ms: [1_000, 120_000] },
      { what: 'stop', count: 1, how: { oneOf: ['leave', 'drain'] }, down: [1_000, 60_000] },
      { ...kill, count: 3, down: [0, 60_000] },
    ],
    atLeast: { azureDone: 500, azureOutages: 4 },
    seeds: 0,
  },
];
