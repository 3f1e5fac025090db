/**
 * `onejob image build`, `list`, `prune` and `refresh`: the images that onejob builds. A daemon does it where there is one, so that
 * nothing is built twice at a time; otherwise this process does, and starts no agent for it.
 */
import type { ImageDesk } from '../api/image-desk.ts';
import type { ImageOutcome, ImageView } from '../api/image-schema.ts';
import { OnejobError } from '../errors.ts';
import { printable } from './color.ts';
import { isGone, withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';
import { table } from './table.ts';

/** 1 when an image could not be made. */
export async function makeImages(session: Session, what: 'build' | 'refresh', pools: readonly string[]): Promise<number> {
  const { output } = session;
  let last = '';
  const progress = (pool: string, line: string): void => {
    const text = `${pool}: ${line}`;
    if (text === last || output.json) return;
    last = text;
    // At a terminal in one line, elsewhere one after the other: a build may take minutes.
    if (output.showsProgress) output.progress(text);
    else output.say(text);
  };
  const outcomes = await withDesk(session, (desk, signal) => desk.make(what, pools, progress, signal));
  output.progress(null);
  for (const outcome of outcomes) {
    if (output.json) await output.value(outcome);
    else await show(session, outcome);
  }
  if (outcomes.length === 0 && !output.json) await output.print('No pool has an image that is built.');
  return outcomes.some(({ what: end }) => end === 'failed') ? exitCodes.failed : exitCodes.ok;
}

async function show({ output }: Session, { pool, image, agent, what, problem }: ImageOutcome): Promise<void> {
  if (problem !== null) {
    output.say(`pool ${pool}: no image could be made`);
    output.fail(new OnejobError('E_IMAGE_BUILD', problem.message, problem.hint === null ? {} : { hint: problem.hint }));
    return;
  }
  const said = { there: 'is there', built: 'was built', newer: 'is new: idle agents are renewed, running ones go on', failed: '' };
  const version = agent === null ? '' : ` (agent ${agent})`;
  const text = image === null ? 'it has no image yet, or needs none' : `${image}${version} ${said[what]}`;
  await output.print(printable(`${pool}: ${text}`));
}

export async function listImages(session: Session, now = Date.now()): Promise<number> {
  const { output } = session;
  const images = await withDesk(session, (desk, signal) => desk.list(signal));
  if (output.json) for (const image of images) await output.value(image);
  else if (images.length === 0) await output.print('No image that onejob has built is on the Engine.');
  else {
    const [head = '', ...rest] = table([headings, ...images.map((image) => row(image, now))], output.width);
    await output.print(output.colors.dim(head), ...rest);
  }
  return exitCodes.ok;
}

const headings = ['IMAGE', 'AGENT', 'SIZE', 'AGE', 'CONTAINERS', 'POOLS', 'BUILT ON'];

function row({ reference, agent, size, createdAt, containers, pools, base }: ImageView, now: number): string[] {
  const used = pools.length === 0 ? '-' : pools.join(',');
  return [reference, agent ?? '-', sizeOf(size), ageOf(now - createdAt), `${containers}`, used, base ?? 'a Dockerfile'].map(
    printable,
  );
}

export async function pruneImages(session: Session): Promise<number> {
  const { output } = session;
  const removed = await withDesk(session, (desk, signal) => desk.prune(signal));
  if (output.json) await output.value({ removed });
  else if (removed.length === 0) await output.print('Nothing to remove: every image that onejob has built is used.');
  else await output.print(...removed.map((name) => `removed ${name}`));
  return exitCodes.ok;
}

/** What is built for each pool, as Dockerfiles: needs neither Engine nor CI service. */
export async function printImages(session: Session, pools: readonly string[]): Promise<number> {
  const [{ recipeText }, { loadConfig }] = await Promise.all([import('./image-text.ts'), import('../config/load.ts')]);
  const { config } = await loadConfig(loadOptions(session));
  const { output } = session;
  for (const found of await recipeText(config, pools)) {
    if (output.json) await output.value(found);
    else await output.print(found.text.trimEnd(), '');
  }
  return exitCodes.ok;
}

/** Whoever can do it: the daemon that leads here, or nobody, and then we. */
async function withDesk<T>(session: Session, work: (desk: ImageDesk, signal: AbortSignal) => Promise<T>): Promise<T> {
  const stop = new AbortController();
  const release = session.context.onSignal(() => stop.abort(new OnejobError('E_USAGE', 'Interrupted; what was built is kept.')));
  try {
    return await withDaemon(session, (client) => work(client.images, stop.signal)).catch((error: unknown) => {
      // Not one that went away in the middle: it may still be at it.
      if (isGone(error) && error instanceof OnejobError && error.code === 'E_DAEMON_ABSENT')
        return here(session, work, stop.signal);
      throw error;
    });
  } finally {
    release();
  }
}

async function here<T>(
  session: Session,
  work: (desk: ImageDesk, signal: AbortSignal) => Promise<T>,
  signal: AbortSignal,
): Promise<T> {
  const [{ loadConfig }, { openStore }, { createCiServices }, { createImageDesk, openPoolImages }, { systemClock: clock }] =
    await Promise.all([
      import('../config/load.ts'),
      import('../store/store.ts'),
      import('../ci/index.ts'),
      import('../pools/pool-images.ts'),
      import('../clock.ts'),
    ]);
  const { environment: env, variables } = session.context;
  const { config } = await loadConfig(loadOptions(session));
  await using parts = new AsyncDisposableStack();
  const store = openStore(config.stateDir);
  parts.defer(() => store.close());
  const services = createCiServices({
    ...{ config, env, store, clock, log: silent, version: session.version, variables },
    reasonFor: () => null,
    slots: { poolOf: () => null, silentFor: () => null, isBusy: () => false, jobsOf: () => [], agentOf: () => null },
    self: session.context.self,
  });
  parts.defer(() => services.own.close());
  const images = await openPoolImages({ config, env, store, services: services.byName, log: silent });
  parts.defer(() => images.close());
  if (config.pools.some((pool) => pool.imageRecipe?.base === 'auto' && pool.devices.count !== 0)) {
    const { createProbe } = await import('../gpu/probe.ts');
    using probe = createProbe({ path: env.path });
    images.saw(await probe.look());
  }
  return await work(createImageDesk(images, config.pools), signal);
}

function loadOptions({ context, flags }: Session) {
  const given = { config: flags.config ?? undefined, stateDir: flags.stateDir ?? undefined, socket: flags.socket ?? undefined };
  return { flags: given, env: context.environment, cwd: context.cwd };
}

const nothing = () => {};
const silent = { info: nothing, warn: nothing, error: nothing };

function sizeOf(bytes: number): string {
  return bytes < 2 ** 30 ? `${Math.round(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

function ageOf(ms: number): string {
  const minutes = Math.max(0, Math.round(ms / 60_000));
  if (minutes < 120) return `${minutes} min`;
  return minutes < 48 * 60 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} days`;
}
