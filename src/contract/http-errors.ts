/** Errors across the API: as the server answers them, and as the client restores them. */
import { type ErrorCode, errorCodes, messageOf, OnejobError } from '../base/errors.ts';
import type { ErrorView } from './schema.ts';

const statusByCode: Partial<Record<ErrorCode, number>> = {
  E_API_ROUTE: 404,
  E_JOB_UNKNOWN: 404,
  E_POOL_UNKNOWN: 404,
  E_SLOT_UNKNOWN: 404,
  E_AGENT_UNKNOWN: 404,
  E_DEVICE_UNKNOWN: 404,
  E_SECRET_UNKNOWN: 404,
  E_LOG_UNKNOWN: 404,
  E_WORKSPACE_UNKNOWN: 404,
  E_API_LOGIN: 401,
  E_API_ROLE: 403,
  E_API_ORIGIN: 403,
  E_API_LIMIT: 429,
  E_SECRET_LAST: 409,
  E_DEVICE_IN_USE: 409,
  E_JOB_ELSEWHERE: 409,
  E_NOT_HELD: 409,
  E_WORKSPACE_TOO_LARGE: 413,
  E_DAEMON_STOPPING: 503,
};

/** The end of `GET /v1/hold` when the daemon reads a new config. */
export const reloading = 'reloading';

/** HTTP status of an error: by its code, else by its kind. */
export function statusOf(code: ErrorCode): number {
  const known = statusByCode[code];
  if (known !== undefined) return known;
  const kind = errorCodes[code];
  return kind === 'user' ? 400 : kind === 'external' ? 503 : 500;
}

export function toErrorView(error: unknown): ErrorView {
  if (error instanceof OnejobError) return { code: error.code, message: error.message, hint: error.hint, retry: error.retry };
  return {
    code: 'E_BUG',
    message: messageOf(error),
    hint: 'This is a bug in onejob; please report it, with what "onejob report" writes.',
    retry: false,
  };
}

/** An unknown code is kept in the message. */
export function fromErrorView({ code, message, hint, retry }: ErrorView): OnejobError {
  if (Object.hasOwn(errorCodes, code)) return new OnejobError(code as ErrorCode, message, { hint, retry });
  return new OnejobError('E_API_ANSWER', `${message} (${code})`, { hint, retry });
}

export function stopping(): OnejobError {
  return new OnejobError('E_DAEMON_STOPPING', 'The daemon is stopping.', { hint: 'Try again when it is back.', retry: true });
}
