/**
 * Images: which exist, pulls that are shared by all who wait, and the meaning of refusals. Credentials for a registry come from
 * Docker's own config.json and its credential helpers. Only the request that needs them has them: no message, log or store (S8).
 */
import { join } from 'node:path';
import { z } from 'zod';
import { createShared, type Progress } from '../../base/abortable.ts';
import { codeOf, hasCode, messageOf, OnejobError } from '../../base/errors.ts';
import { imageReference, isOwnName } from '../../base/image-reference.ts';
import { type Clock, deadline } from '../../core/clock.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { jsonOf } from '../../system/json.ts';
import { run } from '../../system/run.ts';
import { readDockerConfig } from './endpoint.ts';
import type { Engine, ImageAnswer } from './engine.ts';
import { diskFull, isDiskFull, statusOf, translate } from './failures.ts';

/** What a sandbox is made from. */
export type Image = Omit<ImageAnswer, 'labels'>;

const progressLine = z.object({
  status: z.string().optional(),
  id: z.string().optional(),
  progressDetail: z.object({ current: z.number().optional(), total: z.number().optional() }).optional(),
  errorDetail: z.object({ message: z.string() }).optional(),
});

/** ms for which a look at an image is valid. If a tag moves meanwhile, one more standby uses the old image. */
const believed = 3_000;

export class Images {
  readonly #engine: Engine;
  readonly #configDir: string;
  readonly #now: () => number;
  readonly #seen = new Map<string, { readonly image: Image; readonly at: number }>();
  readonly #pulls = createShared<void>();

  /** `configDir` holds Docker's credentials; `now` is a monotonic clock in ms. */
  constructor(engine: Engine, configDir: string, now: () => number) {
    this.#engine = engine;
    this.#configDir = configDir;
    this.#now = now;
  }

