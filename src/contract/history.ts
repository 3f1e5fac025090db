/** Questions about jobs that have ended. */
import type { DeviceId } from '../core/slot.ts';
import type { HistoryAxis, VerdictKind } from './verdict.ts';

/** Which outcomes: null and false ask for nothing. Times are wall clock, ms since the epoch. */
export interface OutcomeFilter {
  readonly pool: string | null;
  readonly service: string | null;
  readonly kind: VerdictKind | null;
  /** Only those that neither passed nor were cancelled. */
  readonly failed: boolean;
  readonly image: string | null;
  readonly device: DeviceId | null;
  readonly since: number | null;
  readonly until: number | null;
  /** Only older ones than this place: `endedAt` and `seq` of one. */
  readonly before: { readonly endedAt: number; readonly seq: number } | null;
  readonly limit: number;
}

/** Asks for all. */
export const everyOutcome = {
  pool: null,
  service: null,
  kind: null,
  failed: false,
  image: null,
  device: null,
  since: null,
  until: null,
  before: null,
} as const;

/** What a list of ended jobs is narrowed to. `before`: the `next` of an earlier page. Times: wall clock, ms since the epoch. */
export interface EndedFilter extends Omit<OutcomeFilter, 'before'> {
  readonly before: string | null;
  /** In what people remember of a job (`found.ts`); the first page also has the job whose id it is, whatever the rest asks for. */
  readonly text: string | null;
}

/** In whole hours: from the one that `since` is in. */
export interface HistoryQuery {
  readonly by: HistoryAxis;
  readonly pool: string | null;
  readonly service: string | null;
  readonly image: string | null;
  readonly device: string | null;
  readonly since: number | null;
  readonly until: number | null;
}
