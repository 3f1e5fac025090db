/**
 * `onejob image build`, `list`, `prune` and `refresh`: if a daemon runs, it does the work, so that nothing is built twice at a time;
 * otherwise this process does. And `choose`: the image that fits the GPUs of this host or of a recorded one, and why.
 */

import { resolve } from 'node:path';
import { OnejobError } from '../base/errors.ts';
import { noSlots } from '../ci/parts.ts';
import { serviceType } from '../ci/types.ts';
import type { Config, PoolConfig, ServiceConfig } from '../config/config.ts';
import { lookAtHost } from '../config/host-look.ts';
import type { ImageService } from '../contract/manager.ts';
import type { ImageOutcome } from '../contract/schema.ts';
import { builtInTables, readTables } from '../gpu/tables.ts';
import { type ChoiceStep, chooseImage } from '../images/choose.ts';
import { buildPlan, readDockerfile, readTemplates } from '../images/plan.ts';
import { type Arch, archOf, type Flavour, readPlatform, recordedHost } from '../images/request.ts';
import type { AgentPackageConfig } from '../schema/service-keys.ts';
import { systemClock } from '../system/system-clock.ts';
import { withDaemon } from './connect.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import { colorWanted } from './output.ts';
import { configSource, type Session } from './session.ts';
import { type Colors, createColors, hang, printable, terminalSize, titledTable, widthOf } from './text.ts';
import { types } from './types.ts';

/** 1 when an image could not be made. */
export async function makeImages(session: Session, what: 'build' | 'refresh', pools: readonly string[]): Promise<number> {
  const { output } = session;
  let last = '';
  const progress = (pool: string, line: string): void => {
    const text = `${pool}: ${line}`;
    if (text === last || output.json) return;
    last = text;
    // A build may take minutes, so without a terminal each line is shown.
    if (output.showsProgress) output.progress(text);
    else output.say(text);
  };
  const outcomes = await withImageService(session, (service, signal) => service.make(what, pools, progress, signal));
  output.progress(null);
  for (const outcome of outcomes) {
    if (output.json) await output.value(outcome);
    else await show(session, outcome);
  }
  if (outcomes.length === 0 && !output.json) await output.print('No pool has an image that onejob builds.');
  return outcomes.some(({ what: end }) => end === 'failed') ? exitCodes.failed : exitCodes.ok;
}

async function show({ output }: Session, { pool, image, agent, what, problem }: ImageOutcome): Promise<void> {
  if (problem !== null) {
    output.say(`pool ${pool}: no image could be made`);
    output.fail(new OnejobError('E_IMAGE_BUILD', problem.message, { hint: problem.hint }));
    return;
  }
  const said = {
    there: 'exists',
    built: 'was built',
    newer: 'is new: idle agents are replaced, running ones continue',
    failed: '',
  };
  const version = agent === null ? '' : ` (agent ${agent})`;
  const text = image === null ? 'it has no image yet, or needs none' : `${image}${version} ${said[what]}`;
  await output.print(printable(`${pool}: ${text}`));
}

export async function listImages(session: Session, now = systemClock.wall()): Promise<number> {
  const { output } = session;
  const images = await withImageService(session, (service, signal) => service.list(signal));
  const rows = images.map(({ reference, agent, size, createdAt, containers, pools, base }) => ({
    IMAGE: printable(reference),
    AGENT: printable(agent ?? '-'),
    SIZE: sizeOf(size),
    AGE: ageOf(now - createdAt),
    CONTAINERS: `${containers}`,
    POOLS: printable(pools.join(',')) || '-',
    'BUILT ON': printable(base ?? 'a Dockerfile'),
  }));
  await output.list(images, 'The Engine has no image that onejob built.', () => titledTable(rows, output));
  return exitCodes.ok;
}

export async function pruneImages(session: Session): Promise<number> {
  const { output } = session;
  const removed = await withImageService(session, (service, signal) => service.prune(signal));
  const nothing = 'Nothing to remove: every image that onejob built is in use.';
  await output.result({ removed }, () => (removed.length === 0 ? [nothing] : removed.map((name) => `removed ${name}`)));
  return exitCodes.ok;
}

/** Prints what is built for each pool as Dockerfiles. Needs neither Engine nor CI service. */
export async function printImages(session: Session, pools: readonly string[]): Promise<number> {
  const { loadConfig } = await import('../config/load.ts');
  const { config } = await loadConfig({ types, ...configSource(session), look: lookAtHost });
  const { output } = session;
  for (const found of await recipeText(config, pools)) await output.result(found, () => [found.text.trimEnd(), '']);
  return exitCodes.ok;
}

