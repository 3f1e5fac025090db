import { expect, it } from 'vitest';
import type { CloudHostView } from '../api/schema.ts';
import type { CloudHost } from '../config/clouds.ts';
import { hostPlan } from '../manager/status.ts';
import type { Controller } from './controller.ts';
import { machineService } from './service.ts';

it('a host says which pools its services cannot serve, next to why it has no machine', () => {
  const host = { host: 'burst', cloud: 'aws', min: 0, max: 2, pools: [{ name: 'burst.gpu' }, { name: 'burst.cpu' }] };
  const controller = { waiting: () => 0, wanted: () => 0, reason: () => 'no g6.xlarge since 14:02', machines: () => [] };
  const held = new Map([
    ['burst.gpu', 'HTTP 401 from github.com.'],
    ['burst.cpu', null],
    ['other.gpu', 'not ours'],
  ]);
  const service = machineService([host as unknown as CloudHost], controller as unknown as Controller, held);
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
