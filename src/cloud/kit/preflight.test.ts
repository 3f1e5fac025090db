import { expect, it } from 'vitest';
import { priceFindings } from './preflight.ts';

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