  /** The image of that name or id; null if the Engine does not have it. @throws OnejobError E_IMAGE_NOT_FOUND for an invalid name */
  async look(reference: string, signal: AbortSignal): Promise<Image | null> {
    if (!imageReference.test(reference)) {
      const hint = 'Write it as registry/name:tag, with the name in lower case.';
      throw new OnejobError('E_IMAGE_NOT_FOUND', `"${reference}" is not a valid image name.`, { hint });
    }
    const seen = this.#seen.get(reference);
    if (seen !== undefined && this.#now() - seen.at < believed) return seen.image;
    const image = await this.#engine.image(reference, signal);
    if (image === null) this.#seen.delete(reference);
    else this.#seen.set(reference, { image, at: this.#now() });
    return image;
  }

  /** The image that a recipe's sandboxes are made from; null if it is not there. */
  async of({ image, imageId }: Recipe, signal: AbortSignal): Promise<Image | null> {
    const reference = imageId ?? image;
    // `get` says what is wrong with a name. Here it would be a fault of the Engine.
    return reference === null || !imageReference.test(reference) ? null : this.look(reference, signal);
  }

  forget({ image, imageId }: Recipe): void {
    for (const reference of [image, imageId]) if (reference != null) this.#seen.delete(reference);
  }

  /** The image of a recipe, pulled if its policy says so. @throws OnejobError, whose code says what is wrong with it */
  async get(recipe: Recipe, progress: Progress, signal: AbortSignal): Promise<Image> {
    const reference = recipe.image;
    if (reference === null) {
      const hint = 'Set "image" in the pool, e.g. "debian:stable-slim".';
      throw new OnejobError('E_IMAGE_NOT_FOUND', 'Cannot create a container: the pool names no image.', { hint });
    }
    if (recipe.imageId !== undefined) {
      const there = await this.look(recipe.imageId, signal);
      if (there !== null) return there;
      const message = `Image "${recipe.imageId}", which was "${reference}", is no longer on the Engine.`;
      throw new OnejobError('E_IMAGE_NOT_FOUND', message);
    }
    if (recipe.publicOnly === true) await this.#mustBePublic(reference, signal);
    if (recipe.pull === 'always' && imageReference.test(reference)) await this.#pull(reference, progress, signal);
    const there = await this.look(reference, signal);
    if (there !== null) return there;
    if (recipe.pull === 'never') throw notFetched(reference);
    await this.#pull(reference, progress, signal);
    const pulled = await this.look(reference, signal);
    if (pulled !== null) return pulled;
    throw new OnejobError('E_PULL_FAILED', `The Engine pulled image "${reference}", but does not have it.`, { retry: true });
  }

  /** Why a recipe's image cannot be pulled now; null if it can, the Engine cannot tell, or the recipe names none. Pulls nothing. */
  async trouble({ image: reference, pull: policy }: Recipe, signal: AbortSignal): Promise<OnejobError | null> {
    if (reference === null) return null;
    try {
      if ((await this.look(reference, signal)) !== null) return null;
      if (policy === 'never') return notFetched(reference);
      if (isOwnName(reference)) return notPulled(reference);
      await this.#engine.distribution(reference, await this.#auth(reference, signal), signal);
      return null;
    } catch (error) {
      signal.throwIfAborted();
      return cannotAsk(error) ? null : pullFailure(reference, error, this.#engine);
    }
  }

  /** Its name with the digest that its registry has under it now, asked with the credentials of this. @throws OnejobError */
  async pinned(reference: string, signal: AbortSignal): Promise<string> {
    try {
      const digest = await this.#engine.distribution(reference, await this.#auth(reference, signal), signal);
      if (digest === null) throw new Error('the Engine does not say what the registry has');
      return `${parseReference(reference).name}@${digest}`;
    } catch (error) {
      signal.throwIfAborted();
      throw pullFailure(reference, error, this.#engine);
    }
  }

  #auth(reference: string, signal: AbortSignal): Promise<object | null> {
    return registryAuth(this.#configDir, parseReference(reference).registry, signal, this.#engine.clock);
  }

  #pull(reference: string, progress: Progress, signal: AbortSignal): Promise<void> {
    return this.#pulls(reference, (say, until) => this.#pullOnce(reference, say, until), progress, signal);
  }

  async #pullOnce(reference: string, progress: Progress, signal: AbortSignal): Promise<void> {
    if (isOwnName(reference)) throw notPulled(reference);
    const { name, tag } = parseReference(reference);
    const shown = createProgress(reference, progress);
    try {
      const auth = await this.#auth(reference, signal);
      progress(`pulling ${reference}`);
      for await (const line of this.#engine.pull({ fromImage: name, tag }, auth, signal)) {
        const step = progressLine.parse(JSON.parse(line));
        if (step.errorDetail !== undefined) throw new Error(step.errorDetail.message);
        shown(step);
      }
      signal.throwIfAborted();
      progress(`pulled ${reference}`);
    } catch (error) {
      signal.throwIfAborted();
      throw pullFailure(reference, error, this.#engine);
    } finally {
      this.#seen.delete(reference);
    }
  }

  /**
   * Asks the registry as a stranger, also for an image that is there: another pool may have pulled it with the password of this host.
   * Where this host has no password, nothing can have come by one.
   */
  async #mustBePublic(reference: string, signal: AbortSignal): Promise<void> {
    if (!imageReference.test(reference) || (await this.#auth(reference, signal)) === null) return;
    try {
      await this.#engine.distribution(reference, null, signal);
    } catch (error) {
      signal.throwIfAborted();
      const { registry } = parseReference(reference);
      const what = `Cannot use image "${reference}": the job named it,`;
      const pools = `Let the job use the image of its pool. A service of type gitlab can name the registry in "images", which lets trusted jobs use the password of this host; "gitlab-executor --job-images" has no such key.`;
      if (cannotAsk(error)) {
        const why = `this host has a password for ${registry}, and this Engine cannot ask whether everybody may pull it`;
        const login = registry === 'docker.io' ? '' : ` ${registry}`;
        const hint = `Podman can from version 6 on. ${pools} If no pool needs that password, type "docker logout${login}" as the user onejob runs as.`;
        throw new OnejobError('E_IMAGE_DENIED', `${what} ${why}.`, { hint, cause: error });
      }
      const failure = pullFailure(reference, error, this.#engine);
      if (failure.retry) throw failure;
      const message = `${what} and ${registry} does not give it to everybody.`;
      throw new OnejobError('E_IMAGE_DENIED', message, { hint: pools, cause: error });
    }
  }
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
  const reason = messageOf(error);
  const wording = withoutNames(reason, reference);
  const { registry } = parseReference(reference);
  const what = `Cannot pull image "${reference}"`;
  if (isDiskFull(reason)) return diskFull(`pull image "${reference}"`, reason, error);
  if (notThere.test(wording)) {
    const hint = 'Check its name and tag in the pool.';
    return new OnejobError('E_IMAGE_NOT_FOUND', `${what}: ${registry} does not have it (${reason}).`, { hint, cause: error });
  }
  if (denied.test(wording)) {
    const login = `docker login${registry === 'docker.io' ? '' : ` ${registry}`}`;
    const hint = `Check the name, or type "${login}" as the user onejob runs as.`;
    return new OnejobError('E_IMAGE_DENIED', `${what}: ${registry} refused (${reason}).`, { hint, cause: error });
  }
  const options = { hint: `Check whether "docker pull ${reference}" works.`, retry: true, cause: error };
  if (!unreached.test(wording)) return new OnejobError('E_PULL_FAILED', `${what}: ${reason}.`, options);
  return new OnejobError('E_REGISTRY_UNREACHABLE', `${what}: the Engine could not reach ${registry} (${reason}).`, options);
}

/** What was reason, without the words that a job may choose: an image may be called `timeout`. */
function withoutNames(message: string, reference: string): string {
  const { name, tag } = parseReference(reference);
  const path = name.slice(name.lastIndexOf('/') + 1);
  return message
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
  // Paths on Docker Hub have no capital letters, so such a first part is a host (distribution/reference, normalize.go).
  const hasRegistry = name.includes('/') && (/[.:A-Z]/.test(first) || first === 'localhost');
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
  const output = stdout.toString();
  const answer = helperAnswer.safeParse(jsonOf(output));
  if (code === 0 && answer.success) {
    const { Username: username, Secret: password } = answer.data;
    return username === '<token>'
      ? { identitytoken: password, serveraddress: server }
      : { username, password, serveraddress: server };
  }
  const missing = code === 'ENOENT';
  const hasEnded = code === null || typeof code === 'number';
  if (hasEnded && code !== 0 && /credentials not found/i.test(output)) return null;
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
