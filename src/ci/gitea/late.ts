/**
 * Gitea with `binding: late`, for the engine of late binding. Gitea has no other way to give a job away than to a runner, so a runner
 * is registered for each job, and its task goes to the real runner in a sandbox once there is one. Key and access token stay here: the
 * filter signs what that runner says.
 */
import { join } from 'node:path';
import { z } from 'zod';
import { attempt, OnejobError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { PoolConfig } from '../../config/config.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentContext, CiService } from '../../ports/ci-service.ts';
import { expandName } from '../../schema/template.ts';
import { createNamedRemover, type NamedEntry } from '../early/named.ts';
import type { Remote } from '../early/port.ts';
import { AgentNames } from '../early/registrations.ts';
import { hasEngine } from '../kit/admission.ts';
import type { AgentProgram } from '../kit/agent-program.ts';
import { createJobFiles, type JobFiles } from '../kit/job-files.ts';
import type { JobAbout, JobEnd } from '../kit/job-rows.ts';
import { acceptsToo, noProxyFor } from '../kit/mounted.ts';
import { LateBound, type LateParts, openLate } from '../late/engine.ts';
import { openJobFiles } from '../late/jobs.ts';
import type { JobHandover, JobState, LatePort, LateVerdict } from '../late/port.ts';
import type { OpenParts } from '../parts.ts';
import type { GiteaClient } from './client.ts';
import { giteaFindings } from './doctor.ts';
import { giteaRules, giteaRulesOf } from './filter-rules.ts';
import { endTask } from './last-words.ts';
import { createPlaces, type Places } from './registry.ts';
import { equippedForGitea, giteaScript } from './script.ts';
import { cacheTokenOf, type GivenTask, handedIn, type TaskFacts, taskFacts, taskIn } from './task.ts';
import { type GiteaServiceConfig, labelsOf } from './type.ts';
import { failedIn, type GiteaJob, giteaEnd, outsideScript, repositoryOf } from './wire.ts';

/** A runner at the server. `place`: whose it is, as a part of the path. */
const enlisted = z.object({
  id: z.int().positive(),
  key: z.object({ uuid: z.string(), token: z.string() }),
  place: z.string(),
});
type Enlisted = z.output<typeof enlisted>;
const taskKey = z.object({ runner: enlisted, task: z.int().positive() });
/** `answer`: of the server, whole (base64). */
const given = z.object({ runner: enlisted, answer: z.string().refine((text) => attempt(() => taskIn(bytesOf(text))) !== null) });
export type TaskKey = z.output<typeof taskKey>;
export type Given = z.output<typeof given>;
export const schemas = { given, key: taskKey };

const bytesOf = (answer: string): Buffer => Buffer.from(answer, 'base64');

/** ms between two questions for a task, as of the runner in sandboxes. The server answers at once. */
export const askEvery = 1_000;
/** ms in which a job shows up that the server was giving a runner while it was disabled. */
const picking = 1_000;

export interface LateGiteaParts extends Omit<LateParts<Given, TaskKey>, 'service'> {
  readonly config: GiteaServiceConfig;
  readonly client: GiteaClient;
  /** Of the installation. */
  readonly owner: string;
}

export function openLateGitea(
  own: Pick<LateGiteaParts, 'config' | 'client'> & { readonly program: AgentProgram },
  parts: OpenParts,
): CiService {
  const { store, clock, log } = parts;
  const { name } = own.config;
  const taken = openJobFiles(join(store.dir, `jobs-${name}`), { schemas });
  const port = new GiteaPort({
    ...own,
    clock,
    log,
    owner: store.owner,
    host: parts.config.host,
    pool: parts.pools[0],
    runners: openRunnerFiles(join(store.dir, `runners-${name}`)),
    held: taken.all().map((found) => ('given' in found ? found.given.runner.id : found.begun.runner.id)),
  });
  return createLateGitea({ ...openLate(name, port, parts), ...own, owner: store.owner, images: [], pollEvery: askEvery });
}

export function createLateGitea(parts: LateGiteaParts): CiService {
  const { config, client, program, owner } = parts;
  const { common } = new LateBound({ ...parts, service: config.name });
  const names = new AgentNames(owner);
  const ours = { places: createPlaces(client, config.url), isOurs: (name: string) => names.agentOf(name) !== null, left: 0 };
  return {
    ...common,
    check: async (signal) => [...((await parts.filter?.check()) ?? []), ...(await giteaFindings(parts, ours, signal))],
    equip: (recipe) => equippedForGitea(recipe, program.folder),
    removeNamed: createNamedRemover(
      [...new Set(parts.pools.map(({ queue }) => queue))].map((name) => ({ name, pools: [] })),
      runnersOf(client, ours.places),
      { agentNames: names, names: () => new Set() },
    ).removeNamed,
  };
}

/** The runners of a place, of all hosts. */
function runnersOf(client: GiteaClient, places: Places) {
  const working = async (place: string, signal: AbortSignal) =>
    new Set((await client.jobs(place, 'in_progress', signal)).map(({ runner_id }) => runner_id));
  return {
    async list({ name: queue }: { readonly name: string }, signal: AbortSignal) {
      const place = await places.find(queue, signal);
      const [runners, busy] = await Promise.all([client.runners(place, signal), working(place, signal)]);
      return {
        entries: runners.map(({ id, name, status }): NamedEntry => {
          const state = status === 'online' || status === 'offline' ? status : null;
          return { place, id: String(id), name, status: state, job: busy.has(id) ? id : null };
        }),
      };
    },
    /** The server would remove a runner with a job, too, and let the job hang. */
    async remove({ place, id }: Remote, signal: AbortSignal) {
      return (await working(place, signal)).has(Number(id)) ? 'busy' : client.deleteRunner(place, id, signal);
    },
  };
}

/** Runners without a task, as far as this host knows. */
export const openRunnerFiles = (dir: string) => createJobFiles(dir, enlisted);

export interface GiteaPortParts extends Pick<LateGiteaParts, 'config' | 'client' | 'program' | 'owner'> {
  readonly clock: Clock;
  readonly log: Log;
  /** For people: the name of this host. */
  readonly host: string;
  readonly pool: PoolConfig | undefined;
  readonly runners: JobFiles<Enlisted>;
  /** Ids of runners whose tasks an earlier manager left on disk. */
  readonly held: readonly number[];
}

export class GiteaPort implements LatePort<Given, TaskKey> {
  readonly endpoint: string;
  readonly rules = giteaRulesOf;
  readonly schemas = schemas;
  readonly pace: LatePort<Given, TaskKey>['pace'];
  readonly #parts: GiteaPortParts;
  readonly #places: Places;
  readonly #read = new WeakMap<Given, GivenTask>();
  /** Runners that this host has or had: all others with this name are ones whose registration nobody heard of. */
  readonly #known = new Set<number>();
  /** The one that asks, and has no task. */
  #current: Enlisted | null = null;
  /** Whose task the engine was given, and has on disk when it asks for another one. */
  #handed: Enlisted | null = null;
  /** Those that may have a task of which this host does not know. */
  #doubtful: readonly Enlisted[] | null = null;
  #isSwept = false;

  constructor(parts: GiteaPortParts) {
    this.#parts = parts;
    const { client, config } = parts;
    this.endpoint = config.url;
    // A cancelled job's runner hears nothing, because the server removes it with the cancel; one whose job is over leaves at once.
    this.pace = { look: config.pollEvery, over: 60_000, cancelled: 0 };
    this.#places = createPlaces(client, config.url);
  }

  keyOf(one: Given): TaskKey {
    return { runner: one.runner, task: this.#taskOf(one).id };
  }

  idOf({ task }: TaskKey): string {
    return `task-${task}`;
  }

  aboutOf(one: Given): Omit<JobAbout, 'id'> {
    const { title, definition, build, repository, branch, tag, reason, link } = taskFacts(this.#taskOf(one));
    return { title, definition, build, repository, branch: branch ?? tag, reason, link };
  }

  factsOf(one: Given): TaskFacts {
    return taskFacts(this.#taskOf(one));
  }

  envOf(one: Given): GivenTask['vars'] {
    return this.#taskOf(one).vars;
  }

  imageOf(): string {
    return '';
  }

  whyNot(): null {
    return null;
  }

  async request(_mayHold: boolean, signal: AbortSignal): Promise<Given | null> {
    await this.#releaseAll(signal);
    if (this.#parts.pool === undefined) return null;
    if (!this.#isSwept) await this.#sweep(this.#parts.pool, signal);
    this.#isSwept = false;
    const runner = this.#current ?? (await this.#enlist(this.#parts.pool, signal));
    this.#isSwept = true;
    this.#current = null;
    this.#doubtful = [runner];
    const answer = await this.#parts.client.fetchTask(runner.key, signal);
    const one: Given = { runner, answer: answer.toString('base64') };
    const found = attempt(() => ({ task: taskIn(answer) }));
    if (found === null) {
      const message = `Cannot read the job that ${this.#parts.config.url} gave to runner ${runner.id}: its answer is damaged.`;
      throw new OnejobError('E_CI_ANSWER', message, { hint: 'onejob ends that job, and asks for another one.', retry: true });
    }
    this.#doubtful = [];
    if (found.task === null) this.#current = runner;
    else this.#handed = runner;
    return found.task === null ? null : one;
  }

  async look({ runner, task }: TaskKey, waits: boolean, signal: AbortSignal): Promise<JobState> {
    const { key } = runner;
    // While it waits, the server must hear of it at least every ten minutes. Later that is its runner's part.
    const isOurs = waits
      ? await this.#parts.client.touch(key, task, signal)
      : (await this.#parts.client.log(key, task, { from: 0, rows: [], isLast: false }, signal)) !== null;
    return isOurs ? 'ours' : this.#ended(runner, signal);
  }

  async end({ runner, task }: TaskKey, { words }: LateVerdict, signal: AbortSignal): Promise<JobEnd | null> {
    return (await endTask(this.#parts, { key: runner.key, task, words }, signal)) ? null : this.#ended(runner, signal);
  }

  async script(
    { name, workspace }: AgentContext,
    one: Given,
    { way: { origin, ca }, notes, leave, caches, ...how }: JobHandover,
    signal: AbortSignal,
  ): Promise<string> {
    const { runner, answer } = one;
    const { key } = runner;
    const [note] = notes;
    if (note !== undefined) {
      // In the place of the runner's own first line, which only names the task: the server skips as many lines as the log has.
      const rows = [{ time: new Date(this.#parts.clock.wall()).toISOString(), content: `onejob: ${note}` }];
      await this.#parts.client.log(key, this.#taskOf(one).id, { from: 0, rows, isLast: false }, signal);
    }
    const url = `${origin}/${giteaRules.root}`;
    const signs = { 'x-runner-uuid': key.uuid, 'x-runner-token': key.token };
    const token = leave(handedIn(bytesOf(answer), { ...how, url: this.#parts.config.url }), signs);
    const { timeout = null } = this.#parts.pool ?? {};
    const labels = this.#parts.pool === undefined ? [] : labelsOf(this.#parts.pool);
    const before = [...noProxyFor(url), ...(ca === null ? [] : acceptsToo(ca, `${workspace}/.onejob-ca.pem`))];
    const secret = cacheTokenOf(this.#taskOf(one));
    const kept = secret === null ? null : caches('actions', secret);
    const more = { timeout, hasEngine: hasEngine(this.#parts.pool, how), before, caches: kept };
    return giteaScript({ id: runner.id, uuid: 'onejob', token, name, url, labels, workspace, ...more });
  }

  async withdraw(signal: AbortSignal): Promise<void> {
    const own = this.#current === null ? [] : [this.#current];
    this.#current = null;
    this.#doubtful = [...(this.#doubtful ?? this.#ofBefore()), ...own];
    await this.#releaseAll(signal);
  }

  /** One for all slots. */
  #nameOf({ name: pool, agentName }: PoolConfig): string {
    const template = agentName.replaceAll(/[-._]?\{(n|\d+\.\.)\}/g, '');
    return new AgentNames(this.#parts.owner).agentName(expandName(template, { host: this.#parts.host, pool, n: 1 }), 'late');
  }

  #taskOf(one: Given): GivenTask {
    const task = this.#read.get(one) ?? taskIn(bytesOf(one.answer));
    if (task === null) throw new RangeError('an answer without a task');
    this.#read.set(one, task);
    return task;
  }

  /** Registers a runner for one job. Its key is on disk before it is used. */
  async #enlist(one: PoolConfig, signal: AbortSignal): Promise<Enlisted> {
    const place = await this.#places.find(one.queue, signal);
    const token = await this.#parts.client.registrationToken(place, signal);
    const version = this.#parts.program.state.kind === 'ready' ? this.#parts.program.state.version : 'unknown';
    const made = await this.#parts.client.register({ name: this.#nameOf(one), token, labels: labelsOf(one), version }, signal);
    if (made === null) {
      const message = `Cannot register a runner for pool ${one.name}: ${this.#parts.config.url} does not accept the registration token that it has just made.`;
      throw new OnejobError('E_CI_ANSWER', message, { hint: 'onejob tries again.', retry: true });
    }
    const { id, uuid, token: own } = made;
    const runner: Enlisted = { id, key: { uuid, token: own }, place };
    this.#known.add(id);
    await this.#parts.runners.keep(String(id), runner);
    return runner;
  }

  /**
   * Removes a runner that has no task, as far as this host knows. The server may have given it one whose answer was lost with the
   * connection or the manager. It gives no task twice, so such a job is ended. @throws OnejobError E_CI_*
   */
  async #release({ id, key, place }: Enlisted, signal: AbortSignal): Promise<void> {
    if ((await this.#parts.client.setDisabled(place, String(id), true, signal)) === 'done') {
      await sleep(this.#parts.clock, picking, signal);
      signal.throwIfAborted();
      const job = (await this.#parts.client.jobs(place, 'in_progress', signal)).find(({ runner_id }) => runner_id === id);
      if (job === undefined) await this.#parts.client.deleteRunner(place, String(id), signal);
      else await this.#speakFor(job, key, signal);
    }
    this.#parts.runners.forget(String(id));
  }

  async #speakFor(job: GiteaJob, key: Enlisted['key'], signal: AbortSignal): Promise<void> {
    const words = 'this job was lost: its host lost the answer with which the server gave it away. Run it again.';
    const repository = repositoryOf(job);
    let isEnded = false;
    for (const task of repository === null ? [] : await this.#parts.client.runningTasks(repository, signal))
      isEnded ||= await endTask(this.#parts, { key, task, words }, signal);
    const what = isEnded ? 'a job was lost, because the answer that gave it away was' : 'a job hangs until its server gives it up';
    this.#parts.log.warn(what, { job: job.html_url ?? job.id });
  }

  /** Those that an earlier manager left without a task. */
  #ofBefore(): readonly Enlisted[] {
    const held = new Set(this.#parts.held);
    const all = this.#parts.runners.all();
    for (const id of [...held, ...all.map((one) => one.id)]) this.#known.add(id);
    for (const { id } of all) if (held.has(id)) this.#parts.runners.forget(String(id));
    return all.filter(({ id }) => !held.has(id));
  }

  /** Of the runners of this host, only those with a task are left then, and the one that asks. */
  async #releaseAll(signal: AbortSignal): Promise<void> {
    if (this.#handed !== null) this.#parts.runners.forget(String(this.#handed.id));
    this.#handed = null;
    this.#doubtful ??= this.#ofBefore();
    for (const one of this.#doubtful) {
      await this.#release(one, signal);
      this.#doubtful = this.#doubtful.filter((other) => other !== one);
    }
  }

  /** Removes runners whose keys nobody has: they can have no task. */
  async #sweep(one: PoolConfig, signal: AbortSignal): Promise<void> {
    const place = await this.#places.find(one.queue, signal);
    for (const { id, name } of await this.#parts.client.runners(place, signal))
      if (name === this.#nameOf(one) && !this.#known.has(id)) await this.#parts.client.deleteRunner(place, String(id), signal);
  }

  /** How the job of a runner ended, as the server says. */
  async #ended({ id, place }: Enlisted, signal: AbortSignal): Promise<JobEnd> {
    const job = (await this.#parts.client.endedJobs(place, signal)).find(({ runner_id }) => runner_id === id);
    const outcome = giteaEnd(job?.conclusion ?? null);
    const where = job === undefined || outcome !== 'failed' ? null : failedIn(job);
    return { word: job?.conclusion ?? 'ended', outcome, failedIn: where, note: where === 'runner' ? outsideScript : null };
  }
}
