/** Builds the image of a recipe, or finds an earlier build by its name, which depends on all inputs of a complete build. */
import { createReadStream } from 'node:fs';
import { posix } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGunzip } from 'node:zlib';
import { extract, type Pack, pack } from 'tar-stream';
import { createShared, type Progress } from '../base/abortable.ts';
import { messageOf, OnejobError } from '../base/errors.ts';
import type { DockerEnvironment } from '../config/environment.ts';
import type { AgentPackage } from '../ports/ci-service.ts';
import type { Recipe } from '../ports/runtime.ts';
import { type Endpoint, resolveEndpoint } from '../runtimes/engine/endpoint.ts';
import { Engine } from '../runtimes/engine/engine.ts';
import { Images } from '../runtimes/engine/image.ts';
import { systemClock } from '../system/system-clock.ts';
import { getPackage, type PackageParts, prunePackages } from './agent-package.ts';
import type { BuiltImages } from './built.ts';
import { type BuildCall, connectImageEngine, type ImageEngine, type ImageThere } from './engine.ts';
import {
  type BuildPlan,
  basesOf,
  buildPlan,
  type ImageOrder,
  imageLabels,
  type Layer,
  readDockerfile,
  readTemplates,
  recipeOf,
  withOwner,
} from './plan.ts';

export interface ImageWish extends Omit<ImageOrder, 'dockerfile'> {
  readonly dockerfile: string | null;
  readonly pull: Recipe['pull'];
  /** The agent that must be in it, for a platform such as `linux-x64`; null for none. */
  readonly agent: (platform: string, signal: AbortSignal) => Promise<AgentPackage | null>;
}

export interface Built {
  readonly reference: string;
  readonly id: string;
  /** Version of the agent in it; null without an agent. */
  readonly agentVersion: string | null;
  /** For a sandbox's recipe: a built image cannot be pulled from anywhere. */
  readonly pull: Recipe['pull'];
}

interface BuilderParts {
  readonly environment: DockerEnvironment;
  readonly owner: string;
  readonly packages: string;
  /** What was built here. Only that is found again. */
  readonly built: BuiltImages;
  readonly warn?: PackageParts['warn'];
}

/** An image with the name that onejob gave it. */
type NamedImage = ImageThere & { readonly reference: string };

/** What would be built for a wish, and on what. No plan: the base is the image. */
interface Prepared {
  readonly plan: BuildPlan | null;
  readonly base: { readonly reference: string; readonly id: string; readonly user: string } | null;
  readonly agent: AgentPackage | null;
}

/** @throws OnejobError E_ENGINE_ADDRESS. Does not call the Engine. */
export async function createImageBuilder(parts: BuilderParts): Promise<ImageBuilder> {
  return new ImageBuilder(parts, await resolveEndpoint(parts.environment));
}

export class ImageBuilder {
  readonly #parts: BuilderParts;
  readonly #engine: ImageEngine;
  readonly #images: Engine;
  readonly #pulls: Images;
  readonly #shared = createShared<string>();
  readonly #templates = readTemplates();
  /** Label of images of this installation. */
  readonly #own: string;
  /** By recipe. */
  readonly #agents = new Map<string, AgentPackage>();
  #platform: string | null = null;

  constructor(parts: BuilderParts, endpoint: Endpoint) {
    this.#parts = parts;
    this.#engine = connectImageEngine(endpoint);
    this.#images = new Engine(endpoint);
    this.#pulls = new Images(this.#images, parts.environment.config, systemClock.now);
    this.#own = `${imageLabels.owner}=${parts.owner}`;
  }

