/** What the answers of `init azure-pipelines` mean: each read alone, and all together as a config file. Pure. */
import { stringify } from 'yaml';
import { type AgentAnswers, devicesFor } from '../../cli/init-answers.ts';
import type { Answer } from '../../cli/init-ask.ts';
import { azureUrlToKeep, parseAzureUrl } from '../../config/azure-url.ts';
import type { Inventory } from '../../gpu/inventory.ts';

export interface Answers extends AgentAnswers {
  readonly url: string;
  readonly pool: string;
}

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

/** The whole file. `inventory`: the cards of this host, which agents share when there are fewer. */
export function initFile({ url, pool, agents, tokenFile, expires }: Answers, inventory: Inventory): string {
  const devices = devicesFor(agents, inventory);
  const file = {
    services: {
      azure: { type: 'azure-pipelines', url, token: { file: tokenFile, ...(expires !== null && { expires }) } },
    },
    pools: { azure: { service: 'azure', queue: pool, agents, devices } },
  };
  const head = '# Agents for Azure Pipelines. Every key: docs/configuration.md; "onejob config show" tells what holds.\n';
  return head + stringify(file, { lineWidth: 0 });
}
