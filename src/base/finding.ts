import { messageOf, OnejobError } from './errors.ts';
import type { FindingCode } from './finding-codes.ts';

/** A finding of `doctor`. `error` means that jobs cannot run because of it. */
export interface Finding {
  readonly level: 'ok' | 'warning' | 'error';
  readonly subject: string;
  readonly message: string;
  /** What to do about it; null if there is nothing to do. */
  readonly hint: string | null;
  /** What programs and pages know it by: a `FindingCode`, the code of an error, or that of a finding about a GPU; see `coded`. */
  readonly code?: string | undefined;
  /** An error that may pass by itself, such as a cloud that does not answer. */
  readonly mayPass?: boolean;
}

const finding =
  (level: Finding['level']) =>
  (subject: string, message: string, hint: string | null = null, code?: FindingCode): Finding => ({
    level,
    subject,
    message,
    hint,
    ...(code !== undefined && { code }),
  });

export const fine = finding('ok');
export const warning = finding('warning');
export const problem = finding('error');

/** What a look finds; if it fails, that. So one that cannot look keeps nobody from what others find. @throws why `signal` aborted */
export async function found(subject: string, look: Promise<Finding[]>, signal: AbortSignal): Promise<Finding[]> {
  return look.catch((error: unknown) => {
    signal.throwIfAborted();
    return [problem(subject, messageOf(error), error instanceof OnejobError ? error.hint : null)];
  });
}

/** The findings, those without a code of their own with that of what was looked at. */
export function coded(code: FindingCode, findings: readonly Finding[]): Finding[] {
  return findings.map((one) => (one.code === undefined ? { ...one, code } : one));
}
