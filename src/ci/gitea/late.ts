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
import type { CiService } from '../../ports/ci-service.ts';
import { expandName } from '../../schema/template.ts';
import { createNamedRemoval, type NamedEntry } from '../early/named.ts';
import type { Remote } from '../early/port.ts';
import { createAgentNames } from '../early/registrations.ts';
import type { AgentProgram } from '../kit/agent-program.ts';
import { createJobFiles } from '../kit/job-files.ts';
import type { JobEnd } from '../kit/job-rows.ts';
import { noProxyFor } from '../kit/mounted.ts';
import { createLateBound, type LateParts, openLate } from '../late/engine.ts';
import { openJobFiles } from '../late/jobs.ts';
import type { LatePort } from '../late/port.ts';
import type { OpenParts } from '../parts.ts';
import type { GiteaClient } from './client.ts';
import { giteaFindings } from './doctor.ts';
import { giteaRules, giteaRulesOf } from './filter-rules.ts';
import { endTask } from './last-words.ts';
import { createPlaces } from './registry.ts';
import { equippedForGitea, giteaScript } from './script.ts';
import { type GivenTask, handedIn, taskFacts, taskIn } from './task.ts';
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
  const port = giteaPort({
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
  const { common } = createLateBound({ ...parts, service: config.name });
  const names = createAgentNames(owner);
  const ours = { places: createPlaces(client, config.url), isOurs: (name: string) => names.agentOf(name) !== null, left: 0 };
  return {
    ...common,
    check: async (signal) => [...((await parts.filter?.check()) ?? []), ...(await giteaFindings(parts, ours, signal))],
    equip: (recipe) => equippedForGitea(recipe, program.folder),
    removeNamed: createNamedRemoval(
      [...new Set(parts.pools.map(({ queue }) => queue))].map((name) => ({ name, pools: [] })),
      runnersOf(client, ours.places),
      { agentNames: names, names: () => new Set() },
    ).removeNamed,
  };
}

/** The runners of a place, of all hosts. */
function runnersOf(client: GiteaClient, places: ReturnType<typeof createPlaces>) {
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
  readonly runners: ReturnType<typeof openRunnerFiles>;
  /** Ids of runners whose tasks an earlier manager left on disk. */
  readonly held: readonly number[];
}

export function giteaPort(parts: GiteaPortParts): LatePort<Given, TaskKey> {
  const { config, client, program, clock, log, pool, runners } = parts;
  const places = createPlaces(client, config.url);
  /** One for all slots. */
  const nameOf = ({ name: pool, agentName }: PoolConfig): string => {
    const template = agentName.replaceAll(/[-._]?\{(n|\d+\.\.)\}/g, '');
    return createAgentNames(parts.owner).agentName(expandName(template, { host: parts.host, pool, n: 1 }), 'late');
  };
  const read = new WeakMap<Given, GivenTask>();
  /** Runners that this host has or had: all others with this name are ones whose registration nobody heard of. */
  const known = new Set<number>();
  /** The one that asks, and has no task. */
  let current: Enlisted | null = null;
  /** Whose task the engine was given, and has on disk when it asks for another one. */
  let handed: Enlisted | null = null;
  /** Those that may have a task of which this host does not know. */
  let doubtful: readonly Enlisted[] | null = null;
  let isSwept = false;

  function taskOf(one: Given): GivenTask {
    const task = read.get(one) ?? taskIn(bytesOf(one.answer));
    if (task === null) throw new RangeError('an answer without a task');
    read.set(one, task);
    return task;
  }

  /** Registers a runner for one job. Its key is on disk before it is used. */
  async function enlist(one: PoolConfig, signal: AbortSignal): Promise<Enlisted> {
    const place = await places.find(one.queue, signal);
    const token = await client.registrationToken(place, signal);
    const version = program.state.kind === 'ready' ? program.state.version : 'unknown';
    const made = await client.register({ name: nameOf(one), token, labels: labelsOf(one), version }, signal);
    if (made === null) {
      const message = `Cannot register a runner for pool ${one.name}: ${config.url} does not accept the registration token that it has just made.`;
      throw new OnejobError('E_CI_ANSWER', message, { hint: 'onejob tries again.', retry: true });
    }
    const { id, uuid, token: own } = made;
    const runner: Enlisted = { id, key: { uuid, token: own }, place };
    known.add(id);
    await runners.keep(String(id), runner);
    return runner;
  }

  /**
   * Removes a runner that has no task, as far as this host knows. The server may have given it one whose answer was lost with the
   * connection or the manager. It gives no task twice, so such a job is ended. @throws OnejobError E_CI_*
   */
  async function release({ id, key, place }: Enlisted, signal: AbortSignal): Promise<void> {
    if ((await client.setDisabled(place, String(id), true, signal)) === 'done') {
      await sleep(clock, picking, signal);
      signal.throwIfAborted();
      const job = (await client.jobs(place, 'in_progress', signal)).find(({ runner_id }) => runner_id === id);
      if (job === undefined) await client.deleteRunner(place, String(id), signal);
      else await speakFor(job, key, signal);
    }
    runners.forget(String(id));
  }

  async function speakFor(job: GiteaJob, key: Enlisted['key'], signal: AbortSignal): Promise<void> {
    const words = 'this job was lost: its host lost the answer with which the server gave it away. Run it again.';
    const repository = repositoryOf(job);
    let isEnded = false;
    for (const task of repository === null ? [] : await client.runningTasks(repository, signal))
      isEnded ||= await endTask(parts, { key, task, words }, signal);
    const what = isEnded ? 'a job was lost, because the answer that gave it away was' : 'a job hangs until its server gives it up';
    log.warn(what, { job: job.html_url ?? job.id });
  }

  /** Those that an earlier manager left without a task. */
  function ofBefore(): readonly Enlisted[] {
    const held = new Set(parts.held);
    const all = runners.all();
    for (const id of [...held, ...all.map((one) => one.id)]) known.add(id);
    for (const { id } of all) if (held.has(id)) runners.forget(String(id));
    return all.filter(({ id }) => !held.has(id));
  }

  /** Of the runners of this host, only those with a task are left then, and the one that asks. */
  async function releaseAll(signal: AbortSignal): Promise<void> {
    if (handed !== null) runners.forget(String(handed.id));
    handed = null;
    doubtful ??= ofBefore();
    for (const one of doubtful) {
      await release(one, signal);
      doubtful = doubtful.filter((other) => other !== one);
    }
  }

  /** Removes runners whose keys nobody has: they can have no task. */
  async function sweep(one: PoolConfig, signal: AbortSignal): Promise<void> {
    const place = await places.find(one.queue, signal);
    for (const { id, name } of await client.runners(place, signal))
      if (name === nameOf(one) && !known.has(id)) await client.deleteRunner(place, String(id), signal);
  }

  /** How the job of a runner ended, as the server says. */
  async function ended({ id, place }: Enlisted, signal: AbortSignal): Promise<JobEnd> {
    const job = (await client.endedJobs(place, signal)).find(({ runner_id }) => runner_id === id);
    const outcome = giteaEnd(job?.conclusion ?? null);
    const where = job === undefined || outcome !== 'failed' ? null : failedIn(job);
    return { word: job?.conclusion ?? 'ended', outcome, failedIn: where, note: where === 'runner' ? outsideScript : null };
  }

  return {
    endpoint: config.url,
    rules: giteaRulesOf,
    schemas,
    // A cancelled job's runner hears nothing, because the server removes it with the cancel; one whose job is over leaves at once.
    pace: { look: config.pollEvery, over: 60_000, cancelled: 0 },
    keyOf: (one) => ({ runner: one.runner, task: taskOf(one).id }),
    idOf: ({ task }) => `task-${task}`,
    aboutOf(one) {
      const { title, definition, build, repository, branch, tag, reason, link } = taskFacts(taskOf(one));
      return { title, definition, build, repository, branch: branch ?? tag, reason, link };
    },
    factsOf: (one) => taskFacts(taskOf(one)),
    envOf: (one) => taskOf(one).vars,
    imageOf: () => '',
    whyNot: () => null,
    async request(_, signal) {
      await releaseAll(signal);
      if (pool === undefined) return null;
      if (!isSwept) await sweep(pool, signal);
      isSwept = false;
      const runner = current ?? (await enlist(pool, signal));
      isSwept = true;
      current = null;
      doubtful = [runner];
      const answer = await client.fetchTask(runner.key, signal);
      const one: Given = { runner, answer: answer.toString('base64') };
      const found = attempt(() => ({ task: taskIn(answer) }));
      if (found === null) {
        const message = `Cannot read the job that ${config.url} gave to runner ${runner.id}: its answer is damaged.`;
        throw new OnejobError('E_CI_ANSWER', message, { hint: 'onejob ends that job, and asks for another one.', retry: true });
      }
      doubtful = [];
      if (found.task === null) current = runner;
      else handed = runner;
      return found.task === null ? null : one;
    },
    async look({ runner, task }, waits, signal) {
      const { key } = runner;
      // While it waits, the server must hear of it at least every ten minutes. Later that is its runner's part.
      const isOurs = waits
        ? await client.touch(key, task, signal)
        : (await client.log(key, task, { from: 0, rows: [], isLast: false }, signal)) !== null;
      return isOurs ? 'ours' : ended(runner, signal);
    },
    async end({ runner, task }, { words }, signal) {
      return (await endTask(parts, { key: runner.key, task, words }, signal)) ? null : ended(runner, signal);
    },
    async script({ name, workspace }, one, { authority, notes, leave, ...how }, signal) {
      const { runner, answer } = one;
      const { key } = runner;
      const [note] = notes;
      if (note !== undefined) {
        // In the place of the runner's own first line, which only names the task: the server skips as many lines as the log has.
        const rows = [{ time: new Date(clock.wall()).toISOString(), content: `onejob: ${note}` }];
        await client.log(key, taskOf(one).id, { from: 0, rows, isLast: false }, signal);
      }
      const url = `http://${authority}/${giteaRules.root}`;
      const signs = { 'x-runner-uuid': key.uuid, 'x-runner-token': key.token };
      const token = leave(handedIn(bytesOf(answer), { ...how, url: config.url }), signs);
      const { timeout = null } = pool ?? {};
      const labels = pool === undefined ? [] : labelsOf(pool);
      const before = noProxyFor(url);
      return giteaScript({ id: runner.id, uuid: 'onejob', token, name, url, labels, workspace, timeout, before });
    },
    async withdraw(signal) {
      const own = current === null ? [] : [current];
      current = null;
      doubtful = [...(doubtful ?? ofBefore()), ...own];
      await releaseAll(signal);
    },
  };
}
