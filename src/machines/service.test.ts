import { expect, it } from 'vitest';
import { type Finding, fine, problem, warning } from '../base/finding.ts';
import type { CloudHost } from '../config/config.ts';
import type { CloudHostView } from '../contract/schema.ts';
import { hostPlan } from '../manager/status.ts';
import type { Cloud } from '../ports/cloud.ts';
import type { Machine } from '../store/machine.ts';
import type { Controller } from './controller.ts';
import { machineService } from './service.ts';

it('a host says which pools its services cannot serve, next to why it has no machine', () => {
  const host = { host: 'burst', cloud: 'aws', min: 0, max: 2, pools: [{ name: 'burst.gpu' }, { name: 'burst.cpu' }] };
  const controller = {
    waiting: () => 0,
    wanted: () => 0,
    reason: () => 'no g6.xlarge since 14:02',
    refusal: () => null,
    machines: () => [],
  };
  const held = new Map([
    ['burst.gpu', 'HTTP 401 from github.com.'],
    ['burst.cpu', null],
    ['other.gpu', 'not ours'],
  ]);
  const service = machineService([host as unknown as CloudHost], new Map(), controller as unknown as Controller, held);
  const said = 'jobs of burst.gpu are not known: HTTP 401 from github.com';
  expect(service.hosts()).toMatchObject([{ host: 'burst', held: [said], reason: 'no g6.xlarge since 14:02' }]);
  expect(hostPlan(service.hosts())).toEqual([
    { slot: 'burst', intent: 'nothing yet', because: 'no g6.xlarge since 14:02' },
    { slot: 'burst', intent: 'nothing yet', because: said },
  ]);
});

it('a plan says in words what a machine that has not joined waits for', () => {
  const machine = { run: 'onejob-1', state: 'intent', why: null };
  const host = { host: 'burst', machines: [machine, { ...machine, state: 'booting' }], reason: null, held: [] };
  expect(hostPlan([host as unknown as CloudHostView]).map(({ because }) => because)).toEqual(['the cloud makes it', 'it boots']);
});

const machine: Machine = {
  run: 'onejob-00000000000000aa',
  owner: 'ours',
  cloud: 'aws',
  host: 'burst',
  token: '',
  by: 'test',
  price: null,
  offer: { type: 'big', spot: false, zone: 'a' },
  born: 0,
  expires: 3600,
  state: 'joined',
  since: 0,
  made: null,
  end: null,
  why: null,
  isFailure: false,
  joinedAt: null,
  stage: null,
  items: [],
  absent: [],
  seenAt: null,
  tokenHash: '',
  credentialHash: null,
  console: null,
  registrations: null,
};

/** What `up` of a host does whose check finds this. `there`: states of machines that it has. */
async function up(findings: readonly Finding[], there: readonly Machine['state'][] = []) {
  const told: string[] = [];
  const host = { host: 'burst', cloud: 'aws', min: 0, max: 2, pools: [], image: null } as unknown as CloudHost;
  const controller = {
    waiting: () => 0,
    wanted: () => 0,
    reason: () => null,
    refusal: () => null,
    reports: () => new Map(),
    nowOf: () => 0,
    machines: () => there.map((state): Machine => ({ ...machine, state })),
    up: () => void told.push('made'),
  };
  const cloud = {
    usualImage: { from: 'auto', has: 'everything' },
    async preflight(plan: { image: { from: string } }) {
      told.push(`checked ${plan.image.from}`);
      return findings;
    },
  };
  const clouds = new Map([['aws', { cloud: cloud as unknown as Cloud }]]);
  const service = machineService([host], clouds, controller as unknown as Controller, new Map());
  const error: unknown = await service.up('burst', 1000, new AbortController().signal).catch((why: unknown) => why);
  return { told, error };
}

it('up makes the check of "cloud check" first, and nothing if that finds what does not pass', async () => {
  const denied = problem('aws: permissions', 'AWS refuses ec2:RunInstances.', 'Attach the policy.');
  const refused = await up([fine('aws: credential', 'It is fine.'), denied]);
  expect(refused.told).toEqual(['checked auto']);
  expect(refused.error).toMatchObject({
    code: 'E_CLOUD_CHECK',
    message: `Cannot make a machine of burst: the check of cloud aws found one error.
  aws: permissions: AWS refuses ec2:RunInstances. Attach the policy.`,
    hint: 'Nothing was made. "onejob cloud check burst" shows everything that it looks at.',
  });
  const many = await up(Array.from({ length: 7 }, () => denied));
  expect((many.error as Error).message).toMatch(/found 7 errors\.\n(.*\n){5} {2}and 2 more$/);
  const passing = { ...problem('aws: types', 'Cannot ask: no answer.'), mayPass: true };
  expect((await up([passing, warning('aws: price', 'It is unknown.')])).told).toEqual(['checked auto', 'made']);
});

it('up asks nothing of the cloud where a machine works or comes', async () => {
  const denied = problem('aws: quota', 'It is used up.');
  expect((await up([denied], ['ending'])).told).toEqual(['checked auto']);
  for (const state of ['intent', 'booting', 'joined'] as const) expect((await up([denied], [state])).told).toEqual(['made']);
});
