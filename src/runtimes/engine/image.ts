/**
 * Images: which exist, pulls that are shared by all who wait, and the meaning of refusals. Credentials for a registry come from
 * Docker's own config.json and its credential helpers. Only the request that needs them has them: no message, log or store (S8).
 */
import { join } from 'node:path';
import { z } from 'zod';
import { createShared, type Progress } from '../../base/abortable.ts';
import { codeOf, hasCode, messageOf, OnejobError } from '../../base/errors.ts';
import { imageReference } from '../../base/image-reference.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { jsonOf } from '../../system/json.ts';
import { run } from '../../system/run.ts';
import { readDockerConfig } from './endpoint.ts';
import type { Engine } from './engine.ts';
import { diskFull, isDiskFull, statusOf, translate } from './failures.ts';
import { isOwnName } from './own-names.ts';

export interface Image {
  readonly id: string;
  /** The image's own user; empty for root. */
  readonly user: string;
  /** Its PATH; null for the Engine's own. */
  readonly path: string | null;
}

const progressLine = z.object({
  status: z.string().optional(),
  id: z.string().optional(),
  progressDetail: z.object({ current: z.number().optional(), total: z.number().optional() }).optional(),
  error: z.string().optional(),
});

/** ms for which a look at an image is valid. If a tag moves meanwhile, one more standby uses the old image. */
const believed = 3_000;

export type Images = ReturnType<typeof createImages>;

/** `configDir` holds Docker's credentials; `now` is a monotonic clock in ms. */
export function createImages(engine: Engine, configDir: string, now: () => number) {
  const seen = new Map<string, { readonly image: Image; readonly at: number }>();
  const pulls = createShared<void>();

  /** null if the Engine does not have it. */
  const look = async (reference: string, signal: AbortSignal): Promise<Image | null> => {
    if (!imageReference.test(reference)) {
      const hint = 'Write it as registry/name:tag, with the name in lower case.';
      throw new OnejobError('E_IMAGE_NOT_FOUND', `"${reference}" is not a valid image name.`, { hint });
    }
    const known = seen.get(reference);
    if (known !== undefined && now() - known.at < believed) return known.image;
    const image = await engine.image(reference, signal);
    if (image === null) seen.delete(reference);
    else seen.set(reference, { image, at: now() });
    return image;
  };

  const pullOnce = async (reference: string, progress: Progress, signal: AbortSignal): Promise<void> => {
    if (isOwnName(reference)) throw notPulled(reference);
    const { name, tag, registry } = parseReference(reference);
    const shown = createProgress(reference, progress);
    try {
      const auth = await registryAuth(configDir, registry, signal, engine.clock);
      progress(`pulling ${reference}`);
      for await (const line of engine.pull({ fromImage: name, tag }, auth, signal)) {
        const said = progressLine.parse(JSON.parse(line));
        if (said.error !== undefined) throw new Error(said.error);
        shown(said);
      }
      signal.throwIfAborted();
      progress(`pulled ${reference}`);
    } catch (error) {
      signal.throwIfAborted();
      throw pullFailure(reference, error, engine);
    } finally {
      seen.delete(reference);
    }
  };
  const pull = (reference: string, progress: Progress, signal: AbortSignal): Promise<void> =>
    pulls(reference, (say, until) => pullOnce(reference, say, until), progress, signal);

  /**
   * Asks the registry as a stranger, also for an image that is there: another pool may have pulled it with the password of this host.
   * Where this host has no password, nothing can have come by one.
   */
  const mustBePublic = async (reference: string, signal: AbortSignal): Promise<void> => {
    const { registry } = parseReference(reference);
    if (!imageReference.test(reference) || (await registryAuth(configDir, registry, signal, engine.clock)) === null) return;
    try {
      await engine.distribution(reference, null, signal);
    } catch (error) {
      signal.throwIfAborted();
      const what = `Cannot use image "${reference}": the job named it,`;
      const pools = `Let the job use the image of its pool. A service of type gitlab can name the registry in "images", which lets trusted jobs use the password of this host; "gitlab-executor --job-images" has no such key.`;
      if (cannotAsk(error)) {
        const why = `this host has a password for ${registry}, and this Engine cannot ask whether everybody may pull it`;
        const login = registry === 'docker.io' ? '' : ` ${registry}`;
        const hint = `Podman can from version 6 on. ${pools} If no pool needs that password, type "docker logout${login}" as the user onejob runs as.`;
        throw new OnejobError('E_IMAGE_DENIED', `${what} ${why}.`, { hint, cause: error });
      }
      const failure = pullFailure(reference, error, engine);
      if (failure.retry) throw failure;
      throw new OnejobError('E_IMAGE_DENIED', `${what} and ${registry} does not give it to everybody.`, {
        hint: pools,
        cause: error,
      });
    }
  };

  return {
    look,
    /** The image that a recipe's sandboxes are made from; null if it is not there. */
    of: async ({ image, imageId }: Recipe, signal: AbortSignal): Promise<Image | null> => {
      const reference = imageId ?? image;
      // `get` says what is wrong with a name. Here it would be a fault of the Engine.
      return reference === null || !imageReference.test(reference) ? null : look(reference, signal);
    },
    forget({ image, imageId }: Recipe): void {
      for (const reference of [image, imageId]) if (reference != null) seen.delete(reference);
    },

    get: async (recipe: Recipe, progress: Progress, signal: AbortSignal): Promise<Image> => {
      const reference = recipe.image;
      if (reference === null) {
        const hint = 'Set "image" in the pool, e.g. "debian:stable-slim".';
        throw new OnejobError('E_IMAGE_NOT_FOUND', 'Cannot create a container: the pool names no image.', { hint });
      }
      if (recipe.imageId !== undefined) {
        const there = await look(recipe.imageId, signal);
        if (there !== null) return there;
        throw new OnejobError(
          'E_IMAGE_NOT_FOUND',
          `Image "${recipe.imageId}", which was "${reference}", is no longer on the Engine.`,
        );
      }
      if (recipe.publicOnly === true) await mustBePublic(reference, signal);
      if (recipe.pull === 'always' && imageReference.test(reference)) await pull(reference, progress, signal);
      const there = await look(reference, signal);
      if (there !== null) return there;
      if (recipe.pull === 'never') throw notFetched(reference);
      await pull(reference, progress, signal);
      const pulled = await look(reference, signal);
      if (pulled !== null) return pulled;
      throw new OnejobError('E_PULL_FAILED', `The Engine pulled image "${reference}", but does not have it.`, { retry: true });
    },

    /** Why a recipe's image cannot be pulled now; null if it can, the Engine cannot tell, or the recipe names none. Pulls nothing. */
    trouble: async ({ image: reference, pull: policy }: Recipe, signal: AbortSignal): Promise<OnejobError | null> => {
      if (reference === null) return null;
      try {
        if ((await look(reference, signal)) !== null) return null;
        if (policy === 'never') return notFetched(reference);
        if (isOwnName(reference)) return notPulled(reference);
        const auth = await registryAuth(configDir, parseReference(reference).registry, signal, engine.clock);
        await engine.distribution(reference, auth, signal);
        return null;
      } catch (error) {
        signal.throwIfAborted();
        return cannotAsk(error) ? null : pullFailure(reference, error, engine);
      }
    },
  };
}

