/** What answers of `init buildkite` mean. Pure. */
import type { Answer } from '../../cli/init-ask.ts';
import { buildkiteDefaults } from './type.ts';

/** Tokens that are something else, by their beginning (facts: docs page `platform/security/tokens`). */
const others: readonly (readonly [string, string])[] = [
  ['bkua_', 'an API access token, which can do much more and is not needed'],
  ['bkaa_', "one agent's own"],
  ['bkaj_', "one job's own"],
  ['bkjat_', "for one job's agent"],
];

export function readAgentToken(typed: string): Answer<string> {
  if (typed === '') return { again: 'It is empty.' };
  if (!/^[\x21-\x7e]{8,4096}$/.test(typed)) return { again: 'It is too short or has blanks inside, so it is no agent token.' };
  const other = others.find(([prefix]) => typed.startsWith(prefix))?.[1];
  if (other === undefined) return { value: typed };
  return { again: `That token is ${other}; an agent token begins with bkct_ (Agents, the cluster, Agent Tokens).` };
}

export function readQueue(typed: string): Answer<string> {
  if (typed !== '' && typed.length <= 128 && !/[,=\s]/.test(typed)) return { value: typed };
  return { again: 'Write the key of a queue: no blanks, commas or "=".' };
}

export function readEndpoint(typed: string): Answer<string> {
  const good = /^https?:\/\/[^\s/?#@]+(\/[^\s?#]*)?$/.test(typed) && URL.canParse(typed);
  return good ? { value: typed.replace(/\/+$/, '') } : { again: `Expected an address such as ${buildkiteDefaults.endpoint}.` };
}
