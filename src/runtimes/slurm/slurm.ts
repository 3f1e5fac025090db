/**
 * The Slurm runtime: one batch job for each agent, which waits in Slurm's queue and then at the gate on the node that Slurm chose.
 *
 * Guarantees: Slurm places agents and grants their devices; onejob keeps no second book of them. An agent is found by its name,
 * never by its job id. What its folder says counts more than what Slurm remembers. One `squeue` serves all agents.
 */
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { OnejobError, toFailure } from '../../base/errors.ts';
import type { Finding } from '../../base/finding.ts';
import { type Clock, deadline, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type {
  Granted,
  LogChunk,
  LogPosition,
  Made,
  Recipe,
  Runtime,
  RuntimeCapabilities,
  RuntimeEvent,
  SandboxSeen,
  SandboxSpec,
} from '../../ports/runtime.ts';
import { AvoidedNodes, avoidedText } from '../avoided.ts';
import { ownAddress } from '../own-address.ts';
import { accounts } from '../process/bubblewrap.ts';
import { followLog } from '../process/logs.ts';
import { hasReleased } from '../process/release.ts';
import { recipeFingerprint } from '../recipe-fingerprint.ts';
import { watchFolders } from '../watch.ts';
import { check } from './check.ts';
import { type SlurmCommands, type SlurmJob, slurmCommands } from './commands.ts';
import type { SlurmConfig, SlurmPool } from './config.ts';
import { AgentFolders } from './folder.ts';
import { NodePlace } from './node-place.ts';
import { type Place, SharedPlace } from './places.ts';
import { type Program, programsOf } from './programs.ts';
import { SlurmQueue, slowly } from './queue.ts';
import { workspaceIn } from './sandboxes.ts';
import { askedBy, killScript, markersWithin, releaseScript, scriptsOf } from './script.ts';
import { commentOf, damaged, isOf, type Jobs, jobName, jobOf, patience, phaseOf, saidIn, stateOf, waitText } from './states.ts';
import { submitOptions, wantsOf } from './submission.ts';

export interface SlurmOptions {
  readonly config: SlurmConfig;
  readonly owner: string;
  readonly clock: Clock;
  /** Where the state is, which may not be on a file system that nodes share. */
  readonly stateDir: string;
}

/** ms that a step next to the job may take to hand over a script. */
const releaseLimit = 15_000;
/** ms that one may take to kill it. */
const killLimit = 5_000;
/** ms in which a batch job leaves after its script has ended. */
const leavesWithin = 5_000;
/** ms between two looks at a job that is to leave. */
const lookAgain = 250;

export function createSlurmRuntime(options: SlurmOptions): Runtime {
  return new SlurmRuntime(options);
}

class SlurmRuntime implements Runtime {
  readonly name: string;
  readonly capabilities: RuntimeCapabilities;
  readonly #options: SlurmOptions;
  readonly #commands: SlurmCommands;
  readonly #folders: AgentFolders;
  readonly #place: Place;
  readonly #queue: SlurmQueue;
  readonly #avoided: AvoidedNodes;
  /** Agents that are being made: their folder may be there before Slurm knows them. */
  readonly #making = new Set<AgentId>();
  /** What was last seen of agents that wait or run, and when: core clock, ms. */
  readonly #seen = new Map<AgentId, { readonly job: SlurmJob; readonly state: SandboxSeen['state']; readonly at: number }>();
  /** Ends of which only accounting knows; undefined: it is being asked. Each agent once. */
  readonly #accounted = new Map<AgentId, SlurmJob | null | undefined>();
  /** Whether changes of marks are noticed. */
  #isWatching = false;

  constructor(options: SlurmOptions) {
    const { config, clock, owner } = options;
    this.#options = options;
    this.name = config.name;
    this.#commands = slurmCommands(config);
    const { folder, nodeFolder } = config;
    this.#folders = new AgentFolders(folder ?? join(options.stateDir, 'slurm', config.name), owner);
    const heard = (): void => this.#queue.wake();
    const parts = { clock, commands: this.#commands, folders: this.#folders, base: nodeFolder, owner, heard };
    this.#place = folder === null ? new NodePlace(parts) : new SharedPlace(this.#folders, clock);
    this.#avoided = new AvoidedNodes(clock);
    this.#queue = new SlurmQueue({ clock, commands: this.#commands, every: config.poll });
    this.capabilities = {
      weaker: 'Jobs of Slurm share the network of their node, and are all of the user that onejob runs as.',
      unproved: 'A GPU is not proved clean by onejob: Slurm grants it.',
      images: false,
      hostNetwork: null,
      grants: 'engine',
      holdsSecrets: true,
      elsewhere: true,
      workspace: (agent) => workspaceIn(this.#folders.intentOf(agent)?.sandbox ?? 'bubblewrap', this.#place.onNode(agent)),
    };
  }

  groupsOf(): readonly string[] {
    return [];
  }

  check(signal: AbortSignal): Promise<Finding[]> {
    return check({ ...this.#options, commands: this.#commands, avoided: this.#avoided.now }, signal);
  }

  async fingerprint(recipe: Recipe): Promise<string> {
    return recipeFingerprint(recipe);
  }

  async prepare(spec: SandboxSpec, progress: (line: string) => void, signal: AbortSignal): Promise<Made> {
    const { agent } = spec;
    const known = this.#folders.intentOf(agent);
    const fingerprint = known?.fingerprint ?? recipeFingerprint(spec.recipe);
    this.#making.add(agent);
    try {
      if (known === null) {
        await this.#make(spec, fingerprint);
        await this.#submit(spec, signal);
        await this.#queue.next(signal);
      }
      for (;;) {
        // Its folder says it before the queue does.
        if (known === null && this.#folders.whereIs(agent) !== null) return { fingerprint };
        const { state, job } = await this.#lookNow(agent, progress, signal);
        signal.throwIfAborted();
        const early = this.#earlyEnd(agent, state, job);
        if (early !== null)
          throw new OnejobError('E_GATE_ENDED', `The batch job did not reach its gate: ${early}.`, { retry: true });
        if (state?.kind === 'exited' || state?.kind === 'running') return { fingerprint };
        if (state?.kind === 'created' && job === null) await this.#submit(spec, signal);
        else if (job !== null) progress(`${this.name}: ${this.#progressText(job)}`);
        await this.#queue.next(signal);
      }
    } finally {
      this.#making.delete(agent);
    }
  }

  async putFiles(agent: AgentId, files: Readable, signal: AbortSignal): Promise<void> {
    this.#folders.require(agent);
    await this.#place.put(agent, files, signal);
  }

  async release(agent: AgentId, frame: Uint8Array, signal: AbortSignal): Promise<void> {
    this.#folders.require(agent);
    const where = this.#folders.whereIs(agent);
    if (where === null || this.#folders.exitCode(agent) !== null) throw gateEnded(agent);
    if (this.#hasReleased(agent)) return;
    using limit = deadline(this.#options.clock, releaseLimit, signal);
    const job = { id: where.job, node: where.place };
    try {
      await this.#commands.alongside(job, releaseScript(this.#place.onNode(agent), agent), frame, limit.signal);
    } catch (error) {
      signal.throwIfAborted();
      // A gate that has taken a script reads no other one, so the step would wait for ever.
      if (this.#hasReleased(agent)) return;
      if (await this.#hasEnded(agent, signal)) throw gateEnded(agent);
      throw error instanceof OnejobError
        ? error
        : new OnejobError('E_ENGINE_FAILED', notHanded(agent), { retry: true, cause: error });
    }
  }

  async getFiles(agent: AgentId, signal: AbortSignal, only?: readonly string[] | null): Promise<Readable> {
    this.#folders.require(agent);
    return this.#place.get(agent, '.', signal, only);
  }

  async getFolder(agent: AgentId, folder: string, signal: AbortSignal): Promise<Readable | null> {
    this.#folders.require(agent);
    return (await this.#place.has(agent, folder, signal)) ? this.#place.get(agent, folder, signal) : null;
  }

  async signal(agent: AgentId, signal: 'TERM' | 'KILL'): Promise<void> {
    if (this.#folders.intentOf(agent) === null || this.#folders.exitCode(agent) !== null) return;
    for (const job of await this.#openJobs(agent)) {
      if (phaseOf(job) === 'waiting') await this.#commands.cancel(job.id, null);
      else if (signal === 'TERM') await this.#commands.cancel(job.id, askedBy);
      else await this.#kill(agent, job);
    }
    this.#queue.hurry();
  }

  /** Its first process with all that it has started; the supervisor then leaves the exit code. Slurm's own way takes its KillWait. */
  async #kill(agent: AgentId, job: SlurmJob): Promise<void> {
    using limit = deadline(this.#options.clock, killLimit);
    try {
      await this.#commands.alongside(job, killScript(this.#place.onNode(agent)), new Uint8Array(0), limit.signal);
    } catch {
      if (this.#folders.exitCode(agent) === null) await this.#commands.cancel(job.id, null);
    }
  }

  async remove(agent: AgentId): Promise<void> {
    const { clock } = this.#options;
    const from = clock.now();
    const asked = new Set<string>();
    for (let open = await this.#openJobs(agent); open.length > 0; open = await this.#openJobs(agent)) {
      for (const job of open) {
        if (phaseOf(job) === 'running' && !asked.has(job.id)) {
          asked.add(job.id);
          await this.#place.leave(agent, job);
          if (this.#folders.exitCode(agent) === null) await this.#kill(agent, job);
        } else if (phaseOf(job) === 'waiting' || (phaseOf(job) === 'running' && clock.now() - from > leavesWithin))
          // A batch script that leaves by itself tidies up its node.
          await this.#commands.cancel(job.id, null);
      }
      await sleep(clock, lookAgain);
    }
    await this.#folders.remove(agent);
    this.#queue.forget(agent);
    this.#seen.delete(agent);
    this.#accounted.delete(agent);
  }

  async list(signal: AbortSignal): Promise<SandboxSeen[]> {
    const jobs = await this.#queue.look(signal);
    const agents = await this.#folders.agents();
    const seen = agents.flatMap((agent): SandboxSeen[] => {
      const about = this.#folders.intentOf(agent);
      if (about === null) return [{ agent, pool: '', slot: '', state: damaged(jobs.get(agent) ?? []) }];
      const now = this.#stateOf(agent, jobs);
      const state =
        now === null
          ? { kind: 'running' as const }
          : this.#isReportedByPrepare(agent, now, jobs)
            ? { kind: 'created' as const }
            : now;
      return [{ agent, pool: about.pool, slot: about.slot, state }];
    });
    // A folder that somebody removed does not end the job.
    const known = new Set(agents);
    const strays = [...jobs].filter(
      ([agent, own]) => !known.has(agent) && own.some((job) => isOf(this.#options.owner, job) && phaseOf(job) !== 'ended'),
    );
    return [...seen, ...strays.map(([agent]) => ({ agent, pool: '', slot: '', state: { kind: 'running' } as const }))];
  }

  async *events(signal: AbortSignal): AsyncGenerator<RuntimeEvent> {
    /** Agents with a folder, and whether their exit was reported. */
    const known = new Map<AgentId, boolean>();
    let isLost = false;
    await this.#folders.open().catch(() => {});
    using watch = watchFolders(this.#options.clock, [this.#folders.marks], signal);
    void this.#wakeBy(watch, signal);
    yield { kind: 'connected' };
    while (!signal.aborted) {
      const events: RuntimeEvent[] = [];
      try {
        const jobs = await this.#queue.look(signal);
        const agents = new Set(await this.#folders.agents());
        for (const agent of known.keys()) if (!agents.has(agent)) events.push({ kind: 'removed', agent });
        for (const { agent } of events.filter((event) => event.kind === 'removed')) known.delete(agent);
        for (const agent of agents) {
          this.#follow(agent, jobs);
          const same = this.#unchanged(agent, jobOf(agent, jobs));
          const state = same ?? (this.#folders.intentOf(agent) === null ? null : this.#stateOf(agent, jobs));
          if (this.#isReportedByPrepare(agent, state, jobs)) continue;
          if (state?.kind === 'exited' && known.get(agent) !== true) events.push({ kind: 'exited', agent, exit: state.exit });
          known.set(agent, known.get(agent) === true || state?.kind === 'exited');
        }
        if (isLost) events.push({ kind: 'connected' });
        isLost = false;
      } catch (error) {
        if (signal.aborted) return;
        if (!isLost) events.push({ kind: 'lost', failure: toFailure(error).message });
        isLost = true;
      }
      yield* events;
      const isBusy = [...known].some(
        ([agent, told]) => !told && (this.#making.has(agent) || this.#folders.whereIs(agent) !== null),
      );
      await this.#queue.next(signal, isBusy || isLost ? undefined : 'slow');
    }
  }

  /** Files of nodes are seen at once where this host's kernel reports them, otherwise when the queue is looked at. */
  async #wakeBy(watch: ReturnType<typeof watchFolders>, signal: AbortSignal): Promise<void> {
    this.#isWatching = true;
    while (!signal.aborted) {
      const names = await watch.next(60_000);
      if (names === null) this.#seen.clear();
      for (const name of names ?? []) this.#seen.delete(name.replace(/\.(where|exit)(\.new)?$/, ''));
      this.#queue.wake();
    }
    this.#isWatching = false;
  }

  placeOf(agent: AgentId): Granted | null {
    return this.#folders.whereIs(agent);
  }

  logs(agent: AgentId, from: LogPosition, signal: AbortSignal): AsyncIterable<LogChunk[]> {
    const hasEnded = (): boolean => {
      const { last } = this.#queue;
      return this.#folders.intentOf(agent) === null || (last !== null && this.#stateOf(agent, last)?.kind === 'exited');
    };
    return followLog(this.#options.clock, join(this.#folders.of(agent), 'log'), from, hasEnded, signal);
  }

  async hostAddress(): Promise<string> {
    return ownAddress(this.name, this.#options.config.address, 'nodes');
  }

  async sweep(): Promise<void> {}

  async disk(): Promise<null> {
    return null;
  }

  close(): void {
    this.#place.close();
  }

  async #make({ agent, pool, slot, recipe, ...spec }: SandboxSpec, fingerprint: string): Promise<void> {
    const { sandbox } = wantsOf(recipe).keys as SlurmPool;
    const programs = await programsOf(recipe);
    await this.#place.bring(programs);
    const files = this.#options.config.folder === null ? {} : this.#scripts({ agent, pool, slot, recipe, ...spec }, programs);
    await this.#folders.make({ agent, pool, slot, fingerprint, sandbox, programs }, files);
  }

  #scripts({ agent, name, recipe, look }: SandboxSpec, needed: readonly Program[]): Readonly<Record<string, string>> {
    const { sandbox, modules, image = '' } = wantsOf(recipe).keys as SlurmPool;
    const { passwd, group } = accounts(null);
    const [folder, marks] = [this.#place.onNode(agent), this.#place.marksOnNode(agent)];
    const programs = this.#pathsOf(needed);
    return { ...scriptsOf({ agent, name, folder, marks, recipe, look, modules, sandbox, image, programs }), passwd, group };
  }

  /** By the path of the sandbox. */
  #pathsOf(programs: readonly Program[]): ReadonlyMap<string, string> {
    return new Map(programs.map((one) => [one.container, this.#place.program(one)]));
  }

  /** Another submission of a name that Slurm has waits for the first to end, and finds that it has begun. */
  async #submit(spec: SandboxSpec, signal: AbortSignal): Promise<void> {
    const { agent, recipe } = spec;
    const { folder } = this.#options.config;
    const avoided = this.#avoided.now.map(({ node }) => node);
    const shared = folder === null ? null : this.#folders.of(agent);
    const needed = this.#folders.require(agent).programs;
    const [programs, { marks }] = [this.#pathsOf(needed), this.#folders];
    const comment = commentOf(this.#options.owner);
    const options = submitOptions(agent, { comment, folder: shared, marks, programs, recipe, avoided });
    const batch = this.#place.batch(agent, this.#scripts(spec, needed));
    await this.#commands.submit(options, batch, signal).catch((error: unknown) => {
      throw error instanceof OnejobError && error.code === 'E_RECIPE' && avoided.length > 0 ? this.#refused(error) : error;
    });
    // Looks from before have not shown it, which says nothing.
    this.#queue.forget(agent);
    this.#queue.hurry();
  }

  /** Slurm may have no node without those that are avoided. */
  #refused({ message, hint }: OnejobError): OnejobError {
    const why = `${message.replace(/\.$/, '')}; onejob ${avoidedText(this.#avoided.now)}.`;
    return new OnejobError('E_RECIPE', why, { hint, retry: true });
  }

  #progressText(job: SlurmJob): string {
    if (phaseOf(job) !== 'waiting') return job.node === '' ? 'was cancelled in its queue' : `starts on ${job.node}`;
    const avoided = this.#avoided.now;
    return avoided.length === 0 ? waitText(job) : `${waitText(job)}; ${avoidedText(avoided)}`;
  }

  async #lookNow(agent: AgentId, progress: (line: string) => void, signal: AbortSignal) {
    for (;;) {
      try {
        const jobs = await this.#queue.look(signal);
        this.#follow(agent, jobs);
        return { state: this.#stateOf(agent, jobs), job: jobOf(agent, jobs) };
      } catch (error) {
        signal.throwIfAborted();
        progress(toFailure(error).message);
        await this.#queue.next(signal);
      }
    }
  }

  #stateOf(agent: AgentId, jobs: Jobs): SandboxSeen['state'] | null {
    const job = jobOf(agent, jobs);
    const same = this.#unchanged(agent, job);
    if (same !== null) return same;
    const folders = this.#folders;
    const look = {
      exitCode: folders.exitCode(agent),
      oom: folders.ranOutOfMemory(agent),
      where: folders.whereIs(agent),
      started: folders.hasStarted(agent),
      again: folders.wasStartedAgain(agent),
      said: job !== null && phaseOf(job) === 'ended' ? folders.lastWords(agent) || saidIn(this.#options.owner, job) : '',
      unfit: folders.unfit(agent),
    };
    if (look.unfit !== null) this.#avoided.add(look.unfit);
    const phase = job === null ? null : phaseOf(job);
    const about = this.#queue.about(agent, phase, look.started);
    const isForgotten = job === null && look.started && look.exitCode === null && about.since >= patience;
    const end = isForgotten ? this.#accountedEnd(agent) : null;
    const state = end === undefined ? null : stateOf(look, { job: job ?? end, ...about });
    const isSteady = phase === 'waiting' ? !look.started : phase === 'running' && state?.kind === 'running';
    if (isSteady && job !== null && state !== null) this.#seen.set(agent, { job, state, at: this.#options.clock.now() });
    else this.#seen.delete(agent);
    return state;
  }

  #accountedEnd(agent: AgentId): SlurmJob | null | undefined {
    if (!this.#accounted.has(agent)) {
      this.#accounted.set(agent, undefined);
      // Not every cluster has accounting.
      const asked = this.#commands.accounted(jobName(agent)).catch(() => null);
      void asked.then((end) => {
        this.#accounted.set(agent, end);
        this.#queue.wake();
      });
    }
    return this.#accounted.get(agent);
  }

  /** Its state where neither its job nor its marks have changed: what agents cost must not grow with how many wait or run. */
  #unchanged(agent: AgentId, job: SlurmJob | null): SandboxSeen['state'] | null {
    const seen = this.#seen.get(agent);
    if (seen === undefined || !this.#isWatching || this.#options.clock.now() - seen.at > slowly) return null;
    return seen.job.id === job?.id && seen.job.state === job.state ? seen.state : null;
  }

  /**
   * Why its batch script ended before its gate, by itself; null: it did not. To the core a lost agent is nobody's fault and is made again
   * at once, which on a cluster would ask for one batch job after the other, and say nothing.
   */
  #earlyEnd(agent: AgentId, state: SandboxSeen['state'] | null, job: SlurmJob | null): string | null {
    if (state?.kind !== 'exited' || state.exit.kind !== 'lost' || this.#folders.whereIs(agent) !== null) return null;
    return this.#folders.unfit(agent) !== null || job?.state === 'FAILED' ? state.exit.reason : null;
  }

  /** An early end is a failure to prepare the agent, not the exit of one that was ready. */
  #isReportedByPrepare(agent: AgentId, state: SandboxSeen['state'] | null, jobs: Jobs): boolean {
    return this.#making.has(agent) && this.#earlyEnd(agent, state, jobOf(agent, jobs)) !== null;
  }

  #follow(agent: AgentId, jobs: Jobs): void {
    const job = jobOf(agent, jobs);
    if (job !== null && phaseOf(job) === 'running') this.#place.follow(agent, job);
  }

  async #openJobs(agent: AgentId): Promise<SlurmJob[]> {
    const jobs = await this.#queue.look(undefined, true);
    // Another onejob of the same user has jobs there, too. A comment may be a site's, but no other onejob has the agent's folder.
    const isOwn = (job: SlurmJob): boolean => isOf(this.#options.owner, job) || this.#folders.intentOf(agent) !== null;
    return (jobs.get(agent) ?? []).filter((job) => phaseOf(job) !== 'ended' && isOwn(job));
  }

  async #hasEnded(agent: AgentId, signal: AbortSignal): Promise<boolean> {
    const jobs = await this.#queue.look(signal, true).catch(() => null);
    return this.#folders.exitCode(agent) !== null || (jobs !== null && this.#stateOf(agent, jobs)?.kind === 'exited');
  }

  /** Whether the log shows that a script was taken. */
  #hasReleased(agent: AgentId): boolean {
    return hasReleased(this.#folders.of(agent), agent, markersWithin);
  }
}

function gateEnded(agent: AgentId): OnejobError {
  return new OnejobError('E_GATE_ENDED', `Cannot release agent ${agent}: its gate has ended.`, { retry: true });
}

function notHanded(agent: AgentId): string {
  return `Cannot release agent ${agent}: Slurm did not start a step next to it within ${releaseLimit / 1000} s.`;
}
