/** Prices for estimates: a table for machines on demand, and what EC2 says of spot today. */
import { CloudError, type Offer, type Price } from '../cloud.ts';
import type { Call, Calls } from './calls.ts';
import { asOf, onDemand } from './prices.ts';
import { textAt } from './xml.ts';

/** ms for which an answer, or the lack of one, counts. */
const day = 86_400_000;

export function createPrices(calls: Calls, region: string, now: () => number) {
  const known = new Map<string, { readonly price: Price | null; readonly at: number }>();

  const listed = (type: string): Price | null => {
    const found = onDemand[type];
    return found === undefined ? null : { perHour: found[1], asOf };
  };

  /** The highest of the region's zones, since nobody knows yet which it will be. @throws CloudError */
  async function spotPrice(type: string, signal: AbortSignal): Promise<Price | null> {
    const call: Call = {
      ...{ doing: `look at the spot price of ${type}`, region, changes: false, permissions: ['ec2:DescribeSpotPriceHistory'] },
    };
    // From now on: the price that holds.
    const StartTime = new Date(now()).toISOString().replace(/\.\d+/, '');
    const params = { InstanceType: [type], ProductDescription: ['Linux/UNIX'], StartTime };
    const found = await calls.ec2List('DescribeSpotPriceHistory', 'spotPriceHistorySet', params, call, signal);
    const all = found.map((one) => Number(textAt(one, 'spotPrice'))).filter((price) => price > 0);
    return all.length === 0 ? null : { perHour: Math.max(...all), asOf: StartTime.slice(0, 10) };
  }

  return {
    /** Spot falls back to the price on demand, which it does not exceed. */
    async price({ type, spot }: Pick<Offer, 'type' | 'spot'>, signal: AbortSignal): Promise<Price | null> {
      if (!spot) return listed(type);
      const before = known.get(type);
      if (before !== undefined && now() - before.at < day) return before.price;
      let price: Price | null = null;
      try {
        price = await spotPrice(type, signal);
      } catch (error) {
        if (!(error instanceof CloudError)) throw error;
      }
      price ??= listed(type);
      known.set(type, { price, at: now() });
      return price;
    },
  };
}

export type Prices = ReturnType<typeof createPrices>;
