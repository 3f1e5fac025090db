/** What the answers of `init azure-pipelines` mean: each read alone, and all together as a config file. Pure. */
import { stringify } from 'yaml';
import { azureUrlToKeep, parseAzureUrl } from '../config/azure-url.ts';
import type { Inventory } from '../gpu/inventory.ts';
import { countCards, shareCards } from './azure-cards.ts';
import type { Answer } from './init-ask.ts';

export interface Answers {
  readonly url: string;
  readonly pool: string;
  readonly agents: number | 'per-device';
  readonly tokenFile: string;
  /** Last day of the token, `YYYY-MM-DD`; null when nobody knows. */
  readonly expires: string | null;
}

/** Most agents of a pool. */
const mostAgents = 512;

export function readUrl(typed: string): Answer<string> {
  const parsed = parseAzureUrl(typed);
  if (parsed.ok) return { value: parsed.value };
  const kept = azureUrlToKeep(typed);
  return kept === null ? { again: `It ${parsed.why}.`.replace('It expected', 'Expected') } : { value: kept };
}

export function readToken(typed: string): Answer<string> {
  if (typed === '') return { again: 'It is empty.' };
  return /\s/.test(typed) ? { again: 'It has blanks inside, so it is no personal access token.' } : { value: typed };
}

export function readAgents(typed: string): Answer<Answers['agents']> {
  if (typed === 'per-device') return { value: typed };
  const number = /^\d+$/.test(typed) ? Number(typed) : Number.NaN;
  if (number >= 1 && number <= mostAgents) return { value: number };
  return { again: `Write a number from 1 to ${mostAgents}, or "per-device" for one agent per card.` };
}

export function readDay(typed: string): Answer<string | null> {
  if (typed === '') return { value: null };
  const at = /^\d{4}-\d\d-\d\d$/.test(typed) ? Date.parse(`${typed}T00:00:00Z`) : Number.NaN;
  const isDay = !Number.isNaN(at) && new Date(at).toISOString().startsWith(typed);
  return isDay ? { value: typed } : { again: 'Write a day such as 2027-05-01, or nothing.' };
}

/** The whole file. `inventory`: the cards of this host, which agents share when there are fewer. */
export function initFile({ url, pool, agents, tokenFile, expires }: Answers, inventory: Inventory): string {
  const devices =
    agents === 'per-device'
      ? { count: 1, vendor: 'nvidia', ...(countCards(inventory).areSlices && { mig: true }) }
      : shareCards(agents, inventory).devices;
  const file = {
    services: {
      azure: { type: 'azure-pipelines', url, token: { file: tokenFile, ...(expires !== null && { expires }) } },
    },
    pools: { azure: { service: 'azure', queue: pool, agents, devices } },
  };
  const head = '# Agents for Azure Pipelines. Every key: docs/configuration.md; "onejob config show" tells what holds.\n';
  return head + stringify(file, { lineWidth: 0 });
}
