/** The cards of this host, and how agents share them. */
import { join } from 'node:path';
import { OnejobError } from '../base/errors.ts';
import { fits } from '../config/conditions.ts';
import type { DeviceRequest } from '../config/config.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { createProbe } from '../gpu/probe.ts';
import { wrongUsage } from './exit.ts';
import type { Session } from './session.ts';
import { plural } from './text.ts';

/** The key `devices` of a pool, and a line for people. */
export interface CardShare {
  readonly devices: number | { readonly count: number; readonly vendor: 'nvidia'; readonly share?: number; readonly mig?: true };
  readonly line: string;
}

/** Most agents that a pool may put on one device. */
const mostShares = 64;

/** NVIDIA only, as the Python manager knew no others: an integrated GPU is for the display. */
const card: DeviceRequest = {
  count: 1,
  share: 1,
  vendor: 'nvidia',
  uuids: [],
  display: 'allow',
  mig: null,
  model: null,
  memory: null,
  compute: null,
};

/**
 * With more agents than cards, as few agents as possible share each card. Otherwise each agent has its own cards, the same number
 * for all. MIG instances count if there is no whole card.
 * @throws OnejobError E_GPUS_UNSEEN, E_USAGE
 */
export function shareCards(agents: number, inventory: Inventory): CardShare {
  const { complete, findings } = inventory;
  const { cards, areSlices } = countCards(inventory);
  if (cards === 0 && !complete) {
    const why = findings.find(({ level }) => level === 'error')?.message ?? 'not all of them answered';
    throw new OnejobError('E_GPUS_UNSEEN', `Cannot tell which GPUs this host has: ${why}`, {
      hint: 'See "onejob gpus". onejob does not start agents without GPUs in this case.',
      retry: true,
    });
  }
  if (cards === 0)
    return { devices: 0, line: `${plural(agents, 'agent')} without GPUs: this host has no NVIDIA card that is free for jobs.` };
  const what = areSlices ? 'MIG instance' : 'card';
  const mig = areSlices ? ({ mig: true } as const) : {};
  const original = `The Python manager showed every agent every card.`;
  if (agents > cards) {
    const share = Math.ceil(agents / cards);
    if (share > mostShares) {
      const message = `-n ${agents} would put ${share} agents on each ${what}; at most ${mostShares} are possible.`;
      throw wrongUsage(message, `Type -n ${cards * mostShares} or less.`);
    }
    const line = `${plural(agents, 'agent')} on ${plural(cards, what)}: up to ${share} agents share one, and each agent sees one. ${original}`;
    return { devices: { count: 1, vendor: 'nvidia', share, ...mig }, line };
  }
  // A process can use one MIG instance only.
  const each = areSlices || agents === 0 ? 1 : Math.floor(cards / agents);
  const left = cards - each * agents;
  const rest = left === 0 ? '' : `, ${left} ${left === 1 ? 'is' : 'are'} left over`;
  const line = `${plural(agents, 'agent')} on ${plural(cards, what)}: each agent has ${each} to itself${rest}. ${original}`;
  return { devices: { count: each, vendor: 'nvidia', ...mig }, line };
}

/** How many cards a job could have; MIG instances if no card is whole. `vendor`: null for any. */
export function countCards(
  { devices }: Pick<Inventory, 'devices'>,
  vendor: DeviceRequest['vendor'] = card.vendor,
): { readonly cards: number; readonly areSlices: boolean } {
  const whole = devices.filter((device) => fits(device, { ...card, vendor })).length;
  if (whole > 0) return { cards: whole, areSlices: false };
  const slices = devices.filter((device) => fits(device, { ...card, vendor, mig: true })).length;
  return { cards: slices, areSlices: slices > 0 };
}

/** Reads the cards of this host without a daemon. */
export async function lookAtCards({ context }: Session): Promise<Inventory> {
  const { path, hostRoot: root } = context.environment;
  using probe = createProbe({ path, ...(root !== null && { sys: join(root, 'sys'), proc: join(root, 'proc') }) });
  return await probe.look();
}
