/**
 * Which runtimes a manager has, and which one serves the pools that name neither a runtime nor an image. Docker serves them if
 * its Engine answers and the default image can be pulled. Otherwise their jobs run as processes, onejob says why, and checks
 * Docker again while the manager runs. Docker stays chosen. A pool that names an image or a runtime never gets another one: it
 * waits for what is missing.
 */
import { join } from 'node:path';
import { hasCode, OnejobError, toFailure } from '../base/errors.ts';
import { type Finding, fine, warning } from '../base/finding.ts';
import { mayBeNvidia } from '../config/conditions.ts';
import type { Config, PoolConfig } from '../config/config.ts';
import type { Environment } from '../config/environment.ts';
import { type Clock, deadline } from '../core/clock.ts';
import { isEmpty, type Slot } from '../core/slot.ts';
import type { Recipe, Runtime, RuntimeCapabilities } from '../ports/runtime.ts';
import { listed } from '../schema/problem.ts';
import type { DockerRuntime } from './docker/docker.ts';

export interface Runtimes {
  /** Grows when `chooseAgain` chooses a new one. */
  readonly all: readonly Runtime[];
  /** For pools that name none. */
  readonly best: Runtime;
  /** Why `best` was chosen; null if every pool names its runtime. */
  readonly reason: string | null;
  findings(): readonly Finding[];
  /** @throws OnejobError E_RUNTIME_UNKNOWN */
  get(name: string): Runtime;
  /** One of an earlier config, on which something may be left. @throws OnejobError E_RUNTIME_UNKNOWN if no config describes it any more */
  make(name: string): Promise<Runtime>;
  /** Checks whether a better runtime than a fallback is available now. True if `best` has changed. */
  chooseAgain(): Promise<boolean>;
}

export interface ChooseOptions {
  readonly config: Config;
  readonly clock: Clock;
  readonly env: Environment;
  readonly owner: string;
  readonly stateDir: string;
  readonly stored: readonly Slot[];
  /** Runtimes of held sandboxes. */
  readonly held?: readonly { readonly runtime: string }[];
  /** Told of each runtime before anything is made on it. */
  readonly used?: (runtime: string) => void;
}

/** ms that the choice may take to probe an Engine. */
const patience = 5_000;

export async function chooseRuntimes(options: ChooseOptions): Promise<Runtimes> {
  const { config, clock, env, stored, held = [] } = options;
  const open = config.pools.filter((pool) => pool.runtime === null);
  const inUse = stored.filter((slot) => !isEmpty(slot));
  const inOpen = inUse.filter(({ key }) => open.some(({ name }) => key.startsWith(`${name}/`))).map(({ runtime }) => runtime);
  const made = new Map<string, Runtime>();
  const make = async (name: string): Promise<Runtime> => {
    const runtime = made.get(name) ?? (await create(name, options));
    made.set(name, runtime);
    options.used?.(name);
    return runtime;
  };
  const instead = async (why: string): Promise<Choice> => {
    const noDocker = why.replace(/\.$/, '');
    return { runtime: await make('process'), reason: `runtime process (Docker: ${noDocker})`, noDocker };
  };
  const chooseBest = async (inUse: readonly string[]): Promise<Choice> => {
    if (inUse.includes('docker'))
      return {
        runtime: await make('docker'),
        reason: 'docker, because existing agents run in containers',
        noDocker: null,
      };
    const { probeDocker } = await import('./engine/probe.ts');
    const { resolveEndpoint } = await import('./engine/endpoint.ts');
    using limit = deadline(clock, patience);
    const { signal } = limit;
    const late = `its Engine did not answer within ${patience / 1_000} s`;
    const reason = (error: unknown): string => (limit.passed ? late : toFailure(error).message);
    const absent = (error: unknown) => ({ reachable: false, why: reason(error) }) as const;
    const probe = await probeDocker(await resolveEndpoint(env.docker), signal, clock).catch(absent);
    if (!probe.reachable) return instead(probe.why);
    const { lackFindings } = await import('./docker/check.ts');
    const lack = 'info' in probe ? lackFindings(probe.info, probe.podman).find(({ level }) => level === 'error') : undefined;
    if (lack !== undefined) return instead(lack.message);
    const docker = await makeDocker(options);
    try {
      for (const { recipe } of open) {
        const missing = await docker.imageTrouble(recipe, signal).catch(reason);
        if (missing !== null) return await instead(missing);
      }
    } finally {
      docker.close();
    }
    return { runtime: await make('docker'), reason: `docker, because ${probe.why}`, noDocker: null };
  };
  // The config's own come first: agents of an earlier config say nothing of what is to come.
  for (const { runtime } of config.pools) if (runtime !== null) await make(runtime);
  for (const { runtime } of [...inUse, ...held]) if (!made.has(runtime)) await make(runtime).catch(asRemoved(runtime, inUse));
  let choice = open.length === 0 ? null : await chooseBest(inOpen);
  const best = choice?.runtime ?? [...made.values()][0] ?? (await make('process'));
  return {
    get all() {
      return [...made.values()];
    },
    get best() {
      return choice?.runtime ?? best;
    },
    get reason() {
      return choice?.reason ?? null;
    },
    findings: () => (choice === null ? [] : [choiceFinding(choice, open)]),
    get(name) {
      const runtime = made.get(name);
      if (runtime === undefined) throw unknown(name, config);
      return runtime;
    },
    make,
    async chooseAgain() {
      if (choice === null || choice.noDocker === null) return false;
      choice = await chooseBest([]);
      return choice.noDocker === null;
    },
  };
}