function notFetched(reference: string): OnejobError {
  return new OnejobError('E_IMAGE_NOT_FOUND', `Image "${reference}" is not on the Engine, and "pull: never" forbids pulling it.`, {
    hint: `Type "docker pull ${reference}", or write "pull: missing".`,
  });
}

/** From a registry it would be an image of somebody else, with the name of ours. */
function notPulled(reference: string): OnejobError {
  return new OnejobError(
    'E_IMAGE_NOT_FOUND',
    `Image "${reference}" is not on the Engine, and onejob never pulls an image with the name of those that it builds itself.`,
    { hint: 'Give the pool the recipe, as in image: { base: … }: onejob builds its image again.' },
  );
}

/** Reports one line per tenth of the known size. */
function createProgress(reference: string, progress: Progress) {
  const layers = new Map<string, { current: number; total: number }>();
  let lastTenth = 0;
  return ({ status, id, progressDetail }: z.infer<typeof progressLine>): void => {
    if (id === undefined || status !== 'Downloading' || !progressDetail?.total) return;
    layers.set(id, { current: progressDetail.current ?? 0, total: progressDetail.total });
    const all = [...layers.values()];
    const total = all.reduce((sum, layer) => sum + layer.total, 0);
    const current = all.reduce((sum, layer) => sum + layer.current, 0);
    const tenth = Math.floor((current / total) * 10);
    if (tenth <= lastTenth) return;
    lastTenth = tenth;
    progress(`pulling ${reference}: ${mebibytes(current)} of ${mebibytes(total)} MiB`);
  };
}

function mebibytes(bytes: number): string {
  return (bytes / 2 ** 20).toFixed(bytes < 10 * 2 ** 20 ? 1 : 0);
}

/** Podman before 6 has no call that asks a registry for an image. */
function cannotAsk(error: unknown): boolean {
  return statusOf(error) === 404 && /^Path \/\S*\/?distribution\/\S+ is not supported$/.test(messageOf(error));
}

const notThere =
  /manifest unknown|manifest for .* not found|name unknown|not found: manifest|no such image|invalid reference format|repository .* not found|failed to resolve reference .*: not found/i;
const denied =
  /unauthorized|authentication required|access to the resource is denied|pull access denied|denied:|no basic auth|forbidden|\b40[13]\b/i;
const unreached =
  /dial tcp|lookup |connection refused|timeout|timed out|no such host|TLS handshake|EOF|request canceled|x509|network is unreachable|connection reset|broken pipe|server closed|transport connection broken|toomanyrequests|HTTP status: (429|5\d\d)|unexpected status .*: (429|5\d\d)/i;

