/**
 * Buildkite: pipelines queue jobs, people cancel them, other stacks take some, the service has
 * bad days. The service is the stand-in itself, in this process (`buildkite-wire.ts`), and agents run in sandboxes
 * (`buildkite-agent.ts`). What each job should come to is known here; what the service says of it must agree, once and for good.
 */
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeKey, parseKeys } from '../../src/secrets/keys.ts';
import { seal, unseal } from '../../src/secrets/sealed-format.ts';
import { leave } from '../standins/buildkite/dispatch.ts';
import type { Fault, FaultWhere } from '../standins/buildkite/faults.ts';
import { openBuildkiteStandin } from '../standins/buildkite/in-process.ts';
import { isConnected, type Job } from '../standins/buildkite/state.ts';
import type { JobView, LoggedRequest } from '../standins/buildkite/types.ts';
import { type Habit, runAgent, variablesIn, type Work } from './buildkite-agent.ts';
import { filterAuthority, SimFilter } from './buildkite-filter.ts';
import { BuildkiteWire } from './buildkite-wire.ts';
import type { SimHost } from './host.ts';
import type { Seen } from './runtime.ts';
import type { Happening, Outside } from './scenario.ts';
import { fine, type Outage } from './wire.ts';

/** What configs of scenarios name: the service's address, and the files that hold its token and the key of secrets. */
export const buildkiteUrl = 'https://buildkite.sim/v3';
export const [tokenFile, keyFile] = ['buildkite.token', 'secrets.key'];

interface Wanted extends Work {
  readonly isFork: boolean;
  readonly hasSecret: boolean;
  /** How its agents begin, one after the other; then well. */
  readonly habits: Habit['kind'][];
  isCancelled: boolean;
  /** Another stack, or an agent of another host, has it. */
  isElsewhere: boolean;
  /** Sandboxes that were to run it. */
  releases: number;
  /** Sandboxes that the Engine had refused to make when it was queued. */
  readonly refusedBefore: number;
  /** Why it may end in another way than it was given; null: nothing explains that. */
  excuse: string | null;
  begun: number;
}

/** ms between two looks at what has run out. */
const sweepEvery = 10_000;
/** Jobs after whose end those of long ago are forgotten. */
const forgetEvery = 50;
/** ms for which the service knows what is over. */
const remembers = 2 * 3_600_000;
/** ms of calm after which what is reserved must be kept, and ms that must be left of a reservation then. One of a second was given back. */
const [keptAfter, leastLeft, givenBack] = [60_000, 60_000, 1_500];
/** ms in which a job must have begun while a slot is free and nothing is wrong. */
const longestWait = 1_800_000;
/** ms before its time limit in which a job may count as late all the same: its agent took as long to begin it. */
const unseen = 10_000;
/** ms for which agents try to tell that a job began, or how it ended; and without a word of theirs, the service takes them for lost. */
const [startPatience, finishPatience, silence] = [25_000, 500_000, 120_000];
/** Lists of one stack in one second that are too many. */
const tooMany = 3;
/** Pipeline and variable that the one secret is for, and its value. */
const [pipeline, variable, canary] = ['demo', 'SECRET_SWORD', 'canary-of-buildkite'] as const;

/** Made once, and opened once, so that all it needs is loaded. */
async function makeSecret(): Promise<{ readonly key: string; readonly sealed: string }> {
  const text = await makeKey('x25519', 'of a simulation');
  const [key] = (await parseKeys(text)).keys;
  if (key?.kind !== 'x25519') throw new Error('no key was made');
  const sealed = await seal(key, { name: variable.replace('SECRET_', ''), pipelines: [`acme/${pipeline}`], value: canary });
  await unseal([key], sealed);
  return { key: text, sealed };
}
const secret = await makeSecret();

