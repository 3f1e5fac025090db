import { afterEach, beforeEach, expect, test } from 'vitest';
import { eachScratch } from '../../../test/support/each-scratch.ts';
import { OnejobError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { openStore, type Store } from '../../store/store.ts';
import { systemClock } from '../../system/system-clock.ts';
import { forgetServices, tellLeft } from './shutdown.ts';

const dir = eachScratch();
let store: Store;
beforeEach(() => {
  store = openStore(dir.path);
});
afterEach(() => store.close());

const log = { info() {}, warn() {} } as unknown as Log;
const write = (change: () => void): void => store.transaction({ durable: false }, change);

function registered(service: string, agent: string, placeholder = true): void {
  write(() => {
    store.registrations.intend({ agent, service, place: '1', name: `name-${agent}`, placeholder }, 1);
    store.registrations.made(agent, agent, 2);
  });
}

/** Forgets its placeholders, as a service does. */
const service = (name: string, failure: Error | null = null) => ({
  name,
  async forget() {
    if (failure !== null) throw failure;
    for (const { agent, placeholder } of store.registrations.open(name))
      if (placeholder) write(() => store.registrations.removed(agent, 3));
  },
});
const forget = (services: ReturnType<typeof service>[], instead: string | null = null) =>
  forgetServices({ services, registrations: store.registrations, clock: systemClock, log }, instead);

test('placeholders are removed, each service says which', async () => {
  registered('azure', 'p1');
  registered('azure', 'p2');
  expect(await forget([service('azure'), service('other')])).toEqual([
    { service: 'azure', removed: ['name-p1', 'name-p2'], left: [], problem: null },
    { service: 'other', removed: [], left: [], problem: null },
  ]);
});

test('a service that is away keeps them, which is reported, and the others continue', async () => {
  registered('azure', 'p1');
  registered('other', 'p2');
  const away = new OnejobError('E_CI_UNREACHABLE', 'Cannot reach https://azure.', { retry: true, hint: 'onejob tries again.' });
  expect(await forget([service('azure', away), service('other')])).toEqual([
    { service: 'azure', removed: [], left: ['name-p1'], problem: 'Cannot reach https://azure.' },
    { service: 'other', removed: ['name-p2'], left: [], problem: null },
  ]);
});

test('an agent that the service does not give up yet is not reported as gone', async () => {
  registered('azure', 'p1');
  registered('azure', 'a1', false);
  expect(await forget([service('azure')])).toEqual([
    { service: 'azure', removed: ['name-p1'], left: ['name-a1'], problem: 'the service has not removed them yet' },
  ]);
});

test('a service that left the config is named with what it still has', async () => {
  registered('old', 'p1');
  expect(await forget([])).toEqual([
    { service: 'old', removed: [], left: ['name-p1'], problem: 'no pool of the config uses the service "old" any more' },
  ]);
});

test('nothing is touched where agents were left', async () => {
  registered('azure', 'p1');
  expect(await forget([service('azure')], 'agents were left')).toEqual([
    { service: 'azure', removed: [], left: ['name-p1'], problem: 'agents were left' },
  ]);
});

test('at its end a manager logs the agents that services still list, but no placeholders', () => {
  registered('azure', 'p1');
  registered('azure', 'a1', false);
  registered('other', 'p2');
  const said: unknown[] = [];
  const loud = { ...log, warn: (_: string, fields: unknown) => said.push(fields) } as unknown as Log;
  tellLeft({ registrations: store.registrations, log: loud });
  expect(said).toEqual([{ service: 'azure', left: ['name-a1'] }]);
});
