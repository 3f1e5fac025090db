/** Which Engine to use, found as the `docker` command does: DOCKER_HOST, DOCKER_CONTEXT, config.json, then the usual sockets. */
import { hash } from 'node:crypto';
import { access, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { codeOf, OnejobError } from '../../base/errors.ts';
import type { DockerEnvironment } from '../../config/environment.ts';

/** Texts of PEM files; null for a missing one. */
interface Tls extends Readonly<Record<'ca' | 'cert' | 'key', string | null>> {
  /** Whether the certificate of the Engine must be valid. */
  readonly verify: boolean;
}

/** `from` says in words where the address came from. */
export type Endpoint =
  | { readonly kind: 'unix'; readonly path: string; readonly from: string }
  | { readonly kind: 'tcp'; readonly host: string; readonly port: number; readonly tls: Tls | null; readonly from: string };

/** The address as a person would write it. */
export function endpointUrl(endpoint: Endpoint): string {
  return endpoint.kind === 'unix' ? `unix://${endpoint.path}` : `tcp://${endpoint.host}:${endpoint.port}`;
}

const contextMeta = z.object({
  Endpoints: z.object({ docker: z.object({ Host: z.string(), SkipTLSVerify: z.boolean().optional() }) }),
});

/** @throws OnejobError E_ENGINE_ADDRESS if the configured address cannot be used */
export async function resolveEndpoint(settings: DockerEnvironment): Promise<Endpoint> {
  const { host, certPath, tlsVerify, context, config } = settings;
  if (host !== null) return parseHost(host, 'DOCKER_HOST', tlsVerify ? await readTls(certPath ?? config, true) : null);
  const chosen = context ?? (await currentContext(config));
  if (chosen !== null && chosen !== 'default') return fromContext(config, chosen);
  return usualSocket(settings);
}

/** Docker's own config.json; null without one. An empty one counts as none, as for the `docker` command. */
export async function readDockerConfig(folder: string): Promise<string | null> {
  const text = await readFile(join(folder, 'config.json'), 'utf8').catch(() => '');
  return text.trim() === '' ? null : text;
}

async function currentContext(folder: string): Promise<string | null> {
  const path = join(folder, 'config.json');
  const text = await readDockerConfig(folder);
  if (text === null) return null;
  try {
    const config = z.object({ currentContext: z.string().optional() }).parse(JSON.parse(text));
    return config.currentContext || null;
  } catch (cause) {
    throw unusable(`Docker's own configuration ${path} could not be read as JSON`, 'Fix or remove that file.', cause);
  }
}

/** Contexts are stored under the SHA-256 of their name (docker/cli, cli/context/store). */
async function fromContext(folder: string, name: string): Promise<Endpoint> {
  const id = hash('sha256', name);
  const path = join(folder, 'contexts/meta', id, 'meta.json');
  let meta: z.infer<typeof contextMeta>;
  try {
    meta = contextMeta.parse(JSON.parse(await readFile(path, 'utf8')));
  } catch (cause) {
    throw unusable(
      `The Docker context "${name}" was not found under ${folder}, or contains no Docker address`,
      'Type "docker context ls" to list the contexts, and "docker context use default" to go back to the default.',
      cause,
    );
  }
  const { Host, SkipTLSVerify } = meta.Endpoints.docker;
  const material = join(folder, 'contexts/tls', id, 'docker');
  const hasTls = await exists(material);
  const tls = hasTls || SkipTLSVerify === true ? await readTls(material, SkipTLSVerify !== true) : null;
  return parseHost(Host, `Docker context "${name}"`, tls);
}

async function usualSocket({ config, runtimeDir }: DockerEnvironment): Promise<Endpoint> {
  const rootful = '/var/run/docker.sock';
  const rootless = runtimeDir ? [join(runtimeDir, 'docker.sock'), join(runtimeDir, 'podman/podman.sock')] : [];
  for (const path of [rootful, ...rootless, join(config, 'run/docker.sock'), '/run/podman/podman.sock']) {
    if (await exists(path)) return { kind: 'unix', path, from: 'the usual place' };
  }
  return { kind: 'unix', path: rootful, from: 'the usual place' };
}

function parseHost(written: string, from: string, tls: Tls | null): Endpoint {
  const hint = 'Write it as "unix:///var/run/docker.sock" or "tcp://host:2375".';
  if (written.startsWith('unix://')) {
    const path = written.slice('unix://'.length);
    // Node silently cuts a longer path and then uses the wrong socket.
    if (Buffer.byteLength(path) > 100) throw unusable(`${from} names a socket path of more than 100 bytes`, hint);
    return { kind: 'unix', path: path === '' ? '/var/run/docker.sock' : path, from };
  }
  const url = URL.parse(written.includes('://') ? written.replace(/^tcp:/, 'http:') : `http://${written}`);
  if (url === null || url.hostname === '' || !['http:', 'https:'].includes(url.protocol)) {
    throw unusable(`${from} is "${written}", which onejob does not support; it supports unix:// and tcp://`, hint);
  }
  const port = url.port === '' ? (tls === null ? 2375 : 2376) : Number(url.port);
  return { kind: 'tcp', host: url.hostname.replace(/^\[|\]$/g, ''), port, tls, from };
}

async function readTls(folder: string, verify: boolean): Promise<Tls> {
  const read = (name: string) => readFile(join(folder, name), 'utf8').catch(() => null);
  const [ca, cert, key] = await Promise.all([read('ca.pem'), read('cert.pem'), read('key.pem')]);
  if (verify && ca === null) {
    throw unusable(
      `TLS is requested, but ${join(folder, 'ca.pem')} cannot be read`,
      'Set DOCKER_CERT_PATH to the folder that contains ca.pem.',
    );
  }
  return { ca, cert, key, verify };
}

function unusable(what: string, hint: string, cause?: unknown): OnejobError {
  return new OnejobError('E_ENGINE_ADDRESS', `Cannot determine which Docker Engine to use: ${what}.`, { hint, cause });
}

async function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    (error: unknown) => !['ENOENT', 'ENOTDIR'].includes(codeOf(error)),
  );
}
