/** Which services are opened. */
import { writeFileSync } from 'node:fs';
import { PassThrough } from 'node:stream';
import { expect, it } from 'vitest';
import { testConfig, testPool } from '../../test/kit/buildkite-manager.ts';
import { scratch } from '../../test/support/scratch.ts';
import { createLog } from '../base/log.ts';
import { emptySlot, type Slot } from '../core/slot.ts';
import { openStore } from '../store/store.ts';
import { systemClock } from '../system/system-clock.ts';
import type { AzureServiceConfig } from './azure-pipelines/type.ts';
import { createCiServices } from './index.ts';
import type { CiParts } from './parts.ts';

it('opens a service that no pool uses only while it has something to take back', async () => {
  using dir = scratch();
  const store = openStore(dir.path);
  const azure: AzureServiceConfig = {
    name: 'azure',
    type: 'azure-pipelines',
    url: 'https://dev.azure.com/acme',
    credential: { kind: 'pat', token: { kind: 'file', path: `${dir.path}/pat`, expires: null } },
    registration: 'manager',
    pollEvery: 10_000,
    bootTimeout: 180_000,
    agentPackage: { version: null, from: null, sha256: null },
  };
  const parts: CiParts = {
    config: { pools: [], services: [azure] } as unknown as CiParts['config'],
    store,
    clock: systemClock,
    log: createLog({ json: true, stream: new PassThrough() }),
    onejob: { version: '0.0.0', self: [] },
    slots: {
      poolOf: () => null,
      silentFor: () => null,
      isBusy: () => false,
      sizeOf: () => 0,
      jobsOf: () => [],
      agentOf: () => null,
      reasonFor: () => null,
    },
  };
  expect([...(await createCiServices(parts)).byName.keys()]).toEqual(['own']);
  store.registrations.intend({ agent: 'a1', service: 'azure', place: '1', name: 'box-1', placeholder: true }, 1);
  expect([...(await createCiServices(parts)).byName.keys()]).toEqual(['own', 'azure']);
  store.registrations.removed('a1', 2);
  expect([...(await createCiServices(parts)).byName.keys()]).toEqual(['own']);
  store.close();
});

it('opens a service that no pool uses while something of its own is in a slot', async () => {
  using dir = scratch();
  const store = openStore(dir.path);
  const parts: CiParts = {
    config: { pools: [], services: [testConfig()], host: 'box' } as unknown as CiParts['config'],
    store,
    clock: systemClock,
    log: createLog({ json: true, stream: new PassThrough() }),
    onejob: { version: '0.0.0', self: [] },
    slots: {
      poolOf: () => null,
      silentFor: () => null,
      isBusy: () => false,
      sizeOf: () => 0,
      jobsOf: () => [],
      agentOf: () => null,
      reasonFor: () => null,
    },
  };
  const empty = emptySlot({ key: 'ci/1', runtime: 'docker', service: 'bk', grace: 0 });
  const save = (slot: Slot) => store.transaction({ durable: false }, () => store.slots.save(slot));
  save(empty);
  expect([...(await createCiServices(parts)).byName.keys()]).toEqual(['own']);
  save({ ...empty, agent: { kind: 'busy', agent: 'a1', job: 'job-1', since: 0, due: null } });
  expect([...(await createCiServices(parts)).byName.keys()]).toEqual(['own', 'bk']);
  store.close();
});

it('tells how each call of a service ended', async () => {
  using dir = scratch();
  const store = openStore(dir.path);
  const told: string[] = [];
  writeFileSync(`${dir.path}/token`, 'token');
  const config = testConfig({ token: { kind: 'file', path: `${dir.path}/token`, expires: null } });
  const services = await createCiServices({
    config: { pools: [testPool()], services: [config], host: 'box' } as unknown as CiParts['config'],
    store,
    clock: systemClock,
    log: createLog({ json: true, stream: new PassThrough() }),
    onejob: { version: '0.0.0', self: [] },
    slots: {
      poolOf: () => null,
      silentFor: () => null,
      isBusy: () => false,
      sizeOf: () => 0,
      jobsOf: () => [],
      agentOf: () => null,
      reasonFor: () => null,
    },
    fetch: async () => new Response('{}', { status: 401 }),
    called: (service, result) => told.push(`${service} ${result}`),
  });
  await services.byName.get('bk')?.check(new AbortController().signal, { like: () => null });
  expect(new Set(told)).toEqual(new Set(['bk denied']));
  await services.byName.get('bk')?.close?.(false);
  store.close();
});