type Work<T> = (service: ImageService, signal: AbortSignal) => Promise<T>;

/** Lets the daemon do the work, or this process if no daemon runs. */
async function withImageService<T>(session: Session, work: Work<T>): Promise<T> {
  const stop = new AbortController();
  const release = session.context.process.onSignal(() => stop.abort(wrongUsage('Interrupted; what was built is kept.')));
  // A daemon that was lost meanwhile may still be building.
  return withDaemon(
    session,
    (client) => work(client.images, stop.signal),
    () => here(session, work, stop.signal),
  ).finally(release);
}

async function here<T>(session: Session, work: Work<T>, signal: AbortSignal): Promise<T> {
  const [{ loadConfig }, { openStore }, { createCiServices }, { createImageDesk, openPoolImages }, { systemClock: clock }] =
    await Promise.all([
      import('../config/load.ts'),
      import('../store/store.ts'),
      import('../ci/index.ts'),
      import('../manager/images/pool-images.ts'),
      import('../system/system-clock.ts'),
    ]);
  const { environment: env, variables } = session.context;
  const { config } = await loadConfig({ types, ...configSource(session), look: lookAtHost });
  await using parts = new AsyncDisposableStack();
  const store = openStore(config.stateDir);
  parts.defer(() => store.close());
  const services = await createCiServices({
    config,
    env,
    store,
    clock,
    log: silent,
    variables,
    onejob: { version: session.version, self: session.context.self },
    slots: noSlots,
  });
  parts.defer(() => services.own.close());
  const images = await openPoolImages({ config, env, store, services: services.byName, log: silent });
  parts.defer(() => images.close());
  if (config.pools.some((pool) => pool.imageRecipe?.base === 'auto' && pool.devices.count !== 0)) {
    const { lookAtCards } = await import('./share-cards.ts');
    images.saw(await lookAtCards(session));
  }
  return await work(createImageDesk(images, config.pools), signal);
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

/**
 * What is built for the pools of a config, so that a person can build it by hand: Dockerfiles, each after its command, and the
 * `pools` with this image. `asked`: none for all pools.
 * @throws OnejobError E_POOL_UNKNOWN, E_IMAGE_BUILD for a Dockerfile that cannot be read
 */
async function recipeText({ pools, services }: Pick<Config, 'pools' | 'services'>, asked: readonly string[]) {
  const unknown = asked.find((name) => !pools.some((pool) => pool.name === name));
  if (unknown !== undefined) {
    const known = pools.map(({ name }) => name).join(', ');
    throw new OnejobError('E_POOL_UNKNOWN', `There is no pool "${unknown}".`, { hint: `The pools are: ${known}.` });
  }
  const texts = new Map<string, string[]>();
  for (const pool of pools.filter(({ name }) => asked.length === 0 || asked.includes(name))) {
    const service = services.find(({ name }) => name === pool.service);
    const text = await textOf(pool, service);
    texts.set(text, [...(texts.get(text) ?? []), pool.name]);
  }
  return [...texts].map(([text, names]) => ({
    pools: names,
    text: `# ${names.length === 1 ? 'Pool' : 'Pools'} ${names.join(', ')}\n${text}`,
  }));
}

async function textOf({ imageRecipe, recipe }: PoolConfig, service: ServiceConfig | undefined): Promise<string> {
  if (imageRecipe === null) return `# Nothing is built: the image is ${recipe.image ?? 'none'}.\n`;
  const { base, packages, dockerfile: path } = imageRecipe;
  const dockerfile = path === null ? null : await readDockerfile(path);
  const shown = base === 'auto' ? '"$(onejob image choose)"' : base;
  const { type, agent: kind } = serviceType(service?.type);
  const isMounted = service !== undefined && 'mountedRunner' in service && service.mountedRunner !== null;
  const isIn = service !== undefined && 'agentPackage' in service && kind === 'in-image' && !isMounted;
  const agent = isIn ? { type, ...packageOf(service.agentPackage as AgentPackageConfig) } : null;
  const ground = { bases: [], agent, owner: 'by-hand' };
  const plan = buildPlan({ type, base: shown, packages, dockerfile }, ground, readTemplates());
  if (plan === null) return `# Nothing is built: the image is ${shown}.\n`;
  let below = shown;
  return plan.layers
    .map(({ what, args, dockerfile: text }, at) => {
      const name = `layer:${at + 1}`;
      const given = { ...(below !== null && { BASE: below }), ...args };
      const options = Object.entries(given).map(
        ([key, value]) => `--build-arg ${key}=${/[\s<]/.test(value) ? `'${value}'` : value}`,
      );
      const unpack = what === 'agent' ? `# mkdir agent && tar -xzf <${agent?.from}> -C agent\n` : '';
      below = name;
      return `${unpack}# docker build -t ${name} ${options.join(' ')} .    (${what})\n${text.trimEnd()}\n`;
    })
    .join('\n');
}

function packageOf({ version, from, sha256 }: AgentPackageConfig) {
  return { version: version ?? '<the newest>', from: from ?? 'the package that the service provides', sha256 };
}

export interface ImageFlags {
  readonly explain?: boolean;
  readonly from?: string;
  readonly device?: readonly string[];
  readonly flavour: Flavour;
  readonly distribution?: string;
  readonly arch?: Arch;
  readonly tables?: string;
}

/** Prints only the image on standard output, for scripts; 1 when no image fits. */
export async function showImage(session: Session, flags: ImageFlags): Promise<number> {
  const { output, context } = session;
  const tables = flags.tables === undefined ? builtInTables : await readTables(resolve(context.cwd, flags.tables));
  const { inventory, ...where } = await (flags.from === undefined
    ? thisHost(session, flags)
    : recorded(session, flags.from, flags));
  const { flavour, distribution = null, device } = flags;
  const request = { ...where, inventory, flavour, distribution };
  const { image, steps, problem } = chooseImage(device === undefined ? request : { ...request, devices: device }, tables);
  const code = image === null ? exitCodes.failed : exitCodes.ok;
  if (output.json) {
    await output.value({ image, problem, steps });
    return code;
  }
  if (flags.explain === true) await explain(session, steps);
  else if (image !== null && !inventory.complete && device === undefined) {
    output.say('not all devices could be read; the image suits those that were; see --explain');
  }
  if (image !== null) await output.print(printable(image));
  if (problem !== null) output.say(problem);
  return code;
}

async function thisHost({ context }: Session, { arch: asked }: ImageFlags) {
  const arch = asked ?? archOf(process.arch);
  if (arch === null) {
    const hint = 'Choose an image for another architecture with --arch.';
    throw wrongUsage(`No image is published for the architecture of this host, ${process.arch}.`, hint);
  }
  const { createProbe } = await import('../gpu/probe.ts');
  using probe = createProbe({ path: context.variables.PATH ?? '' });
  const [inventory, platform] = await Promise.all([probe.look(), readPlatform(arch)]);
  return { inventory, arch, archFrom: asked === undefined ? 'this host' : '--arch', platform };
}

async function recorded({ context }: Session, path: string, { arch: asked }: ImageFlags) {
  const { readRecording } = await import('../gpu/recording.ts');
  const inventory = await readRecording(resolve(context.cwd, path));
  const host = recordedHost(inventory);
  return { inventory, ...host, ...(asked === undefined ? {} : { arch: asked, archFrom: '--arch' }) };
}

async function explain({ context, output }: Session, steps: readonly ChoiceStep[]): Promise<void> {
  const { stderr, environment } = context;
  const colors = createColors(colorWanted(environment) ?? stderr.isTTY === true);
  const lines = explainLines(steps, colors, stderr.isTTY === true ? terminalSize(stderr).columns : null);
  await output.write('stderr', Buffer.from(`${lines.join('\n')}\n`));
}

/** `width`: null for a pipe, where lines are not wrapped. */
export function explainLines(steps: readonly ChoiceStep[], colors: Colors, width: number | null): string[] {
  const names = Math.max(...steps.map((each) => widthOf(each.about)));
  const numbers = `${steps.length}`.length;
  return steps.flatMap(({ about, known, from, rulesOut, verified }, at) => {
    const lead = `${`${at + 1}`.padStart(numbers)}. ${colors.bold(about)}${' '.repeat(names - widthOf(about))}  `;
    const below = ' '.repeat(widthOf(lead));
    return [
      ...hang(lead, printable(verified ? known : `${known} (no source confirms this)`), width),
      ...hang(below, `from ${printable(from)}`, width).map(colors.dim),
      ...(rulesOut === null ? [] : hang(below, `rules out ${printable(rulesOut)}`, width).map(colors.yellow)),
    ];
  });
}
