/**
 * Credentials for a registry, from Docker's own config.json and its credential helpers. They are used in the one request that
 * needs them, and never in messages, logs or the store (S8).
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { systemClock } from '../clock.ts';
import { type Clock, deadline } from '../core/clock.ts';
import { OnejobError } from '../errors.ts';
import { jsonOf } from '../system/json.ts';
import { run } from '../system/run.ts';

/** The content of the Engine's X-Registry-Auth header. */
export type RegistryAuth =
  | { readonly username: string; readonly password: string; readonly serveraddress: string }
  | { readonly identitytoken: string; readonly serveraddress: string };

const dockerConfig = z.object({
  auths: z.record(z.string(), z.object({ auth: z.string().optional(), identitytoken: z.string().optional() })).optional(),
  credHelpers: z.record(z.string(), z.string()).optional(),
  credsStore: z.string().optional(),
});

const helperAnswer = z.object({ Username: z.string(), Secret: z.string() });

/** ms that a credential helper may take. */
const patience = 30_000;

/** The address of Docker Hub in config.json and for helpers. */
const hub = 'https://index.docker.io/v1/';

/** null if there are none for the registry; it is then asked anonymously. `folder` holds config.json. */
export async function registryAuth(
  folder: string,
  registry: string,
  signal: AbortSignal,
  clock: Clock = systemClock,
): Promise<RegistryAuth | null> {
  const path = join(folder, 'config.json');
  const written = await readFile(path, 'utf8').catch(() => null);
  if (written === null) return null;
  const { data: config } = dockerConfig.safeParse(jsonOf(written));
  if (config === undefined) {
    // Without a cause: a JSON error quotes the text, which may contain a password.
    throw new OnejobError('E_ENGINE_ADDRESS', `Cannot read credentials for ${registry}: ${path} is not in Docker's format.`, {
      hint: 'Fix or remove that file.',
    });
  }
  const server = registry === 'docker.io' ? hub : registry;
  const helper = config.credHelpers?.[server] ?? config.credHelpers?.[registry] ?? config.credsStore;
  if (helper !== undefined && helper !== '') return askHelper(helper, server, signal, clock);
  for (const [key, { auth, identitytoken }] of Object.entries(config.auths ?? {})) {
    if (hostOf(key) !== hostOf(server)) continue;
    if (identitytoken) return { identitytoken, serveraddress: server };
    const [username, ...password] = Buffer.from(auth ?? '', 'base64')
      .toString('utf8')
      .split(':');
    if (username) return { username, password: password.join(':').replace(/\0+$/, ''), serveraddress: server };
  }
  return null;
}

/** The protocol of docker/docker-credential-helpers: `get`, the server on standard input, JSON on standard output. */
async function askHelper(name: string, server: string, signal: AbortSignal, clock: Clock): Promise<RegistryAuth | null> {
  const program = `docker-credential-${name}`;
  using late = deadline(clock, patience, signal);
  const { code, error, stdout } = await run(program, ['get'], {
    ...{ input: `${server}\n`, signal: late.signal },
    // It may have to release its own lock or agent.
    killSignal: 'SIGTERM',
  });
  signal.throwIfAborted();
  const said = stdout.toString();
  const answer = helperAnswer.safeParse(jsonOf(said));
  if (code === 0 && answer.success) {
    const { Username: username, Secret: password } = answer.data;
    return username === '<token>'
      ? { identitytoken: password, serveraddress: server }
      : { username, password, serveraddress: server };
  }
  const missing = code === 'ENOENT';
  const hasEnded = code === null || typeof code === 'number';
  if (hasEnded && code !== 0 && /credentials not found/i.test(said)) return null;
  const failure = hasEnded ? `Error: it ended with exit code ${code}` : String(error);
  const why = missing ? 'it is not on PATH' : code === 0 ? 'it printed an invalid response' : failure;
  throw new OnejobError('E_IMAGE_DENIED', `Cannot get credentials for ${server} from ${program}: ${why}.`, {
    hint: `Try: echo ${server} | ${program} get`,
    retry: !missing,
  });
}

function hostOf(server: string): string {
  const host = server.replace(/^https?:\/\//, '').split('/')[0] ?? '';
  return host === 'index.docker.io' || host === 'registry-1.docker.io' ? 'docker.io' : host;
}
