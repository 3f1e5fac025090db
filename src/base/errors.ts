/**
 * The only error class, and the table of every code that onejob can show. `docs/errors.md` must describe each code; a test checks
 * that. A message says what was tried, on what, and what came back. The hint says what to do next.
 */
/** Why something could not be started or reached. `retry`: whether a retry can help. */
export interface Failure {
  readonly code: string;
  readonly message: string;
  readonly retry: boolean;
}

/** `user`: fix your input. `external`: another system failed. `bug`: ours. */
export type ErrorKind = 'user' | 'external' | 'bug';

export const errorCodes = {
  E_BUG: 'bug',
  E_GATE_ENDED: 'external',
  E_GATE_OOM: 'external',
  E_GATE_SILENT: 'external',
  E_REGISTRATION_LOST: 'external',
  E_DEVICE_LOST: 'external',
  E_CLOCKS: 'external',
  E_DEVICE_UNKNOWN: 'user',
  E_DEVICE_IN_USE: 'user',
  E_GPUS_UNSEEN: 'external',
  E_NO_SHELL: 'user',
  E_SANDBOX_LOST: 'external',
  E_CONFIG: 'user',
  E_SECRET: 'user',
  E_SECRET_KEY: 'user',
  E_SECRET_VALUE: 'user',
  E_SECRET_UNKNOWN: 'user',
  E_SECRET_LAST: 'user',
  E_API_REQUEST: 'user',
  E_API_ROUTE: 'user',
  E_API_ANSWER: 'bug',
  E_API_BUSY: 'external',
  E_API_LISTEN: 'external',
  E_API_LOGIN: 'user',
  E_API_ROLE: 'user',
  E_API_ORIGIN: 'user',
  E_API_LIMIT: 'user',
  E_API_VERSION: 'user',
  E_DASHBOARD: 'user',
  E_HOST: 'external',
  E_DAEMON_ABSENT: 'external',
  E_DAEMON_SILENT: 'external',
  E_DAEMON_CUT: 'external',
  E_DAEMON_START: 'external',
  E_DAEMON_STOPPING: 'external',
  E_DAEMON_ELSEWHERE: 'user',
  E_DAEMON_CONFIG: 'user',
  E_SOCKET_DENIED: 'user',
  E_SOCKET_FOREIGN: 'user',
  E_SOCKET_PATH: 'user',
  E_SOCKET_TAKEN: 'user',
  E_JOB_UNKNOWN: 'user',
  E_JOB_ELSEWHERE: 'user',
  E_NOT_HELD: 'user',
  E_SHELL: 'user',
  E_LOG_UNKNOWN: 'user',
  E_USAGE: 'user',
  E_OUTPUT: 'user',
  E_INIT_FILE: 'user',
  E_SERVICE: 'user',
  E_SIGNATURE: 'user',
  E_IMPORT: 'user',
  E_WORKSPACE_TOO_LARGE: 'user',
  E_STATE_FULL: 'external',
  E_STATE_BUSY: 'external',
  E_STATE_CORRUPT: 'external',
  E_STATE_NEWER: 'user',
  E_STATE_OLDER: 'user',
  E_STATE_DIR: 'user',
  E_STATE_LED: 'user',
  E_STATE_NETWORK_FS: 'user',
  E_JOB_REQUEST: 'user',
  E_POOL_UNKNOWN: 'user',
  E_WORKSPACE_UNKNOWN: 'user',
  E_WORKSPACE_READ: 'user',
  E_ARTIFACTS: 'user',
  E_ARTIFACT_UNSAFE: 'user',
  E_AGENT_UNKNOWN: 'user',
  E_SLOT_UNKNOWN: 'user',
  E_RUNTIME_UNKNOWN: 'user',
  E_DEVICES_GRANTED: 'external',
  E_DEVICES_REFUSED: 'external',
  E_ENGINE_ADDRESS: 'user',
  E_ENGINE_PERMISSION: 'user',
  E_ENGINE_SILENT: 'external',
  E_ENGINE_UNREACHABLE: 'external',
  E_ENGINE_FAILED: 'external',
  E_ENGINE_VERSION: 'user',
  E_NO_CONTAINERS: 'user',
  E_OCI_RUNTIME: 'user',
  E_IMAGE_NOT_FOUND: 'user',
  E_IMAGE_DENIED: 'user',
  E_IMAGE_CHOICE: 'user',
  E_IMAGE_TABLES: 'user',
  E_REGISTRY_UNREACHABLE: 'external',
  E_PULL_FAILED: 'external',
  E_DISK_FULL: 'external',
  E_MOUNT_MISSING: 'user',
  E_MOUNT_AWAY: 'external',
  E_MOUNT_CHANGED: 'user',
  E_NETWORK_NOT_FOUND: 'user',
  E_NETWORK_UNGUARDED: 'user',
  E_NO_DOOR: 'user',
  E_USER_UNKNOWN: 'user',
  E_NAME_TAKEN: 'user',
  E_RECIPE: 'user',
  E_SPAWN: 'external',
  E_FILES: 'external',
  E_REMOVE: 'external',
  E_SANDBOX_STUCK: 'external',
  E_SANDBOX_UNREAD: 'external',
  E_NO_USER: 'external',
  E_CI_CREDENTIAL: 'user',
  E_CI_DENIED: 'user',
  E_CI_POOL: 'user',
  E_CI_UNREACHABLE: 'external',
  E_CI_THROTTLED: 'external',
  E_CI_ANSWER: 'external',
  E_CI_NAME_TAKEN: 'external',
  E_FILTER: 'external',
  E_FILTER_TAKEN: 'external',
  E_JOB_GONE: 'external',
  E_AGENT_SILENT: 'external',
  E_AGENT_ENDED: 'external',
  E_AGENT_OUTDATED: 'external',
  E_AGENT_ABSENT: 'user',
  E_AGENT_PACKAGE: 'external',
  E_IMAGE_BUILD: 'user',
  E_NOTIFY: 'external',
  E_CLOUD_CHECK: 'user',
  E_CLOUD_CREDENTIAL: 'user',
  E_CLOUD_DENIED: 'user',
  E_CLOUD_REQUEST: 'user',
  E_CLOUD_QUOTA: 'user',
  E_CLOUD_ACCOUNT: 'user',
  E_CLOUD_CAPACITY: 'external',
  E_CLOUD_UNREACHABLE: 'external',
  E_CLOUD_THROTTLED: 'external',
  E_CLOUD_ANSWER: 'external',
  E_CLOUD_END: 'external',
} as const satisfies Record<string, ErrorKind>;