/** Translates the Engine's words about a pull. Docker gives no codes here. */
function pullFailure(reference: string, error: unknown, engine: Engine): OnejobError {
  if (hasCode(error, 'E_ENGINE_SILENT')) {
    // The Engine answers other calls, so it waits for the registry.
    const { message, hint } = error;
    return new OnejobError('E_REGISTRY_UNREACHABLE', message, { hint, retry: true, cause: error });
  }
  if (error instanceof OnejobError) return error;
  // The connection to the Engine itself broke.
  if (codeOf(error) !== '' && statusOf(error) === null) return translate(error, `pull image "${reference}"`, engine.endpoint);
  const said = messageOf(error);
  const reasons = withoutNames(said, reference);
  const { registry } = parseReference(reference);
  const what = `Cannot pull image "${reference}"`;
  if (isDiskFull(said)) return diskFull(`pull image "${reference}"`, said, error);
  if (notThere.test(reasons)) {
    const hint = 'Check its name and tag in the pool.';
    return new OnejobError('E_IMAGE_NOT_FOUND', `${what}: ${registry} does not have it (${said}).`, { hint, cause: error });
  }
  if (denied.test(reasons)) {
    const login = `docker login${registry === 'docker.io' ? '' : ` ${registry}`}`;
    const hint = `Check the name, or type "${login}" as the user onejob runs as.`;
    return new OnejobError('E_IMAGE_DENIED', `${what}: ${registry} refused (${said}).`, { hint, cause: error });
  }
  const options = { hint: `Check whether "docker pull ${reference}" works.`, retry: true, cause: error };
  if (!unreached.test(reasons)) return new OnejobError('E_PULL_FAILED', `${what}: ${said}.`, options);
  return new OnejobError('E_REGISTRY_UNREACHABLE', `${what}: the Engine could not reach ${registry} (${said}).`, options);
}

/** What was said, without the words that a job may choose: an image may be called `timeout`. */
function withoutNames(said: string, reference: string): string {
  const { name, tag } = parseReference(reference);
  const path = name.slice(name.lastIndexOf('/') + 1);
  return said
    .replaceAll(/https?:\/\/[^\s"]*[^\s":]/g, '')
    .replaceAll(`${path}:${tag}`, '')
    .replaceAll(`${path}@${tag}`, '');
}

/**
 * `debian` is `debian:latest` from `docker.io`; `ghcr.io/x/y@sha256:…` names its registry and content. `name` is the value for
 * Docker's `fromImage`, `tag` a tag or digest: without one Docker would pull every tag.
 */
export function parseReference(written: string) {
  const at = written.indexOf('@');
  const beforeDigest = at === -1 ? written : written.slice(0, at);
  const colon = beforeDigest.indexOf(':', beforeDigest.lastIndexOf('/') + 1);
  const name = colon === -1 ? beforeDigest : beforeDigest.slice(0, colon);
  const tag = at !== -1 ? written.slice(at + 1) : colon === -1 ? 'latest' : beforeDigest.slice(colon + 1);
  const first = name.split('/')[0] ?? '';
  const hasRegistry = name.includes('/') && (/[.:]/.test(first) || first === 'localhost');
  return { name, tag, registry: hasRegistry && first !== 'index.docker.io' ? first : 'docker.io' };
}

const dockerConfig = z.object({
  auths: z.record(z.string(), z.object({ auth: z.string().optional(), identitytoken: z.string().optional() })).optional(),
  credHelpers: z.record(z.string(), z.string()).optional(),
  credsStore: z.string().optional(),
});

const helperAnswer = z.object({ Username: z.string(), Secret: z.string() });

/** ms that a credential helper may take. */
const helperPatience = 30_000;

/** The address of Docker Hub in config.json and for helpers. */
const hub = 'https://index.docker.io/v1/';

/** The X-Registry-Auth header; null without credentials: the registry is then asked anonymously. `folder` holds config.json. */
async function registryAuth(folder: string, registry: string, signal: AbortSignal, clock: Clock): Promise<object | null> {
  const path = join(folder, 'config.json');
  const written = await readDockerConfig(folder);
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
    const pair = Buffer.from(auth ?? '', 'base64').toString('utf8');
    const [username, ...password] = pair.split(':');
    if (username) return { username, password: password.join(':').replace(/\0+$/, ''), serveraddress: server };
  }
  return null;
}

/** The protocol of docker/docker-credential-helpers: `get`, the server on standard input, JSON on standard output. */
async function askHelper(name: string, server: string, signal: AbortSignal, clock: Clock): Promise<object | null> {
  const program = `docker-credential-${name}`;
  using late = deadline(clock, helperPatience, signal);
  // TERM, because it may have to release its own lock or agent.
  const options = { input: `${server}\n`, signal: late.signal, killSignal: 'SIGTERM' } as const;
  const { code, error, stdout } = await run(program, ['get'], options);
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
