/** Repositories, runner groups, runners and jobs of the GitHub stand-in, and which runner gets which job. No HTTP is in here. */
import { generateKeyPairSync, type KeyObject, randomUUID } from 'node:crypto';
import type { Clock } from '../../src/core/clock.ts';

export interface Repository {
  readonly id: number;
  readonly owner: string;
  readonly name: string;
  isPrivate: boolean;
  isArchived: boolean;
  /** Whose pull requests wait for a person's approval. */
  approval: 'first_time_contributors_new_to_github' | 'first_time_contributors' | 'all_external_contributors';
}

export interface Group {
  readonly id: number;
  readonly name: string;
  visibility: 'all' | 'selected' | 'private';
  /** Names as `acme/demo`, for `selected`. */
  repositories: string[];
  allowsPublic: boolean;
  /** Null: any workflow; else as `acme/demo/.github/workflows/a.yml@refs/heads/main`. */
  workflows: string[] | null;
  /** GitHub's own machines: no self-hosted runner may be in it. */
  readonly isHosted: boolean;
}

export type Conclusion = 'success' | 'failure' | 'cancelled' | 'timed_out' | 'skipped';

export interface Run {
  readonly id: number;
  readonly repository: Repository;
  readonly event: string;
  readonly actor: string;
  readonly branch: string;
  readonly path: string;
  /** Name of the fork that a pull request came from; else the repository itself. */
  readonly head: string;
  readonly isFork: boolean;
  /** Waits for a person; its jobs are no demand. */
  held: 'waiting' | 'action_required' | null;
  readonly createdAt: number;
}

/** A step that is an image, `docker://IMAGE`, or an action in the workspace, `./FOLDER`. */
export interface ActionStep {
  readonly uses: string;
  readonly with?: Readonly<Record<string, string>>;
}

/** What a job's `container:` and `services:` say, as in a workflow. */
export interface JobContainers {
  readonly container?: Readonly<Record<string, unknown>> | undefined;
  readonly services?: Readonly<Record<string, Readonly<Record<string, unknown>>>> | undefined;
}

export interface Job extends JobContainers {
  readonly id: number;
  /** What runners call it. */
  readonly uuid: string;
  readonly plan: string;
  /** Of the offer that a runner acquires it with. */
  request: string;
  readonly run: Run;
  readonly name: string;
  readonly labels: readonly string[];
  /** The lines of each step, or what it is instead. */
  readonly steps: readonly (readonly string[] | ActionStep)[];
  readonly attempt: number;
  status: 'queued' | 'in_progress' | 'completed';
  conclusion: Conclusion | null;
  runner: Runner | null;
  /** That has acquired it; the row may be gone. */
  ranOn: Runner | null;
  /** Scale set that has acquired it. */
  set: number | null;
  /** How often its runner has renewed its lease. */
  renewals: number;
  log: string;
  /** Name of the step that failed, its own or its runner's; null: none did. */
  failedStep: string | null;
  readonly queuedAt: number;
  startedAt: number | null;
  completedAt: number | null;
  callOff: () => void;
}

/** What reaches a runner that listens. */
export type RunnerMessage = { readonly kind: 'job'; readonly job: Job } | { readonly kind: 'cancel'; readonly job: Job };

export interface Runner {
  readonly id: number;
  readonly name: string;
  /** `/orgs/acme`, `/repos/acme/demo` or `/enterprises/big`. */
  readonly scope: string;
  readonly group: number;
  readonly labels: readonly string[];
  readonly set: number | null;
  readonly client: string;
  readonly key: KeyObject;
  readonly workFolder: string;
  readonly createdAt: number;
  version: string | null;
  job: Job | null;
  /** Of its process, real or played; null when there is none. */
  listener: Listener | null;
  isGone: boolean;
}

export interface Listener {
  /** False when it cannot hear now, so that it gets no job. */
  readonly isListening: () => boolean;
  /** Whether GitHub has heard from it lately. */
  readonly isSeen: () => boolean;
  /** Whether it renews its job without a call. */
  readonly keepsJob: () => boolean;
  readonly hear: (message: RunnerMessage) => void;
}

