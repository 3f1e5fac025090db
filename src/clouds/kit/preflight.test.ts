import { expect, it } from 'vitest';
import { fine } from '../../base/finding.ts';
import { CloudError, type CloudErrorCode } from '../../ports/cloud.ts';
import { examineAfter, priceFindings } from './preflight.ts';

it('prices are those of the host, else of the cloud; a budget rules out a type without one, with what to write', async () => {
  const known = { perHour: 1, asOf: '2026-11-01' };
  const price = async ({ type, spot }: { type: string; spot: boolean }) => (type === 'big' || spot ? null : known);
  const usual = { host: 'burst', types: ['big', 'small'], spot: 'never', budget: 40, prices: {} } as const;
  const image = { from: 'image', has: 'everything' } as const;
  const plan = { ...usual, image, disk: 50, max: 1, lifetime: 3_600_000 };
  const found = (more: object) => priceFindings('price', { ...plan, ...more }, price, new AbortController().signal);
  const said = async (more: object) => (await found(more)).map(({ level, message }) => `${level} ${message}`);
  const small = 'ok small costs about 1 USD per hour (estimate, as of 2026-11-01).';
  expect(await said({})).toEqual(['error The price of big is unknown, so the budget rules it out.', small]);
  expect(await said({ budget: null })).toEqual(['warning The price of big is unknown.', small]);
  expect(await said({ spot: 'prefer', prices: { big: 2 } })).toEqual([
    'ok big (spot) costs 2 USD per hour, as "prices" of the host says.',
    'ok big costs 2 USD per hour, as "prices" of the host says.',
    'error The price of small (spot) is unknown, so the budget rules it out.',
    small,
  ]);
  const [first] = await found({});
  expect(first?.hint).toBe('Write one under hosts.burst.prices, such as { big: 0.62 }.');
});

it('an error that may pass says so; a credential is tried twice, since a token may have become invalid', async () => {
  const failing = (code: CloudErrorCode, times: number) => {
    let left = times;
    return async (subject: string) => {
      left -= 1;
      if (left >= 0) throw new CloudError(code, 'No.', { retry: true });
      return [fine(subject, 'Yes.')];
    };
  };
  const check = async (code: CloudErrorCode, times: number) => {
    const found = await examineAfter(['credential', failing(code, times)], [['types', failing('E_CLOUD_UNREACHABLE', 1)]]);
    return found.map(({ subject, level, mayPass }) => [subject, level, mayPass === true]);
  };
  const types = ['types', 'error', true];
  expect(await check('E_CLOUD_CREDENTIAL', 1)).toEqual([['credential', 'ok', false], types]);
  expect(await check('E_CLOUD_CREDENTIAL', 2)).toEqual([['credential', 'error', false]]);
  expect(await check('E_CLOUD_UNREACHABLE', 1)).toEqual([['credential', 'error', true]]);
});
