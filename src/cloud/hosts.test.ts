import { expect, it } from 'vitest';
import { unpriced } from './hosts.ts';

it('a budget allows no type whose price is unknown, which a check says with what to write', async () => {
  const price = { perHour: 1, asOf: '2026-11-01' };
  const cloud = { price: async ({ type, spot }: { type: string; spot: boolean }) => (type === 'big' || spot ? null : price) };
  const host = { host: 'burst', types: ['big', 'small'], spot: 'never', budget: 40, prices: {} } as const;
  const said = async (more: object) =>
    (await unpriced({ ...host, ...more }, cloud, new AbortController().signal)).map(({ message }) => message);
  const of = (what: string) => `It allows no machine of ${what}, because its price is unknown.`;
  expect(await said({})).toEqual([of('big')]);
  expect(await said({ spot: 'prefer', prices: { big: 2 } })).toEqual([of('small (spot)')]);
  expect(await said({ prices: { big: 2 } })).toEqual([]);
  expect(await said({ budget: null })).toEqual([]);
  const [found] = await unpriced(host, cloud, new AbortController().signal);
  expect(found).toMatchObject({ level: 'error', hint: 'Write one under hosts.burst.prices, such as { big: 0.62 }.' });
});
