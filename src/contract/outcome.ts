/**
 * How jobs end, in one vocabulary for all CI services, with the word of the service or what else is known next to it. Pure, and without
 * imports that a browser lacks.
 */

import { type Outcome, outcomeOf } from '../core/job-end.ts';
import type { JobView } from './schema.ts';

type Ended = Pick<JobView, 'outcome' | 'result' | 'verdict'>;

/** null: nobody knows, or it has not ended. An older daemon does not say it. */
export function outcomeIn({ outcome, result, verdict }: Ended): Outcome | null {
  if (outcome !== undefined) return outcome;
  if (result === null) return null;
  if (result.kind !== 'reported') return outcomeOf(result);
  const kind = verdict?.kind;
  return kind === 'passed' || kind === 'cancelled' ? kind : kind === 'code' ? 'failed' : null;
}

/** What else its result says, in a word or two, such as `exit 3`, or the word of its CI service; null: nothing. */
export function detailOf(result: JobView['result']): string | null {
  switch (result?.kind) {
    case 'reported':
      return result.word;
    case 'code':
      return result.code === 0 ? null : `exit ${result.code}`;
    case 'signal':
      return result.signal;
    case 'oom':
    case 'timeout':
    case 'disk':
    case 'unstartable':
      return result.kind;
    case 'cancelled':
    case 'lost':
    case undefined:
      return null;
  }
}

/** Such as `passed`, `failed (exit 3)`, `passed (succeeded)`; `ended`: nobody knows how. */
export function endText(outcome: Outcome | null, detail: string | null): string {
  const word = outcome ?? 'ended';
  if (detail === null || detail === word) return word;
  // Buildkite's own words begin so: `failed (exit 3)`.
  return detail.startsWith(`${word} (`) ? detail : `${word} (${detail})`;
}
