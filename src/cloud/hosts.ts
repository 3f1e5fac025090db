/** An entry of `hosts` in the config, resolved. */
import { type Finding, problem } from '../finding.ts';
import type { Cloud, CloudImage, HostPlan } from './cloud.ts';
import { offerText } from './offer.ts';

export interface HostConfig extends Omit<HostPlan, 'image'> {
  /** Key in `hosts`. */
  readonly host: string;
  /** Key in `clouds`. */
  readonly cloud: string;
  /** null: what the cloud's adapter chooses. */
  readonly image: CloudImage | null;
  /** How many machines there are without any job. */
  readonly min: number;
  /** ms without a job after which a machine ends. */
  readonly idle: number;
  /** ms in which a machine must have joined. */
  readonly boot: number;
  /** USD per day (UTC) for machines of this entry; null: no limit. */
  readonly budget: number | null;
  /** USD per hour by type, instead of the adapter's price. */
  readonly prices: Readonly<Record<string, number>>;
  readonly opengl: 'none' | 'egl' | 'glx';
  /** Shell commands that each machine runs before it joins. */
  readonly setup: readonly string[];
  /** How many jobs one machine runs at the same time, as long as none has joined; then the machines say. */
  readonly agents: number;
}

/** Types that the budget of the host does not allow, since nobody knows their price. @throws CloudError */
export async function unpriced(
  { host, types, spot, budget, prices }: Pick<HostConfig, 'host' | 'types' | 'spot' | 'budget' | 'prices'>,
  cloud: Pick<Cloud, 'price'>,
  signal: AbortSignal,
): Promise<Finding[]> {
  if (budget === null) return [];
  const ways = { never: [false], prefer: [true, false], only: [true] }[spot];
  const open = types.filter((type) => prices[type] === undefined).flatMap((type) => ways.map((one) => ({ type, spot: one })));
  const known = await Promise.all(open.map((offer) => cloud.price(offer, signal)));
  return open.flatMap((offer, at) => {
    if (known[at] !== null) return [];
    const what = offerText({ ...offer, zone: null });
    const how = `Write one under hosts.${host}.prices, such as { ${offer.type}: 0.62 }.`;
    return [problem('budget', `It allows no machine of ${what}, because its price is unknown.`, how)];
  });
}