  /** Whether it is still on the Engine as it was. */
  async isThere({ reference, id }: Built, signal: AbortSignal): Promise<boolean> {
    return (await this.#images.image(reference, signal))?.id === id;
  }

  /** The newest image built for this recipe, whatever was published since; null when there is none. It pulls nothing. */
  async find(wish: ImageWish, signal: AbortSignal): Promise<Built | null> {
    // A build reports why it cannot be read.
    const dockerfile = wish.dockerfile === null ? null : await readDockerfile(wish.dockerfile).catch(() => undefined);
    if (dockerfile === undefined) return null;
    const recipe = recipeOf({ ...wish, dockerfile });
    const made = await this.#engine.labelled([`${imageLabels.recipe}=${recipe}`], signal);
    const newest = onlyNamed(made).find(({ id }) => this.#parts.built.has(id));
    if (newest === undefined) return null;
    const { reference, id, labels } = newest;
    return { reference, id, agentVersion: labels[imageLabels.agentVersion] ?? null, pull: 'never' };
  }

  /** The image of this wish as things are now; built if it does not exist. @throws OnejobError */
  async get(wish: ImageWish, progress: Progress, signal: AbortSignal): Promise<Built> {
    const prepared = await this.#prepare(wish, progress, signal);
    const { plan, base, agent } = prepared;
    if (plan === null) {
      if (base === null) throw new OnejobError('E_BUG', 'An image was asked for that rests on nothing.');
      return { reference: base.reference, id: base.id, agentVersion: null, pull: wish.pull };
    }
    if (agent !== null) this.#agents.set(plan.recipe, agent);
    const there = await this.#images.image(plan.reference, signal);
    const id =
      there !== null && this.#parts.built.has(there.id) && there.labels[imageLabels.hash] === plan.hash
        ? there.id
        : await this.#shared(plan.hash, (say, until) => this.#buildAll(plan, prepared, say, until), progress, signal);
    return { reference: plan.reference, id, agentVersion: agent?.version ?? null, pull: 'never' };
  }

  /** Images that this installation has built, newest first; `containers` is the number of containers from each. */
  async list(signal: AbortSignal): Promise<(NamedImage & { readonly containers: number })[]> {
    const [made, used] = await Promise.all([this.#engine.labelled([this.#own], signal), this.#engine.inUse(signal)]);
    return onlyNamed(made).map((image) => ({ ...image, containers: used.filter((id) => id === image.id).length }));
  }

  /** Removes own images without containers, except for those to `keep`, and what has no name; returns their references. */
  async prune(keep: (image: ImageThere) => boolean, signal: AbortSignal): Promise<string[]> {
    const engine = this.#engine;
    const used = new Set(await engine.inUse(signal));
    const unwanted = onlyNamed(await engine.labelled([this.#own], signal)).filter((image) => !keep(image) && !used.has(image.id));
    const gone: string[] = [];
    for (const { reference } of unwanted) if (await engine.remove(reference)) gone.push(reference);
    this.#parts.built.keepOnly((await engine.labelled([this.#own], signal)).map(({ id }) => id));
    // A running build has no name yet, either.
    if (this.#shared.isBusy()) return gone;
    // The containerd store takes only the name of an image that another one is made of, and leaves the image.
    const isOurs = ({ id, labels }: ImageThere): boolean => labels[imageLabels.hash] === undefined || this.#parts.built.has(id);
    for (const { id } of (await engine.dangling([this.#own], signal)).filter(isOurs)) await engine.remove(id);
    return gone;
  }

  /** Hash of the config's recipe that it was built for; null without one. */
  recipeOf({ labels }: ImageThere): string | null {
    return labels[imageLabels.recipe] ?? null;
  }

  /** Removes packages that no wish needed at the last look. */
  prunePackages(): Promise<void> {
    return prunePackages(this.#parts.packages, [...this.#agents.values()]);
  }

  close(): void {
    this.#engine.close();
    this.#images.close();
  }

  async #prepare(wish: ImageWish, progress: Progress, signal: AbortSignal): Promise<Prepared> {
    const { type, base: reference, packages: names, pull } = wish;
    const { owner, packages } = this.#parts;
    const dockerfile = wish.dockerfile === null ? null : await readDockerfile(wish.dockerfile);
    const bases = reference !== null ? [reference] : basesOf(dockerfile ?? '');
    // Pulled here and not by the build: with the credentials of this host, and before it is decided what to build.
    const found = [];
    for (const image of bases)
      found.push({ reference: image, ...(await this.#pulls.get({ image, pull } as Recipe, progress, signal)) });
    this.#platform ??= platformFor((await this.#images.version(signal)).Arch);
    let agent = await wish.agent(this.#platform, signal);
    if (agent !== null && agent.sha256 === null && agent.from.startsWith('/')) {
      // For a file, its content counts, not its name.
      const { sha256 } = await getPackage(agent, { dir: packages }, () => {}, signal);
      agent = { ...agent, sha256 };
    }
    const ground = { bases: found.map(({ id }) => id), agent, owner };
    const plan = buildPlan({ type, base: reference, packages: names, dockerfile }, ground, this.#templates);
    const [base = null] = reference === null ? [] : found;
    return { plan, base, agent };
  }

  /** Builds the layers one after the other. Only the last one, whose id is returned, gets the name. */
  async #buildAll(
    { reference, layers, labels }: BuildPlan,
    { base, agent }: Prepared,
    progress: Progress,
    signal: AbortSignal,
  ): Promise<string> {
    const { owner, packages, built, warn } = this.#parts;
    const needed = layers.some(({ what }) => what === 'agent') ? agent : null;
    const file = needed && (await getPackage(needed, { dir: packages, ...(warn && { warn }) }, progress, signal));
    let below = base === null ? null : { id: base.id, user: base.user };
    for (const [at, layer] of layers.entries()) {
      const isLast = at === layers.length - 1;
      const part = layers.length === 1 ? '' : ` (${layer.what})`;
      progress(`building the image${part}`);
      const dockerfile = layer.what === 'your Dockerfile' ? withOwner(layer.dockerfile, owner) : layer.dockerfile;
      const call: BuildCall = {
        what: `image ${reference}${part}`,
        tag: isLast ? reference : null,
        args: { ...on(below, layer.what), ...layer.args },
        labels: isLast ? labels : { [imageLabels.owner]: owner },
        context: buildContext(dockerfile, layer.what === 'agent' ? (file?.path ?? null) : null),
      };
      const id = await this.#engine.build(call, (step) => progress(`building the image${part}: ${step}`), signal);
      const made = await this.#images.image(id, signal);
      if (made === null) throw lost(reference);
      below = made;
    }
    if (below === null) throw lost(reference);
    built.add(below.id);
    return below.id;
  }
}

/** What the layer below passes to a layer's Dockerfile. Only the agent's has its own user. */
function on(below: { id: string; user: string } | null, what: Layer['what']): Record<string, string> {
  if (below === null) return {};
  return { BASE: below.id, ...((what === 'packages' || what === 'needs') && { BASE_USER: below.user || '0' }) };
}

/**
 * Images with the name that onejob gave them, newest first: not incomplete ones, nor those built on one, which have its labels too.
 */
function onlyNamed(images: readonly ImageThere[]): NamedImage[] {
  const byAge = images.toSorted((one, other) => other.created - one.created);
  return byAge.flatMap((image) => {
    const hash = image.labels[imageLabels.hash];
    const reference = image.tags.find((tag) => tag.startsWith('onejob/') && tag.endsWith(`:${hash?.slice(0, 12)}`));
    return hash === undefined || reference === undefined ? [] : [{ ...image, reference }];
  });
}

/** As in the names of agents' packages. */
function platformFor(arch: string): string {
  const known: Readonly<Record<string, string>> = { amd64: 'linux-x64', arm64: 'linux-arm64', arm: 'linux-arm' };
  return known[arch] ?? `linux-${arch}`;
}

function lost(reference: string): OnejobError {
  return new OnejobError('E_IMAGE_BUILD', `The Engine built image ${reference}, but does not have it.`, { retry: true });
}

/** User and group of the agent in the image, as in its Dockerfile. */
const agentUser = 1000;

/**
 * What the Engine gets for a build, as a tar stream: the Dockerfile, and the unpacked package at the path `agent`, if not null. An
 * invalid package makes the stream fail with E_AGENT_PACKAGE.
 */
export function buildContext(dockerfile: string, agent: string | null): Readable {
  return Readable.from(contextOf(dockerfile, agent), { objectMode: false });
}

async function* contextOf(dockerfile: string, agent: string | null): AsyncGenerator<Buffer> {
  const writer = pack();
  writer.entry({ name: 'Dockerfile', mode: 0o644 }, dockerfile);
  if (agent === null) writer.finalize();
  // A failure destroys the packer, so reading from it fails with the same error.
  else unpackInto(writer, agent).catch((error) => writer.destroy(error));
  let given: unknown = null;
  try {
    for await (const piece of writer as AsyncIterable<Buffer>)
      try {
        yield piece;
      } catch (error) {
        // The reader's own, such as a connection that broke.
        given = error;
        throw error;
      }
  } catch (error) {
    throw agent === null || error === given ? error : unusable(agent, error);
  }
}

async function unpackInto(writer: Pack, path: string): Promise<void> {
  const reader = extract();
  // Whatever fails ends the loop.
  pipeline(createReadStream(path), createGunzip(), reader).catch(() => {});
  let isThere = false;
  for await (const entry of reader) {
    const { pax: _, uname: _uname, gname: _gname, linkname, type, ...rest } = entry.header;
    const name = within(entry.header.name);
    // A hard link names its target like an entry; for a symbolic link the target is only text here.
    const target = type === 'link' ? within(linkname ?? '') : '';
    if (name === null || target === null) throw new Error(`it contains "${entry.header.name}", which is outside its folder`);
    if (/^bin\/(Agent|Runner)\.Listener$/.test(name)) isThere = true;
    const link = linkname == null ? {} : { linkname: type === 'link' ? `agent/${target}` : linkname };
    await pipeline(entry, writer.entry({ ...rest, ...link, type, name: `agent/${name}`, uid: agentUser, gid: agentUser }));
  }
  if (!isThere) throw new Error('it contains neither bin/Agent.Listener nor bin/Runner.Listener');
  writer.finalize();
}

/** An entry's path below the folder that it is unpacked to; null for one outside. */
function within(name: string): string | null {
  const path = posix.normalize(name);
  if (posix.isAbsolute(path) || path === '..' || path.startsWith('../')) return null;
  return path.replace(/^\.\/?/, (dot) => (path === dot ? '' : dot));
}

function unusable(path: string, cause: unknown): OnejobError {
  if (cause instanceof OnejobError) return cause;
  const hint = 'Check with "tar -tzf" whether it is the .tar.gz of an agent.';
  return new OnejobError('E_AGENT_PACKAGE', `Cannot unpack the agent's package ${path}: ${messageOf(cause)}.`, { hint, cause });
}