export function buildkiteService(host: SimHost, random: () => number): Outside {
  const { engine, time } = host;
  const broken: string[] = [];
  const counts = {
    bkJobs: 0,
    bkDone: 0,
    bkPassed: 0,
    bkCancelled: 0,
    bkRefused: 0,
    bkDisturbed: 0,
    bkBegun: 0,
    bkRivals: 0,
    bkForks: 0,
    bkSecrets: 0,
    bkOutages: 0,
    bkAgents: 0,
    bkTokens: 0,
    bkPauses: 0,
    bkLost: 0,
    bkTried: 0,
    bkNotes: 0,
    bkTimedOut: 0,
    bkStrange: 0,
  };
  const jobs = new Map<string, Wanted>();
  /** Jobs that no pool here may have. */
  const strange = new Set<string>();
  /** Jobs that run in sandboxes, by onejob's id of the agent. */
  const busy = new Map<string, string>();
  const hadJob = new Set<string>();
  const tokens: string[] = [];
  let token = '';
  let isRefused = false;
  let refusals = 0;
  let paused = 0;
  /** Since when the manager is up and nothing is wrong. */
  let soundSince = 0;
  /** Since when nothing is wrong, and something continued. */
  let calmSince = 0;
  /** Lists of each stack in its latest second. */
  const lists = new Map<string, { readonly second: number; count: number }>();
  const breaks = (what: string): void => void broken.push(what);
  const never = new AbortController().signal;
  const [, limit = null] = /timeout: (\d+)s/.exec(host.config) ?? [];
  /** ms; of all pools. */
  const timeout = limit === null ? null : Number(limit) * 1_000;
  /** The image that jobs of forks have instead of their pool's. */
  const [, forForks = null] = /trust: {[^}]* image: "(.+?)"/.exec(host.config) ?? [];
  const forks = /forks: refuse/.test(host.config) ? 'refuse' : 'run';

  const standin = openBuildkiteStandin({
    now: () => time.wall - time.jumped,
    after: (ms, fn) => time.after(ms, fn),
    pingInterval: 10,
    jobStatusInterval: 10,
    heartbeatInterval: 30,
    reservedNeedsToken: false,
    heard: (request) => heard(request),
    fault: (request) => faultFor(request),
  });
  const { buildkite, world } = standin;
  world.origin = new URL(buildkiteUrl).origin;
  const wire = new BuildkiteWire(time, random, () => standin);
  const filter = new SimFilter(time, wire.ask);
  const ofRival = buildkite.addToken({ kind: 'registration' });

  function giveToken(): void {
    token = buildkite.addToken({ kind: 'registration' });
    tokens.push(token);
    writeFileSync(join(host.dir, tokenFile), `${token}\n`, { mode: 0o600 });
    isRefused = false;
    refusals = 0;
  }
  giveToken();
  writeFileSync(join(host.dir, keyFile), secret.key, { mode: 0o600 });

  const tell = host.tell.bind(host);
  host.tell = (what) => {
    for (const one of tokens) if (what.includes(one)) breaks(`S8: a token is in the log: ${what.slice(0, 80)}`);
    tell(what);
  };

  function heard({ route, params, query, leaked, token: kind, from, valid }: LoggedRequest): void {
    if (leaked) breaks(`S8: a token stands elsewhere than in the head of a request: ${route}`);
    if (from === 'agent' && (kind === 'registration' || kind === 'metrics'))
      breaks(`S8: an agent has the cluster's token: ${route}`);
    if (from !== 'manager') return;
    if (kind === 'session' || kind === 'job') breaks(`S8: the manager acts as an agent: ${route}`);
    if (!valid) {
      refusals += 1;
      if (refusals > 40 + 20 * host.starts) breaks(`S9: a refused token was shown ${refusals} times`);
    }
    if (route !== 'stacks/:key/scheduled-jobs') return;
    const second = Math.floor(time.now / 1_000);
    const key = `${params.key} ${new URLSearchParams(query).get('queue_key')}`;
    const before = lists.get(key);
    const now = before?.second === second ? before : { second, count: 0 };
    lists.set(key, now);
    now.count += 1;
    if (now.count === tooMany) breaks(`S9: the queue of stack ${key} was listed ${tooMany} times in a second`);
  }

  function faultFor(request: LoggedRequest): Fault | null {
    if (request.from === 'rival') return null;
    const fault = wire.draw(request);
    if (fault === null) return null;
    const { id = '' } = request.params;
    // With the answer the agent loses the job's token, without which nothing can be said of the job.
    if (request.route === 'jobs/:id/acquire' && fault.kind !== 'error' && fault.kind !== 'reset' && fault.kind !== 'hang')
      excuse(id, 'the answer to its acquisition was lost');
    return fault;
  }

  function excuse(id: string, why: string): void {
    const job = jobs.get(id);
    if (job !== undefined) job.excuse ??= why;
  }

  buildkite.on((event) => {
    switch (event.kind) {
      case 'agentRegistered':
        counts.bkAgents += 1;
        return;
      case 'agentLost':
        counts.bkLost += 1;
        tell(`buildkite: agent ${event.agent.name} is lost`);
        return;
      case 'jobEnded':
        ended(event.job);
        return;
      case 'answered':
        if (event.request.route === 'jobs/:id/acquire' && event.request.status === 422) counts.bkTried += 1;
        if (event.request.route.endsWith('batch-reserve')) {
          const reserved = ourReserved().length;
          // Those of a manager that was killed may be among them.
          if (host.up !== null && reserved > 2 * host.slots.length)
            breaks(`S7: ${reserved} jobs are reserved for ${host.slots.length} slots`);
        }
        return;
    }
  });

  function ended({ id, state, exit, signalReason, detail, notifications }: JobView): void {
    const job = jobs.get(id);
    if (job === undefined) return;
    jobs.delete(id);
    calmSince = time.now;
    counts.bkDone += 1;
    counts.bkNotes += notifications.length;
    const how = `${exit}${signalReason === '' ? '' : ` (${signalReason})`}${detail === null || detail === '' ? '' : `: ${detail}`}`;
    tell(`buildkite: job ${id} ended with ${how}`);
    judge(id, job, { state, exit, signalReason, detail });
    if (counts.bkDone % forgetEvery === 0) standin.forget(time.wall - time.jumped - remembers);
  }

  function judge(id: string, job: Wanted, end: Pick<JobView, 'state' | 'exit' | 'signalReason' | 'detail'>): void {
    const { exit, signalReason, detail } = end;
    const is = `job ${id} ended with ${exit} (${signalReason}, ${detail})`;
    if (job.isElsewhere) {
      if (job.begun > 0) breaks(`S3: ${is}, and ran here although another host had it`);
      return;
    }
    if (signalReason === 'stack_error') {
      counts.bkRefused += 1;
      if (job.begun > 0) breaks(`S3: ${is}, and had begun`);
      else if (detail === null || !/^onejob .{10,}/.test(detail)) breaks(`${is}, and nobody says why`);
      else if (!mayBeRefused(job)) breaks(`S7: ${is}, and nothing speaks against it`);
      return;
    }
    if (job.isFork && forks === 'refuse') breaks(`${is}, and is of a fork`);
    if (timeout !== null && job.ms > timeout - unseen && job.begun === 1 && exit === -1) {
      counts.bkTimedOut += 1;
      return;
    }
    const isDoomed = job.bad === 'dies' || job.bad === 'vanishes';
    if (exit === job.exit && job.begun === 1 && !isDoomed && signalReason === '') {
      counts.bkPassed += 1;
      return;
    }
    if (isDoomed && job.begun === 1 && exit === -1) return;
    if (job.isCancelled && (end.state === 'canceled' || exit === -1)) {
      counts.bkCancelled += 1;
      return;
    }
    if (job.excuse !== null && exit === -1) counts.bkDisturbed += 1;
    else
      breaks(
        `S5: ${is}; it was to end with ${job.exit}${job.bad === undefined ? '' : `, ${job.bad}`}, and began ${job.begun} times`,
      );
  }

  /** Forks where none may run, and what came to nothing again and again. */
  function mayBeRefused(job: Wanted): boolean {
    return (job.isFork && forks === 'refuse') || job.releases + engine.refused - job.refusedBefore >= 3;
  }

  host.onUp.add(() => {
    soundSince = time.now;
  });
  engine.programs.add((script, stage) => {
    if (!script.endsWith('exec buildkite-agent start')) return false;
    const { agent } = stage.spec;
    const { BUILDKITE_AGENT_ACQUIRE_JOB: id = '' } = variablesIn(script);
    const whole = `${script}\n${JSON.stringify(stage.spec)}`;
    for (const one of tokens) if (whole.includes(one)) breaks(`S8: the cluster's token is in the sandbox of agent ${agent}`);
    const job = jobs.get(id);
    if (job !== undefined) job.releases += 1;
    const { image } = stage.spec.recipe;
    if (job !== undefined && forForks !== null && (image === forForks) !== job.isFork)
      breaks(`S8: agent ${agent} has image ${image}, and its job is ${job.isFork ? '' : 'not '}of a fork`);
    const [hasCanary, isFiltered] = [whole.includes(canary), script.includes(`http://${filterAuthority}/`)];
    if (job?.isFork === true && hasCanary) breaks(`S8: a secret is in the sandbox of agent ${agent}, of a fork`);
    if (job !== undefined && job.isFork !== isFiltered)
      breaks(`S8: job ${id} ${job.isFork ? 'of a fork has' : 'has not'} the service's own token`);
    if (job !== undefined && !job.isFork && job.hasSecret && !hasCanary) breaks(`job ${id} is trusted and has no secret`);
    if (hasCanary) counts.bkSecrets += 1;
    const inside = {
      print: (text: string) => stage.print(text),
      onTerm(fn: () => void) {
        stage.onTerm = fn;
      },
      end: (code: number) => stage.end(code),
      ended: stage.ended,
    };
    const hears = (what: 'begins' | 'ends' | 'unheard', of: string): void => {
      if (what === 'begins') begins(of, agent);
      else if (what === 'ends') busy.delete(agent);
      else excuse(of, 'its agent gave up telling the service about it');
    };
    // Not before the gate has said that it is released.
    const ask = isFiltered ? filter.ask : wire.ask;
    time.after(1, () => void runAgent({ time, random, ask, inside, hears, habit: habitOf }, script));
    return true;
  });

  function habitOf(id: string): Habit {
    const kind = jobs.get(id)?.habits.shift() ?? 'comes';
    if (kind === 'silent') return { kind };
    const ms = 100 + random() * 1_000;
    return kind === 'ends' ? { kind, ms, code: 1 } : { kind, ms };
  }

  function begins(id: string, agent: string): void {
    counts.bkBegun += 1;
    calmSince = time.now;
    busy.set(agent, id);
    if (hadJob.has(agent)) breaks(`S3: agent ${agent} began a second job, ${id}`);
    hadJob.add(agent);
    const job = jobs.get(id);
    if (job === undefined) {
      breaks(`S3: job ${id} began and was over already`);
      return;
    }
    job.begun += 1;
    // Given up for its silence, and taken before an Engine that is away could end its agent.
    if (host.slots.some((slot) => slot.agent.kind === 'ending' && slot.agent.agent === agent))
      excuse(id, 'its agent was being ended when it took the job');
    if (job.begun > 1) breaks(`S3: job ${id} began ${job.begun} times`);
    if (job.isElsewhere) breaks(`S3: job ${id} began here, and another host has it`);
  }

  /** Who runs a job ends by itself, by its service, or by people; nothing else ends it. */
  const disturbed = (how: string) => (sandbox: Seen) => {
    const { agent } = sandbox.spec;
    const id = busy.get(agent);
    if (sandbox.exit !== null || id === undefined) return;
    const job = jobs.get(id);
    const isLate = timeout !== null && (job?.ms ?? 0) > timeout - unseen;
    if (job !== undefined && job.excuse === null && !job.isCancelled && !isLate)
      breaks(`S5/S6: agent ${agent} was ${how} with job ${id}`);
  };
  engine.watchers.add({
    signalled: disturbed('signalled'),
    removed(sandbox) {
      disturbed('removed')(sandbox);
      busy.delete(sandbox.spec.agent);
      hadJob.delete(sandbox.spec.agent);
    },
  });
  host.onEnding.add(() => {
    for (const id of busy.values()) excuse(id, 'the manager was stopped');
  });

  /** Another host, whose calls never fail. */
  async function ask(method: string, path: string, by: string, body: unknown = {}): Promise<Record<string, unknown>> {
    const bytes = Buffer.from(JSON.stringify(body));
    const headers = { authorization: `Token ${by}` };
    const request = { method, url: `/v3/${path}`, headers, from: 'rival', body: async () => bytes, signal: never };
    const answer = await standin.enter(request);
    if (answer === 'cut' || answer === 'silence' || answer.status >= 300) throw new Error(`the other host is refused: ${path}`);
    return answer.text === '' ? {} : (JSON.parse(answer.text) as Record<string, unknown>);
  }

  /** It runs the job `ms`, or forgets it. */
  async function rival(job: Job, how: string, ms: number): Promise<void> {
    counts.bkRivals += 1;
    tell(`buildkite: another host ${how} job ${job.id}`);
    if (how !== 'steals') {
      const about = { key: 'rival', type: 'custom', queue_key: job.queue, metadata: {} };
      await ask('POST', 'stacks/register', ofRival, about);
      const body = { job_uuids: [job.id], reservation_expiry_seconds: 30 };
      await ask('PUT', 'stacks/rival/scheduled-jobs/batch-reserve', ofRival, body);
      if (how === 'forgets') return;
    }
    const { access_token } = await ask('POST', 'register', ofRival, { name: 'stranger', ignore_in_dispatches: true });
    const session = String(access_token);
    await ask('POST', 'connect', session);
    const { token: own } = await ask('PUT', `jobs/${job.id}/acquire`, session);
    const known = jobs.get(job.id);
    if (known !== undefined) known.isElsewhere = true;
    await ask('PUT', `jobs/${job.id}/start`, String(own));
    time.after(ms, () => {
      // Nobody who asks meanwhile may take its agent for lost.
      void ask('PUT', `jobs/${job.id}/finish`, String(own), { exit_status: '7' }).catch(() => {});
      void ask('POST', 'disconnect', session).catch(() => {});
    });
  }

  function queue(happening: Happening): void {
    const { ms, exit = 0, says = 0, bad = null, fork = 0, secret: hasSecret = 0, habits = [], cancelAfter = null } = happening;
    const { rules = [], priority = 0, queue: name = 'default', fits = 1 } = happening;
    const work: Work = {
      ms: Number(ms),
      exit: Number(exit),
      says: Number(says),
      ...(bad !== null && { bad: bad as Work['bad'] & string }),
    };
    const isFork = random() < Number(fork);
    const isSecret = random() < Number(hasSecret);
    counts.bkJobs += 1;
    if (isFork) counts.bkForks += 1;
    const id = buildkite.queueJob({
      command: JSON.stringify(work),
      queue: String(name),
      rules: rules as string[],
      priority: Number(priority),
      pipeline,
      ...(isFork && { pullRequest: 7, pullRequestRepo: 'https://git.example.org/stranger/demo.git' }),
      ...(isSecret && { env: { [variable]: secret.sealed } }),
    });
    if (fits === 0) {
      counts.bkStrange += 1;
      strange.add(id);
      return;
    }
    jobs.set(id, {
      ...work,
      isFork,
      hasSecret: isSecret,
      habits: [...(habits as Habit['kind'][])],
      isCancelled: false,
      isElsewhere: false,
      excuse: null,
      begun: 0,
      releases: 0,
      refusedBefore: engine.refused,
    });
    plan();
    if (typeof cancelAfter === 'number') time.after(cancelAfter, () => cancel(id));
  }

  function cancel(id: string | undefined): void {
    const job = id === undefined ? undefined : jobs.get(id);
    if (id === undefined || job === undefined) return;
    job.isCancelled = true;
    tell(`buildkite: somebody cancels job ${id}`);
    buildkite.cancel(id);
  }

  /** What runs out does so also while nobody asks. */
  let isPlanned = false;
  function plan(): void {
    if (isPlanned) return;
    isPlanned = true;
    time.after(sweepEvery, () => {
      isPlanned = false;
      buildkite.sweep();
      look();
      if (jobs.size > 0 || world.present.size > 0) plan();
    });
  }

  const isTroubled = (): boolean =>
    wire.outage !== null || wire.weather.managers !== fine || wire.weather.agents !== fine || isRefused || paused > 0;

  const ourReserved = (): Job[] => inState('reserved').filter(({ reservation }) => reservation?.stack !== 'rival');

  /** What is reserved is kept, and a job waits no longer than for a slot. */
  function look(): void {
    const isFree = host.up !== null && engine.isUp && host.slots.some(({ agent }) => agent.kind === 'free');
    if (isTroubled() || !isFree) calmSince = time.now;
    if (host.up === null || !engine.isUp || isTroubled()) soundSince = time.now;
    if (time.now - soundSince > keptAfter) {
      for (const { id, reservation } of ourReserved()) {
        const left = (reservation?.until ?? 0) - world.now();
        // One that was reserved right before a kill nobody knows of: it goes back to its queue by itself.
        const isKnown = (host.store?.serviceJobs.get(id)?.state ?? 'done') !== 'done';
        if (isKnown && left > givenBack && left < leastLeft)
          breaks(`S7: the reservation of job ${id} runs out in ${Math.round(left)} ms, and nobody keeps it`);
      }
    }
    const waits = inState('scheduled', 'reserved').filter(({ id }) => jobs.has(id));
    if (time.now - calmSince < longestWait || waits.length === 0) return;
    const [{ id, state }] = waits as [Job];
    breaks(`S7: job ${id} is ${state}, and nothing has begun for half an hour although a slot is free`);
  }

  /** The service's own time stands still while it is away itself. */
  function lengthen(ms: number): void {
    for (const agent of world.present) agent.lastHeartbeat += ms;
    for (const job of world.open)
      if (job.reservation !== null) job.reservation = { ...job.reservation, until: job.reservation.until + ms };
  }

  const number = (value: unknown, otherwise: number): number => (typeof value === 'number' ? value : otherwise);
  const picked = <T>(from: readonly T[], pick: unknown): T | undefined =>
    from[Math.floor((number(pick, 0) / 1_000) * from.length) % Math.max(1, from.length)];
  const inState = (...states: readonly string[]): Job[] => [...world.open].filter(({ state }) => states.includes(state));

  return {
    name: 'buildkite',
    parts: (process) => ({
      fetch: wire.fetchOf(process),
      filter: filter.access(process),
    }),
    takes: {
      /** A job: `ms`, `exit`, `says`, `bad`, `rules`, `queue`, `priority`; `fork`, `secret`: how likely; `habits` of its first agents. */
      'buildkite.queue': queue,
      'buildkite.cancel': ({ pick }) => cancel(picked([...jobs.keys()], pick)),
      /** `how`: see `Outage`. `network`: the service continues meanwhile, and takes those it does not hear of for gone. */
      'buildkite.outage'({ ms, how = 'refused', network = false }) {
        if (wire.outage !== null) return;
        counts.bkOutages += 1;
        const [began, lasts] = [time.now, number(ms, 10_000)];
        tell(`buildkite: away for ${lasts} ms (${how}${network === true ? ', the network' : ''})`);
        wire.outage = how as Outage;
        if (network !== true) lengthen(lasts + sweepEvery);
        for (const { id, state } of inState('accepted', 'running', 'canceling')) {
          const most = state === 'accepted' ? startPatience : network === true ? silence : finishPatience;
          if (lasts > most) excuse(id, 'its agent could not tell the service about it');
        }
        time.after(lasts, () => {
          wire.outage = null;
          tell(`buildkite: there again after ${Math.round(time.now - began)} ms`);
        });
      },
      /** Shares of requests that go wrong, for `ms`; `who`: managers, agents, or both. */
      'buildkite.faults': (how) => wire.change(how),
      /** The next `times` requests of this `method` and `route` meet this `fault`; `after`: so many pass first. */
      'buildkite.fault'({ fault, method, route, times = 1, after = 0 }) {
        wire.faults += 1;
        const where = { route, times, after, ...(method !== undefined && { method }) } as FaultWhere;
        buildkite.faults.add(fault as Fault, where);
      },
      /** Nobody is to be given a job of a queue, for `ms`. */
      'buildkite.pause'({ ms, queue: name = 'default' }) {
        counts.bkPauses += 1;
        paused += 1;
        tell(`buildkite: queue ${name} is paused`);
        buildkite.pauseQueue(String(name), true);
        time.after(number(ms, 60_000), () => {
          paused -= 1;
          if (paused === 0) buildkite.pauseQueue(String(name), false);
        });
      },
      /** Another host takes a job: `reserves` and runs it, `forgets` it, `steals` one that is reserved for us. */
      'buildkite.rival'({ pick, how = 'reserves', ms }) {
        const job = picked(how === 'steals' ? inState('reserved') : inState('scheduled'), pick);
        return job === undefined ? undefined : rival(job, String(how), number(ms, 10_000));
      },
      /** The service takes an agent for lost. */
      'buildkite.lose'({ pick }) {
        const agent = picked(
          [...world.present].filter((one) => isConnected(one) && one.name !== 'stranger'),
          pick,
        );
        if (agent === undefined) return;
        if (agent.job !== null) excuse(agent.job.id, 'the service took its agent for lost');
        leave(world, agent, true);
      },
      /** Somebody removes our stacks at the service. */
      'buildkite.unstack'() {
        tell('buildkite: somebody removes all stacks');
        world.stacks.clear();
      },
      /** The token is refused from now on; after `ms` there is another one. */
      'buildkite.token'({ ms }) {
        if (isRefused) return;
        counts.bkTokens += 1;
        tell('buildkite: the token is revoked');
        buildkite.revoke(token);
        isRefused = true;
        time.after(number(ms, 600_000), giveToken);
      },
      /** How far the service's clock is ahead. */
      'buildkite.skew'({ ms }) {
        buildkite.faults.skew = number(ms, 0);
      },
    },
    broken: () => (broken.length === 0 ? broken : broken.splice(0)),
    unsettled() {
      const [first] = jobs;
      if (first !== undefined) {
        const [id, about] = first;
        return `job ${id} is ${world.jobs.get(id)?.state}, ${JSON.stringify(about)}, and ${jobs.size - 1} others are open`;
      }
      if (wire.outage !== null) return 'the service is away';
      return isRefused ? 'the token is refused' : null;
    },
    calm() {
      wire.clear();
      buildkite.faults.clear();
    },
    census() {
      const agents = [...world.present].filter((agent) => agent.connected !== null);
      const stacks = [...world.stacks.keys()].filter((key) => key !== 'rival');
      return [
        ...stacks.map((key) => `S4: stack ${key} is left at the service`),
        ...agents.map(({ name }) => `S4: agent ${name} is left at the service`),
        ...[...strange]
          .filter((id) => world.jobs.get(id)?.state !== 'scheduled')
          .map((id) => `S7: job ${id} fits nowhere, and was touched`),
        ...inState('reserved').map(({ id }) => `S4: job ${id} is left reserved`),
        ...filesIn(host.dir).flatMap((path) => {
          if (path === join(host.dir, tokenFile)) return [];
          const text = readFileSync(path, 'latin1');
          const found = tokens.some((one) => text.includes(one)) || text.includes(canary);
          return found ? [`S8: a secret is in ${path.slice(host.dir.length)}`] : [];
        }),
      ];
    },
    counts: () => ({ ...counts, bkRequests: wire.requests, bkFaults: wire.faults }),
  };
}

function filesIn(dir: string): string[] {
  return readdirSync(dir)
    .map((name) => join(dir, name))
    .flatMap((path) => (statSync(path).isDirectory() ? filesIn(path) : statSync(path).isFile() ? [path] : []));
}
