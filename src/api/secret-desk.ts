/** What may be asked of a running manager about encrypted values that are bound to no pipeline themselves. */
import type { ForgetAnswer, PinnedView } from './secret-schema.ts';

/** `fingerprint`: of 32 hex digits, or the unambiguous beginning of a known one. */
export interface SecretDesk {
  /** All values that are pinned; the oldest first. */
  pins(): PinnedView[] | Promise<PinnedView[]>;
  /** Lets more pipelines use a value, durably. @throws OnejobError E_SECRET_UNKNOWN for a beginning that is of none, or of several */
  allow(fingerprint: string, pipelines: readonly string[]): PinnedView | Promise<PinnedView>;
  /** Takes the pin of one pipeline, or with null all: the next that uses the value is the first again. @throws as above */
  forget(fingerprint: string, pipeline: string | null): ForgetAnswer | Promise<ForgetAnswer>;
}
