/** Answers that every `init SERVICE` asks for, and what they mean. Pure. */
import type { Inventory } from '../gpu/inventory.ts';
import type { Answer } from './init-ask.ts';
import { countCards, shareCards } from './share-cards.ts';

/** Most agents of a pool. */
const mostAgents = 512;

export function readAgents(typed: string): Answer<number | 'per-device'> {
  if (typed === 'per-device') return { value: typed };
  const number = /^\d+$/.test(typed) ? Number(typed) : Number.NaN;
  if (number >= 1 && number <= mostAgents) return { value: number };
  return { again: `Write a number from 1 to ${mostAgents}, or "per-device" for one agent per card.` };
}

/** The last day of a token, `YYYY-MM-DD`; null when nobody knows. */
export function readDay(typed: string): Answer<string | null> {
  if (typed === '') return { value: null };
  const at = /^\d{4}-\d\d-\d\d$/.test(typed) ? Date.parse(`${typed}T00:00:00Z`) : Number.NaN;
  const isDay = !Number.isNaN(at) && new Date(at).toISOString().startsWith(typed);
  return isDay ? { value: typed } : { again: 'Write a day such as 2027-05-01, or nothing.' };
}

/** What each agent has of this host's cards. */
export function devicesFor(agents: number | 'per-device', inventory: Inventory): object | number {
  if (agents !== 'per-device') return shareCards(agents, inventory).devices;
  return { count: 1, vendor: 'nvidia', ...(countCards(inventory).areSlices && { mig: true }) };
}
