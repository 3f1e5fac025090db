/** What machines cost: Azure's public price list, and a table for when it does not answer. */
import { z } from 'zod';
import type { Offer, Price } from '../../ports/cloud.ts';
import { jsonOf } from '../../system/json.ts';
import type { Caller } from '../kit/caller.ts';

/** The day of `table`. */
const tableDay = '2026-11-01';

/**
 * USD per hour in East US with Linux: on demand, and spot, which changes from day to day. Estimates by hand; other locations cost up to
 * half as much again.
 */
const table: Readonly<Record<string, readonly [onDemand: number, spot: number]>> = {
  Standard_NC4as_T4_v3: [0.526, 0.11],
  Standard_NC8as_T4_v3: [0.752, 0.16],
  Standard_NC16as_T4_v3: [1.204, 0.25],
  Standard_NC64as_T4_v3: [4.352, 0.9],
  Standard_NV6ads_A10_v5: [0.454, 0.1],
  Standard_NV12ads_A10_v5: [0.908, 0.19],
  Standard_NV18ads_A10_v5: [1.6, 0.34],
  Standard_NV36ads_A10_v5: [3.2, 0.67],
  Standard_NV72ads_A10_v5: [6.52, 1.37],
  Standard_NC24ads_A100_v4: [3.673, 0.77],
  Standard_NC48ads_A100_v4: [7.346, 1.54],
  Standard_NC96ads_A100_v4: [14.692, 3.09],
  Standard_NC40ads_H100_v5: [6.98, 1.5],
  Standard_NC80adis_H100_v5: [13.96, 3],
  Standard_ND96asr_v4: [27.197, 5.7],
  Standard_ND96amsr_A100_v4: [32.77, 6.9],
  Standard_ND96isr_H100_v5: [98.32, 20.6],
};

/** Disk of 128 GiB and one public address, which each machine also has; USD per hour. */
const extras = 0.03;

export function azurePrice({ type, spot }: Pick<Offer, 'type' | 'spot'>): Price | null {
  const found = table[type];
  return found === undefined ? null : { perHour: rounded(found[spot ? 1 : 0] + extras), asOf: tableDay };
}

const text = z.string();
const item = z.object({
  unitPrice: z.number().positive(),
  unitOfMeasure: text,
  productName: text,
  skuName: text,
  meterName: text,
  armSkuName: text,
});
const items = z.object({ Items: z.array(item) });

/**
 * What Azure's public price list says now; null: it says nothing, or does not answer. It needs no credential, and gets none.
 */
export async function livePrice(
  { caller, location, wall }: { readonly caller: Caller; readonly location: string; readonly wall: number },
  { type, spot }: Pick<Offer, 'type' | 'spot'>,
  signal: AbortSignal,
): Promise<Price | null> {
  const url = new URL('https://prices.azure.com/api/retail/prices');
  const filter = `serviceName eq 'Virtual Machines' and armRegionName eq '${location}' and armSkuName eq '${type}' and priceType eq 'Consumption'`;
  url.searchParams.set('$filter', filter);
  const doing = { doing: 'read prices', place: 'prices.azure.com', changes: false };
  const request = { method: 'GET', url, headers: { Accept: 'application/json' } } as const;
  const answer = await caller.send(request, doing, signal).catch((error: unknown) => {
    signal.throwIfAborted();
    if (error instanceof Error) return null;
    throw error;
  });
  const found = items.safeParse(jsonOf(answer?.status === 200 ? answer.text : '')).data?.Items ?? [];
  const own = found.filter(({ armSkuName, productName, skuName, meterName, unitOfMeasure }) => {
    const names = `${skuName} ${meterName}`;
    const isSpot = /\bSpot\b/i.test(names);
    const isOther = /Windows/i.test(productName) || /Low Priority/i.test(names);
    return armSkuName === type && unitOfMeasure === '1 Hour' && isSpot === spot && !isOther;
  });
  if (own.length === 0) return null;
  const perHour = Math.max(...own.map(({ unitPrice }) => unitPrice)) + extras;
  return { perHour: rounded(perHour), asOf: new Date(wall).toISOString().slice(0, 10) };
}

const rounded = (usd: number): number => Math.round(usd * 10_000) / 10_000;