export interface QueueOptions extends JobContainers {
  /** As `acme/demo`. */
  readonly repository?: string;
  readonly labels?: readonly string[];
  readonly event?: string;
  readonly actor?: string;
  readonly branch?: string;
  /** Of the workflow. */
  readonly path?: string;
  readonly name?: string;
  /** As `stranger/demo`: a pull request from there. */
  readonly fork?: string;
  readonly held?: Run['held'];
  readonly steps?: Job['steps'];
  /** Adds a job to this run. */
  readonly run?: Run;
}

/** Time for a runner to acquire a job that it was offered, ms; then another one gets it (GitHub's docs). */
const offerTime = 60_000;
/** How long a job lives without being renewed, ms (runner, `lockedUntil`). */
const leaseTime = 600_000;

let onlyKey: KeyObject | null = null;
/** One key for all who ask: making one takes 100 ms. */
export function sharedKey(): KeyObject {
  onlyKey ??= generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey;
  return onlyKey;
}

const ownKey = (): KeyObject => generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey;

export type World = ReturnType<typeof createWorld>;

/** `ownKeys`: each runner has its own key. */
export function createWorld(clock: Clock, ownKeys: boolean) {
  const repositories = new Map<string, Repository>();
  /** Accounts that are no organisations. */
  const people = new Set<string>();
  const groups: Group[] = [];
  const runners = new Map<number, Runner>();
  const jobs: Job[] = [];
  const runs: Run[] = [];
  const watchers: ((what: 'queued' | 'assigned' | 'started' | 'completed', job: Job) => void)[] = [];
  let nextRunner = 20;

  const tell = (what: 'queued' | 'assigned' | 'started' | 'completed', job: Job) => {
    for (const watch of watchers) watch(what, job);
  };

  const groupAllows = (runner: Runner, { repository, path, branch }: Run): boolean => {
    const group = groups.find(({ id }) => id === runner.group);
    if (runner.scope.startsWith('/repos/') || group === undefined) return true;
    const name = `${repository.owner}/${repository.name}`;
    if (!repository.isPrivate && !group.allowsPublic) return false;
    if (group.visibility === 'selected' && !group.repositories.includes(name)) return false;
    return group.workflows === null || group.workflows.includes(`${name}/${path}@refs/heads/${branch}`);
  };
  const serves = ({ scope }: Runner, { owner, name }: Repository): boolean =>
    scope.startsWith('/enterprises/') || scope === `/orgs/${owner}` || scope === `/repos/${owner}/${name}`;
  const suits = (runner: Runner, job: Job): boolean => {
    if (runner.isGone || runner.job !== null || runner.listener?.isListening() !== true) return false;
    if (!serves(runner, job.run.repository) || !groupAllows(runner, job.run)) return false;
    if (runner.set !== null || job.set !== null) return runner.set === job.set;
    return job.labels.every((label) => runner.labels.includes(label.toLowerCase()));
  };
  const letGo = (job: Job): void => {
    job.callOff();
    job.callOff = () => {};
    if (job.runner?.job === job) job.runner.job = null;
    job.runner = null;
  };

  const world = {
    clock,
    repositories,
    people,
    groups,
    runners,
    jobs,
    runs,
    watch: (watcher: (typeof watchers)[number]): void => void watchers.push(watcher),
    repository(name: string, options: Partial<Pick<Repository, 'isPrivate' | 'isArchived' | 'approval'>> = {}): Repository {
      const [owner = '', repo = ''] = name.split('/');
      const row: Repository = {
        id: 300 + repositories.size,
        owner,
        name: repo,
        isPrivate: true,
        isArchived: false,
        approval: 'first_time_contributors',
        ...options,
      };
      repositories.set(name.toLowerCase(), row);
      return row;
    },
    group(name: string, options: Partial<Omit<Group, 'id' | 'name'>> = {}): Group {
      const shape = { visibility: 'all' as const, repositories: [], allowsPublic: false, workflows: null, isHosted: false };
      const row: Group = { id: groups.length + 1, name, ...shape, ...options };
      groups.push(row);
      return row;
    },
    /** A new registration: offline, with nobody behind it. */
    register(row: Pick<Runner, 'name' | 'scope' | 'group' | 'labels' | 'workFolder' | 'set'>): Runner {
      nextRunner += 1;
      const key = ownKeys ? ownKey() : sharedKey();
      const state = { version: null, job: null, listener: null, isGone: false };
      const runner: Runner = { id: nextRunner, client: randomUUID(), key, createdAt: clock.now(), ...row, ...state };
      runners.set(runner.id, runner);
      return runner;
    },
    unregister(runner: Runner): void {
      runner.isGone = true;
      runners.delete(runner.id);
    },
    queue(options: QueueOptions = {}): Job {
      const name = options.repository ?? 'acme/demo';
      const repository = repositories.get(name.toLowerCase());
      if (repository === undefined) throw new Error(`The stand-in has no repository ${name}; add it first.`);
      const { event = options.fork === undefined ? 'push' : 'pull_request', actor = 'octocat', branch = 'main' } = options;
      const { path = '.github/workflows/ci.yml', held = null, fork } = options;
      const origin = { head: fork ?? `${repository.owner}/${repository.name}`, isFork: fork !== undefined };
      const start = { id: 7_000 + runs.length, createdAt: clock.wall() };
      const run = options.run ?? { ...start, repository, event, actor, branch, path, held, ...origin };
      if (options.run === undefined) runs.push(run);
      return world.addJob({
        run,
        name: options.name ?? 'build',
        labels: options.labels ?? ['gpu'],
        steps: options.steps ?? [['true']],
        container: options.container,
        services: options.services,
      });
    },
    addJob(row: Pick<Job, 'run' | 'name' | 'labels' | 'steps' | keyof JobContainers>, attempt = 1): Job {
      const names = { id: 90_000 + jobs.length, uuid: randomUUID(), plan: randomUUID(), request: randomUUID() };
      const state = {
        status: 'queued' as const,
        conclusion: null,
        runner: null,
        ranOn: null,
        set: null,
        renewals: 0,
        log: '',
        failedStep: null,
      };
      const times = { queuedAt: clock.wall(), startedAt: null, completedAt: null, callOff: () => {} };
      const job: Job = { ...names, ...row, attempt, ...state, ...times };
      jobs.push(job);
      if (job.run.held === null) tell('queued', job);
      world.dispatch();
      return job;
    },
    /** As somebody does on the website: the job waits again, as a new one. */
    rerun: ({ run, name, labels, steps, container, services, attempt }: Job): Job =>
      world.addJob({ run, name, labels, steps, container, services }, attempt + 1),
    /** A person lets a held run go. */
    approve(run: Run): void {
      run.held = null;
      for (const job of jobs) if (job.run === run) tell('queued', job);
      world.dispatch();
    },
    /** Offers waiting jobs, the oldest first. */
    dispatch(): void {
      for (const job of jobs) {
        if (job.status !== 'queued' || job.runner !== null || job.run.held !== null) continue;
        const runner = [...runners.values()].find((one) => suits(one, job));
        if (runner === undefined) continue;
        Object.assign(job, { runner, request: randomUUID() });
        runner.job = job;
        job.callOff = clock.after(offerTime, () => world.giveBack(job));
        runner.listener?.hear({ kind: 'job', job });
      }
    },
    /** The runner does not get it after all. */
    giveBack(job: Job): void {
      letGo(job);
      world.dispatch();
    },
    start(job: Job): void {
      Object.assign(job, { status: 'in_progress', startedAt: clock.wall(), ranOn: job.runner });
      world.renew(job);
      tell('started', job);
    },
    /** When nobody renews it any more, the job has failed, and its row stays. */
    renew(job: Job): number {
      job.callOff();
      job.renewals += 1;
      const over = () => (job.runner?.listener?.keepsJob() === true ? world.renew(job) : world.end(job, 'failure', true));
      job.callOff = clock.after(leaseTime, over);
      return clock.wall() + leaseTime;
    },
    /** `failedStep`: left out for a failure: its last. */
    end(job: Job, conclusion: Conclusion, keepsRow = false, failedStep?: string): void {
      const { runner } = job;
      const last = conclusion === 'failure' && !keepsRow ? `Step ${job.steps.length}` : null;
      Object.assign(job, { status: 'completed', conclusion, completedAt: clock.wall(), failedStep: failedStep ?? last });
      tell('completed', job);
      letGo(job);
      if (runner !== null && !keepsRow) world.unregister(runner);
    },
    cancel(job: Job): void {
      if (job.status === 'in_progress') job.runner?.listener?.hear({ kind: 'cancel', job });
      if (job.status !== 'queued') return;
      // Nobody works on it yet, so its runner, if one was about to, stays.
      const runner = job.runner;
      letGo(job);
      world.end(job, 'cancelled');
      if (runner !== null) world.dispatch();
    },
  };
  return world;
}
