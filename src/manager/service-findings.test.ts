import { setImmediate as turn } from 'node:timers/promises';
import { beforeEach, expect, test } from 'vitest';
import { type HandClock, handClock } from '../../test/kit/core.ts';
import { OnejobError } from '../base/errors.ts';
import type { FindingView } from '../contract/schema.ts';
import type { StoredRegistration } from '../store/registrations.ts';
import { serviceFindings } from './findings.ts';

let clock: HandClock;
let open: Record<string, string[]>;
beforeEach(() => {
  clock = handClock();
  open = {};
});

type Check = (signal: AbortSignal) => Promise<FindingView[]>;
const ok: FindingView = { level: 'ok', subject: 'service b', message: 'Answers.', hint: null, code: 'service' };

function ask(services: Record<string, Check>, signal = new AbortController().signal): Promise<FindingView[]> {
  const registrations = {
    services: () => Object.keys(open),
    open: (name: string) => (open[name] ?? []).map((one) => ({ name: one }) as StoredRegistration),
  };
  const all = Object.entries(services).map(([name, check]) => ({ name, check }));
  return serviceFindings({ services: all, registrations, clock, diagnostics: { like: () => null } }, signal);
}

test('a silent service is given up, and the others are reported', async () => {
  let asked: AbortSignal | null = null;
  const silent: Check = (signal) => {
    asked = signal;
    return new Promise(() => {});
  };
  const found = ask({ a: silent, b: async () => [ok] });
  await turn();
  clock.advance(30_000);
  expect(await found).toEqual([
    expect.objectContaining({ level: 'error', subject: 'service a', message: expect.stringContaining('30 s') }),
    ok,
  ]);
  expect(asked).toMatchObject({ aborted: true });
});

test('a failing service is reported with the reason, and no timer is left', async () => {
  const failing: Check = async () => {
    throw new OnejobError('E_CI_CREDENTIAL', 'The token was refused.', { hint: 'Make another.' });
  };
  expect(await ask({ a: failing })).toEqual([
    { level: 'error', subject: 'service a', message: 'The token was refused.', hint: 'Make another.', code: 'E_CI_CREDENTIAL' },
  ]);
  expect(clock.next()).toBeNull();
});

test('a caller that leaves is not kept', async () => {
  const gone = new AbortController();
  const found = ask(
    { a: (signal) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))) },
    gone.signal,
  );
  gone.abort();
  await expect(found).rejects.toMatchObject({ name: 'AbortError' });
  expect(clock.next()).toBeNull();
});

test('registrations at a service that no pool uses are named', async () => {
  open = { b: ['own'], old: ['p1'], older: ['1', '2', '3', '4', '5', '6', '7'] };
  const found = await ask({ b: async () => [] });
  expect(found.map(({ level, subject, message }) => `${level} ${subject}: ${message}`)).toEqual([
    'warning service old: One registration is left at this service, but no pool of the config uses it any more: p1.',
    'warning service older: 7 registrations are left at this service, but no pool of the config uses it any more: 1, 2, 3, 4, 5 and 2 more.',
  ]);
});
