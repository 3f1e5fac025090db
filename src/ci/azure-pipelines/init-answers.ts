/** What answers of `init azure-pipelines` mean. Pure. */
import type { Answer } from '../../cli/init-ask.ts';
import { azureUrlToKeep, parseAzureUrl } from '../../config/azure-url.ts';

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