/** How to report the choice. An Engine that answered at the start may be away now (`isAway`), and reports that itself. */
export function choiceNow({ best, reason, findings }: Pick<Runtimes, 'best' | 'reason' | 'findings'>, isAway: boolean) {
  if (!isAway) return { reason, findings: findings() };
  return { reason: reason === null ? null : `${best.name}, chosen at the start`, findings: [] };
}

interface Choice {
  readonly runtime: Runtime;
  readonly reason: string;
  /** Why Docker, which would have been chosen, could not be used; null when it was chosen. */
  readonly noDocker: string | null;
}

function choiceFinding({ noDocker, reason }: Choice, open: readonly PoolConfig[]): Finding {
  if (noDocker === null) return fine('runtime', reason);
  const names = open.map(({ name }) => name).join(', ');
  return warning(
    'runtime',
    `Jobs of pool ${names} run as processes on this host (Docker: ${noDocker}).`,
    'When Docker becomes usable, they run in containers. To decide it yourself, write "runtime: process" or an "image" into the pool.',
  );
}

async function makeDocker({ config, env, owner, clock }: ChooseOptions): Promise<DockerRuntime> {
  const { createDockerRuntime, logLimits } = await import('./docker/docker.ts');
  // Each pool's own setting applies to its sandboxes. `doctor` reports the one that they share.
  const ways = new Set(config.pools.flatMap(({ devices, recipe }) => (devices.count === 0 ? [] : [recipe.grant.way])));
  const [grant = 'auto'] = ways.size === 1 ? ways : [];
  return createDockerRuntime({ owner, clock, environment: env.docker, grant, log: logLimits(config.logLimit) });
}

async function create(name: string, options: ChooseOptions): Promise<Runtime> {
  const { config, env, owner, stateDir, clock } = options;
  if (name === 'docker') {
    const { WithEngines } = await import('./docker/with-engines.ts');
    const wanting = config.pools.filter(({ recipe }) => recipe.containers !== undefined);
    const learning = wanting.flatMap(({ name: pool, recipe }) => {
      const learn = recipe.containers?.ready?.learn;
      return learn === undefined ? [] : [[pool, learn] as const];
    });
    const wants = {
      containers: wanting.length > 0,
      devices: wanting.some(({ devices }) => mayBeNvidia(devices)),
      learn: { folder: join(stateDir, 'learnt-images'), pools: new Map(learning) },
    };
    return new WithEngines(await makeDocker(options), join(stateDir, 'engines'), wants);
  }
  const entry = config.runtimes.find((one) => one.name === name);
  if (entry !== undefined) {
    const { runtimeTypes } = await import('./types.ts');
    const type = runtimeTypes.find((one) => one.type === entry.type);
    if (type !== undefined) return type.open(entry, { owner, stateDir, clock });
  }
  if (name !== 'process') throw unknown(name, config);
  const { createProcessRuntime } = await import('./process/process.ts');
  const root = env.hostRoot === null ? {} : { deviceDir: join(env.hostRoot, 'dev') };
  return createProcessRuntime({ owner, clock, dir: join(stateDir, 'agents'), ...root });
}

/** Agents are on a runtime that was in the config when they were made. */
function asRemoved(name: string, inUse: readonly Slot[]): (error: unknown) => never {
  return (error) => {
    if (!hasCode(error, 'E_RUNTIME_UNKNOWN')) throw error;
    const slots = inUse.filter(({ runtime }) => runtime === name).map(({ key }) => key);
    const whose = slots.length === 0 ? 'Files of failed jobs' : `Agents of ${listed(slots.slice(0, 5))}`;
    const message = `${whose} are on runtime "${name}", which the config does not have any more.`;
    const hint = `Put it back under "runtimes" until they are gone: "onejob down" ends agents, "onejob unhold" removes files.`;
    throw new OnejobError('E_RUNTIME_UNKNOWN', message, { hint, cause: error });
  };
}

function unknown(name: string, { runtimes }: Pick<Config, 'runtimes'>): OnejobError {
  const hint = `The runtimes are ${listed(['docker', 'process', ...runtimes.map((one) => one.name)])}.`;
  return new OnejobError('E_RUNTIME_UNKNOWN', `There is no runtime "${name}".`, { hint });
}

/** What jobs of a pool should know of its isolation, in one line. `reason`: why this runtime was chosen; null: the config names it. */
export function isolationNotes(
  reason: string | null,
  { weaker, unproved }: Pick<RuntimeCapabilities, 'weaker' | 'unproved'>,
  { wants }: Pick<Recipe, 'wants'>,
): string[] {
  const all = [reason, weaker, wants !== undefined && wants.gpus > 0 ? unproved : null];
  const said = all.filter((one) => typeof one === 'string').map((one) => `${one.replace(/\.$/, '')}.`);
  return said.length === 0 ? [] : [said.join(' ')];
}
