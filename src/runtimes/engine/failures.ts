/** Translates errors of the Engine or its socket into ours, in words that a person can act on. */
import { z } from 'zod';
import { codeOf, messageOf, OnejobError } from '../../base/errors.ts';
import { jsonOf } from '../../system/json.ts';
import { type Endpoint, endpointUrl } from './endpoint.ts';

const answer = z.object({ message: z.string() });

/** An Engine's answer to a call that it refused, with its own words as the message. */
export class Refusal extends Error {
  readonly statusCode: number;

  constructor(statusCode: number, body: string) {
    super((answer.safeParse(jsonOf(body)).data?.message ?? body).trim());
    this.statusCode = statusCode;
  }
}

/** The HTTP status that the Engine answered with; null if it did not answer. */
export function statusOf(error: unknown): number | null {
  return error instanceof Refusal ? error.statusCode : null;
}

/** Translates the error of a call whose purpose was `doing`, such as `start agent x`. */
export function translate(error: unknown, doing: string, endpoint: Endpoint): OnejobError {
  if (error instanceof OnejobError) return error;
  const status = statusOf(error);
  if (status === null) return unreachable(error, doing, endpoint);
  const reason = messageOf(error);
  if (isDiskFull(reason)) return diskFull(doing, reason, error);
  const message = `Cannot ${doing}: the Engine answered ${status}: ${reason}.`;
  // The Engine will never be able to unpack such an archive. Endless retries would block its pool.
  if (/^Error processing tar file/.test(reason)) {
    const hint = 'Check the file that the message names in the workspace.';
    return new OnejobError('E_FILES', message, { hint, cause: error });
  }
  // Podman syncs no layer that it makes (containers/storage issue #1064), and then lists none of the containers.
  const torn = /^getting graph driver info "?([0-9a-f]{12})[0-9a-f]*"?: readlink /.exec(reason)?.[1];
  const hint =
    torn === undefined
      ? 'Type "onejob doctor" to check the Engine.'
      : `A power cut has left this container half written. Type "podman rm --force ${torn}" to remove it.`;
  return new OnejobError('E_ENGINE_FAILED', message, { hint, retry: status >= 500 || status === 409, cause: error });
}

/** The error for a call that did not reach the Engine. */
export function unreachable(error: unknown, doing: string, endpoint: Endpoint): OnejobError {
  const code = codeOf(error);
  const url = endpointUrl(endpoint);
  const what = `Cannot ${doing} with the Docker Engine at ${url} (from ${endpoint.from})`;
  if (code === 'EACCES' || code === 'EPERM') {
    return new OnejobError('E_ENGINE_PERMISSION', `${what}: you do not have permission to open that socket (${code}).`, {
      hint: 'Join its group, e.g. "sudo usermod -aG docker $USER", and log in again.',
      cause: error,
    });
  }
  const start = 'Start it, e.g. "sudo systemctl start docker"';
  const [why, hint] =
    code === 'ENOENT'
      ? ['the socket does not exist', `${start}, or set DOCKER_HOST.`]
      : code === 'ECONNREFUSED'
        ? ['nothing listens there', `${start}.`]
        : [messageOf(error), 'Check whether "docker version" answers.'];
  return new OnejobError('E_ENGINE_UNREACHABLE', `${what}: ${why}.`, { hint, retry: true, cause: error });
}

/** The error for an Engine that accepts connections and answers nothing. `limit` in ms. */
export function mute(doing: string, endpoint: Endpoint, limit: number): OnejobError {
  const message = `Cannot ${doing}: the Docker Engine at ${endpointUrl(endpoint)} did not answer within ${limit / 1000} s.`;
  return new OnejobError('E_ENGINE_UNREACHABLE', message, { hint: 'Check whether "docker version" answers.', retry: true });
}

/** The error for an Engine that was silent about one call, but may answer others: it `what`. */
export function silent(doing: string, endpoint: Endpoint, what: string): OnejobError {
  return new OnejobError('E_ENGINE_SILENT', `Cannot ${doing}: the Docker Engine at ${endpointUrl(endpoint)} ${what}.`, {
    hint: 'Check for a volume, a registry or a disk that does not respond.',
    retry: true,
  });
}

export function isDiskFull(reason: string): boolean {
  return /no space left on device|disk quota exceeded/i.test(reason);
}

export function diskFull(doing: string, reason: string, cause: unknown): OnejobError {
  const hint = 'Free space on it, e.g. with "docker image prune".';
  return new OnejobError('E_DISK_FULL', `Cannot ${doing}: the Engine's disk is full (${reason}).`, { hint, retry: true, cause });
}
