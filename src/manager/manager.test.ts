/** The manager as the API sees it; only its own parts. */

import { expect, test } from 'vitest';
import { handClock } from '../../test/kit/core.ts';
import { createChanges } from '../contract/changes.ts';
import { jobRequest } from '../contract/job.ts';
import { Pause } from './loop/pause.ts';
import { createManager, type ManagerParts } from './manager.ts';

const patient = new AbortController().signal;

/** A manager without pools, runtimes and CI services, as it is in its first moments; `ending`: as in its last ones. */
function starting(ending = false, { all = [] as readonly object[], findings = (): readonly object[] => [] } = {}) {
  const clock = handClock();
  const pause = new Pause();
  pause.hold('starting', 'onejob is starting');
  const { promise: started, resolve } = Promise.withResolvers<void>();
  const parts = {
    services: [],
    host: { configChanged: async () => null, findings, conditions: () => [], hostFindings: async () => [] },
    queue: { check: async () => [], submit: () => 'taken' },
    store: { registrations: { services: () => [] } },
    facts: {},
    loop: { reconciler: { pause, pools: [], slots: [] }, observer: {}, deviceManager: null, runtimes: { all } },
    shutdown: { clients: () => {}, isEnding: ending },
    started,
    clock,
    changes: createChanges(),
  } as unknown as ManagerParts;
  const start = (): void => {
    pause.release('starting');
    resolve();
  };
  return { manager: createManager(parts), start, clock };
}

const starts = {
  level: 'warning',
  subject: 'this host',
  message: 'Nothing new starts: onejob is starting.',
  hint: null,
  code: 'pool-paused',
};

test('doctor waits for a start in progress instead of warning about it', async () => {
  const { manager, start, clock } = starting();
  const found = manager.doctor(patient);
  start();
  expect(await found).toEqual([]);
  expect(clock.next()).toBeNull();
});

test('a slow start is reported', async () => {
  const { manager, clock } = starting();
  const found = manager.doctor(patient);
  clock.advance(5_000);
  expect(await found).toEqual([starts]);
});

test('a caller that leaves is not kept', async () => {
  await expect(starting().manager.doctor(AbortSignal.abort())).rejects.toThrow(/abort/);
});

test('a manager that is ending accepts no clients and no jobs, even while its agents run', () => {
  const { manager } = starting(true);
  const request = jobRequest.parse({ command: ['true'] });
  const refusal = expect.objectContaining({ code: 'E_DAEMON_STOPPING' });
  expect(() => manager.hold()).toThrow(refusal);
  expect(() => manager.submit(request)).toThrow(refusal);
  const other = starting().manager;
  expect(other.submit(request)).toBe('taken');
  other.hold()();
});

test('doctor does not approve the choice of a runtime that cannot be used now', async () => {
  const check = async () => [{ level: 'error', subject: 'docker', message: 'the socket does not exist', hint: null } as const];
  const findings = () => [{ level: 'ok', subject: 'runtime', message: 'docker, because it answers', hint: null } as const];
  const { manager, start } = starting(false, { all: [{ name: 'docker', check }], findings });
  start();
  expect((await manager.doctor(patient)).map(({ level, subject, code }) => `${level} ${subject}: ${code}`)).toEqual([
    'error docker: runtime',
  ]);
});
