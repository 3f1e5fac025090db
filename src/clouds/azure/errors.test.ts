import { describe, expect, it } from 'vitest';
import { armRefusal, saidOf } from './errors.ts';

const of = (body: unknown, status: number | null) =>
  armRefusal({ doing: 'create a machine', said: saidOf(body, status), status, makesMachine: true, needs: ['Microsoft.Compute/x'] });
const error = (code: string, message = 'why') => ({ error: { code, message } });

describe('codes come first, statuses second', () => {
  it.each([
    ['SkuNotAvailable', 409, 'E_CLOUD_CAPACITY'],
    ['AllocationFailed', 500, 'E_CLOUD_CAPACITY'],
    ['ZonalAllocationFailed', 409, 'E_CLOUD_CAPACITY'],
    ['OverconstrainedAllocationRequest', 409, 'E_CLOUD_CAPACITY'],
    ['OverconstrainedZonalAllocationRequest', 409, 'E_CLOUD_CAPACITY'],
    ['QuotaExceeded', 409, 'E_CLOUD_QUOTA'],
    ['PublicIPCountLimitReached', 400, 'E_CLOUD_QUOTA'],
    ['OperationNotAllowed', 409, 'E_CLOUD_REQUEST'],
    ['InvalidAuthenticationToken', 401, 'E_CLOUD_CREDENTIAL'],
    ['AuthorizationFailed', 403, 'E_CLOUD_DENIED'],
    ['LinkedAuthorizationFailed', 403, 'E_CLOUD_DENIED'],
    ['RequestDisallowedByPolicy', 403, 'E_CLOUD_DENIED'],
    ['ScopeLocked', 409, 'E_CLOUD_DENIED'],
    ['MissingSubscriptionRegistration', 409, 'E_CLOUD_ACCOUNT'],
    ['ReadOnlyDisabledSubscription', 409, 'E_CLOUD_ACCOUNT'],
    ['SubscriptionNotFound', 404, 'E_CLOUD_ACCOUNT'],
    ['TooManyRequests', 429, 'E_CLOUD_THROTTLED'],
    ['SubscriptionRequestsThrottled', 429, 'E_CLOUD_THROTTLED'],
    ['InternalServerError', 500, 'E_CLOUD_UNREACHABLE'],
    ['ServerTimeout', 503, 'E_CLOUD_UNREACHABLE'],
    ['InvalidParameter', 400, 'E_CLOUD_REQUEST'],
    ['PlatformImageNotFound', 404, 'E_CLOUD_REQUEST'],
    ['OSProvisioningTimedOut', null, 'E_CLOUD_ANSWER'],
  ] as const)('%s %s', (code, status, kind) => {
    const found = of(error(code), status);
    expect([found.code, found.reason]).toEqual([kind, code]);
  });

  it('one code for many quotas', () => {
    expect(of(error('OperationNotAllowed', 'Operation results in exceeding quota limits of Core.'), 409).code).toBe(
      'E_CLOUD_QUOTA',
    );
  });
});

describe('the code that tells most', () => {
  const deep = { code: 'AllocationFailed', message: 'none left' };
  it.each([
    ['in details', { error: { code: 'DeploymentFailed', message: 'At least one failed', details: [deep] } }],
    [
      'in details of details',
      {
        error: { code: 'InvalidTemplateDeployment', message: 'x', details: [{ code: 'Conflict', message: 'x', details: [deep] }] },
      },
    ],
    ['next to another', { error: { code: 'MultipleErrorsOccurred', details: [{ code: 'SomethingElse', message: 'x' }, deep] } }],
    ['in a message', { error: { code: 'DeploymentFailed', message: JSON.stringify({ error: deep }) } }],
    ['of an operation', { code: 'ResourceOperationFailure', message: 'x', details: [deep] }],
  ])('%s', (_, body) => {
    expect(saidOf(body, 409)).toEqual({ code: 'AllocationFailed', message: 'none left' });
  });

  it('without any', () => {
    for (const body of [undefined, 'a page', {}, { error: null }, { error: 'x' }, []])
      expect(saidOf(body, 502).code).toBe('HTTP 502');
    expect(of(undefined, 502)).toMatchObject({ code: 'E_CLOUD_UNREACHABLE', isAmbiguous: true, reason: 'HTTP 502' });
  });
});

it('what to do about what no role allows', () => {
  expect(of(error('RequestDisallowedByPolicy'), 403).hint).toContain('policy');
  expect(of(error('ScopeLocked'), 409).hint).toContain('lock');
});

it('whether a machine may run', () => {
  const unsure = (code: string, status: number | null) => of(error(code), status).isAmbiguous;
  expect([unsure('AllocationFailed', null), unsure('QuotaExceeded', null), unsure('AllocationFailed', 500)]).toEqual([
    false,
    false,
    false,
  ]);
  expect([unsure('OSProvisioningTimedOut', null), unsure('InternalExecutionError', null), unsure('Oops', 500)]).toEqual([
    true,
    true,
    true,
  ]);
  expect([unsure('Timeout', 408), unsure('InvalidParameter', 400), unsure('Conflict', 409)]).toEqual([true, false, false]);
});

it('a text of Azure is short, and in one line', () => {
  expect(of(error('InvalidParameter', `a\nb\u0007 ${'x'.repeat(999)}`), 400).message).toMatch(
    /^Cannot create a machine: Azure answered InvalidParameter: a b x{290,}…$/,
  );
});
