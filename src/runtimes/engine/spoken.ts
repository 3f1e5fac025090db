/**
 * The version of its API in which onejob speaks to an Engine. A call without one is deprecated, and means whatever the newest version
 * of that Engine says (Docker's reference, "Versioning"). Only a ping has none (Podman says so of its own, `docker` sends it so), and its
 * answer names what the Engine speaks.
 */

import { messageOf, OnejobError } from '../../base/errors.ts';
import { compareVersions, leadingVersion } from '../../base/version.ts';
import { type Endpoint, endpointUrl } from './endpoint.ts';
import { statusOf, unreachable } from './failures.ts';
import { get } from './wire.ts';

/** The oldest Engines that work, and why these: docs/adr/0011. */
const oldest = { api: '1.41', docker: '20.10', podman: '4.3' } as const;
/** The newest version of the API whose reference was read for every call. */
const newestApi = '1.55';

export interface Spoken {
  /** Of the API. */
  readonly version: string;
  /** Whether it is Podman with its Docker-compatible socket. */
  readonly podman: boolean;
}

/** Asks the Engine. @throws OnejobError E_ENGINE_VERSION, E_ENGINE_UNREACHABLE, and what Node throws */
export async function spokenWith(endpoint: Endpoint, doing: string, signal: AbortSignal): Promise<Spoken> {
  const { status, headers, body } = await get(endpoint, '/_ping', signal);
  const api = leadingVersion(text(headers['api-version']));
  if (status !== 200 || api === null) {
    const what = status === 200 ? 'without the version of its API' : `${status}: ${body.slice(0, 200)}`;
    throw unreachable(new Error(`it answered a ping ${what}`), doing, endpoint);
  }
  const podman = text(headers['libpod-api-version']);
  if (podman !== null && compareVersions(leadingVersion(podman) ?? '0', oldest.podman) < 0) {
    throw tooOld(doing, endpoint, `is Podman ${podman}, and onejob needs ${oldest.podman} or newer`);
  }
  if (compareVersions(api, oldest.api) < 0) {
    const needs = `onejob needs ${oldest.api}, which Docker Engine ${oldest.docker} and Podman ${oldest.podman} and newer have`;
    throw tooOld(doing, endpoint, `has version ${api} of the API, and ${needs}`);
  }
  return { version: compareVersions(api, newestApi) < 0 ? api : newestApi, podman: podman !== null };
}

/** The error for a version that the Engine does not speak, although it was agreed on; null for any other error. */
export function refusedVersion(error: unknown, doing: string, endpoint: Endpoint, version: string): OnejobError | null {
  // moby, daemon/server/middleware/version.go
  if (statusOf(error) !== 400 || !/^client version \S+ is too (?:old|new)/.test(messageOf(error))) return null;
  const what = `the Engine at ${endpointUrl(endpoint)} does not accept version ${version} of its API: ${messageOf(error)}`;
  const hint = 'If it was just updated, onejob asks it again. Otherwise update onejob.';
  return new OnejobError('E_ENGINE_VERSION', `Cannot ${doing}: ${what}.`, { hint, retry: true, cause: error });
}

function tooOld(doing: string, endpoint: Endpoint, what: string): OnejobError {
  const hint = 'Update it, or choose another one with DOCKER_HOST.';
  return new OnejobError('E_ENGINE_VERSION', `Cannot ${doing}: the Engine at ${endpointUrl(endpoint)} ${what}.`, { hint });
}

function text(header: string | string[] | undefined): string | null {
  return typeof header === 'string' ? header : null;
}
