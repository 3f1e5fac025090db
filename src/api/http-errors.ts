/** Errors as they cross the API: what the server answers, and what the client makes of it again. */
import { type ErrorCode, errorCodes, OnejobError } from '../errors.ts';
import type { ErrorView } from './schema.ts';

const statusByCode: Partial<Record<string, number>> = {
  E_API_ROUTE: 404,
  E_JOB_UNKNOWN: 404,
  E_POOL_UNKNOWN: 404,
  E_SLOT_UNKNOWN: 404,
  E_AGENT_UNKNOWN: 404,
  E_DEVICE_UNKNOWN: 404,
  E_SECRET_UNKNOWN: 404,
  E_SECRET_LAST: 409,
  E_DEVICE_IN_USE: 409,
  E_JOB_ELSEWHERE: 409,
  E_LOG_UNKNOWN: 404,
  E_WORKSPACE_UNKNOWN: 404,
  E_WORKSPACE_TOO_LARGE: 413,
  E_DAEMON_STOPPING: 503,
};

/** HTTP status of an error: by its code, else by whose fault it is. */
export function statusOf(code: ErrorCode): number {
  const known = statusByCode[code];
  if (known !== undefined) return known;
  const kind = errorCodes[code];
  return kind === 'user' ? 400 : kind === 'external' ? 503 : 500;
}

export function toErrorView(error: unknown): ErrorView {
  if (error instanceof OnejobError) return { code: error.code, message: error.message, hint: error.hint, retry: error.retry };
  const message = error instanceof Error ? error.message : String(error);
  return { code: 'E_BUG', message, hint: 'This is a bug in onejob; please report it.', retry: false };
}

/** A code that this version does not know is kept in the message, so that nothing the daemon said is lost. */
export function fromErrorView(view: ErrorView): OnejobError {
  const code = isCode(view.code) ? view.code : null;
  return new OnejobError(code ?? 'E_API_ANSWER', code === null ? `${view.message} (${view.code})` : view.message, {
    ...(view.hint === null ? {} : { hint: view.hint }),
    retry: view.retry,
  });
}

function isCode(code: string): code is ErrorCode {
  return Object.hasOwn(errorCodes, code);
}