export type ErrorCode = keyof typeof errorCodes;

export interface ErrorOptions {
  /** What to type or change next, as one sentence. */
  readonly hint?: string | null | undefined;
  /** Whether a retry can help. Default false. */
  readonly retry?: boolean;
  readonly cause?: unknown;
}

export class OnejobError extends Error {
  readonly code: ErrorCode;
  readonly hint: string | null;
  readonly retry: boolean;

  constructor(code: ErrorCode, message: string, options: ErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = 'OnejobError';
    this.code = code;
    this.hint = options.hint ?? null;
    this.retry = options.retry ?? false;
  }
}

/** Whether an error is onejob's own and has one of these codes. */
export function hasCode(error: unknown, ...codes: readonly ErrorCode[]): error is OnejobError {
  return error instanceof OnejobError && codes.includes(error.code);
}

/** The message of any thrown value. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The result of `act`, or null if it throws: for what may be absent or unreadable, whatever the reason. */
export function attempt<T>(act: () => T): T | null {
  try {
    return act();
  } catch {
    return null;
  }
}

/** Any thrown value as a failure that the core can store. Foreign errors become E_BUG, which may pass. */
export function toFailure(error: unknown): Failure {
  if (!(error instanceof OnejobError)) return { code: 'E_BUG', message: messageOf(error), retry: true };
  const { code, message, hint, retry } = error;
  return { code, message: hint === null ? message : `${message} ${hint}`, retry };
}

/**
 * The Engine is away, which is nobody's job's and no pool's fault, whether or not the same call could pass at once: it does not answer,
 * its socket is closed to us while it starts, or it is of a version that onejob does not speak until one of the two is updated.
 */
export const engineAway = ['E_ENGINE_UNREACHABLE', 'E_ENGINE_PERMISSION', 'E_ENGINE_VERSION'] as const satisfies ErrorCode[];

/** Whether the error says only that. */
export function isEngineAway({ code }: Pick<Failure, 'code'>): boolean {
  return engineAway.some((one) => one === code);
}

const jobsOwn: ReadonlySet<string> = new Set<ErrorCode>(['E_FILES', 'E_WORKSPACE_UNKNOWN', 'E_JOB_REQUEST', 'E_JOB_GONE']);

/** Whether the error is the job's own, in any pool. No pool backs off because of it. */
export function isJobsOwn({ code, retry }: Failure): boolean {
  return jobsOwn.has(code) && !retry;
}

const ofUsers: ReadonlySet<string> = new Set(Object.entries(errorCodes).flatMap(([code, kind]) => (kind === 'user' ? [code] : [])));

/** Whether it stays until somebody changes the config or this host, so no later try and no other job of the pool can pass. */
export function isOwnersToMend(failure: Failure): boolean {
  return ofUsers.has(failure.code) && !failure.retry && !isEngineAway(failure) && !isJobsOwn(failure);
}

/** The system's code for an error, such as `ENOENT`; empty if it has none. */
export function codeOf(error: unknown): string {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
}
