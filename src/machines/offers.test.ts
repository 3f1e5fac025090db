import { expect, it } from 'vitest';
import { CloudError, type CloudErrorCode, type Offer } from '../ports/cloud.ts';
import type { HostConfig } from '../schema/host-config.ts';
import { Offers } from './offers.ts';

const host = (spot: HostConfig['spot'] = 'never', types = ['big', 'small']): HostConfig => ({
  host: 'burst',
  cloud: 'sim',
  types,
  spot,
  image: null,
  disk: 50,
  min: 0,
  max: 2,
  idle: 1,
  lifetime: 1,
  boot: 1,
  budget: null,
  prices: {},
  opengl: 'none',
  setup: [],
  agents: 1,
});
const zoned = (...zones: (string | null)[]) => new Map(['big', 'small'].map((type) => [type, { zones }]));
const words = (offer: Offer | null): string =>
  offer === null ? 'none' : `${offer.type}${offer.spot ? ' spot' : ''} ${offer.zone}`;

/** What is asked for, one after the other, when each fails in this way. */
function tried(spot: HostConfig['spot'], zones: (string | null)[], fails: (offer: Offer) => CloudError, most = 20): string[] {
  const offers = new Offers();
  const found: string[] = [];
  while (found.length < most) {
    const next = offers.next(host(spot), zoned(...zones), 1000);
    if (next.offer === null) return [...found, `until ${next.until}`];
    found.push(words(next.offer));
    offers.failed('sim', next.offer, fails(next.offer), 1000);
  }
  return found;
}
const error = (code: CloudErrorCode, zones: readonly string[] = []) => new CloudError(code, `${code}.`, { zones });

it('goes through types in their order, and all zones of each', () => {
  expect(tried('never', ['a', 'b'], () => error('E_CLOUD_CAPACITY'))).toEqual([
    'big a',
    'big b',
    'small a',
    'small b',
    'until 1900',
  ]);
});

it('takes zones that the cloud named first; after a try without a zone only those', () => {
  const named = ({ type, zone }: Offer) => error('E_CLOUD_CAPACITY', type === 'big' && zone !== 'c' ? ['c'] : []);
  expect(tried('never', ['a', 'b', 'c'], named)).toEqual([
    'big a',
    'big c',
    'big b',
    'small a',
    'small b',
    'small c',
    'until 1900',
  ]);
  expect(tried('never', [null, 'a', 'c'], named)).toEqual(['big null', 'big c', 'small null', 'until 1900']);
});

it('tries every type as spot before it pays the full price', () => {
  expect(tried('prefer', [null], () => error('E_CLOUD_CAPACITY'))).toEqual([
    'big spot null',
    'small spot null',
    'big null',
    'small null',
    'until 1900',
  ]);
  expect(tried('only', [null], () => error('E_CLOUD_CAPACITY'))).toEqual(['big spot null', 'small spot null', 'until 1900']);
});

it('asks for a type whose quota is used up in no other zone', () => {
  expect(tried('never', ['a', 'b'], () => error('E_CLOUD_QUOTA'))).toEqual(['big a', 'small a', 'until 4600']);
});

it.each(['E_CLOUD_CREDENTIAL', 'E_CLOUD_DENIED', 'E_CLOUD_ACCOUNT', 'E_CLOUD_END', 'E_CLOUD_THROTTLED'] as const)(
  '%s would come for every offer',
  (code) => {
    expect(tried('prefer', ['a', 'b'], () => error(code))).toHaveLength(2);
  },
);

it('a missing secret does not make it spin', () => {
  const offers = new Offers();
  offers.failed('sim', { type: 'big', spot: false, zone: 'a' }, new Error('anything'), 1000);
  expect(offers.next(host(), zoned('a'), 1000)).toMatchObject({ offer: { type: 'small' } });
});

it('remembers since when something is missing, until it is there', () => {
  const offers = new Offers();
  const offer = { type: 'big', spot: false, zone: 'a' };
  offers.failed('sim', offer, error('E_CLOUD_CAPACITY'), 1000);
  offers.failed('sim', offer, error('E_CLOUD_CAPACITY'), 2000);
  expect(offers.unavailable(2500)).toMatchObject([{ since: 1000, until: 2900 }]);
  expect(offers.unavailable(2900)).toEqual([]);
  offers.succeeded('sim', offer);
  offers.failed('sim', offer, error('E_CLOUD_CAPACITY'), 3000);
  expect(offers.unavailable(3000)).toMatchObject([{ since: 3000 }]);
});
