/**
 * Azure DevOps as it is used: pipelines queue jobs, people cancel them and change what they should not, the service has bad days.
 * The service is the stand-in itself, in this process (`azure-wire.ts`), and agents run in sandboxes (`azure-agent.ts`). What each
 * job should come to is known here; what the service says of it must agree with that, once and for good.
 */
import crypto from 'node:crypto';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { openAzureDevOps } from '../standins/azure-devops/in-process.ts';
import type { LoggedRequest, RequestView } from '../standins/azure-devops/types.ts';
import { type Habits, isAgent, SimAgent, type Work } from './azure-agent.ts';
import { AzureWire } from './azure-wire.ts';
import { isDiskFull } from './builtins.ts';
import type { SimHost } from './host.ts';
import { currentProcess } from './process.ts';
import { noFaults, type Seen, type Stage } from './runtime.ts';
import type { Happening, Outside } from './scenario.ts';
import { fine, type Outage } from './wire.ts';

/** What configs of scenarios name: the service's address, and the file that holds the token. */
export const azureUrl = 'https://azure.sim/acme';
export const azureToken = 'azure.pat';

interface Wanted extends Work {
  isCancelled: boolean;
  /** Why it may end in another way than it was given; null: nothing explains that. */
  excuse: string | null;
  /** It may also be lost, and not only cancelled, by that excuse. */
  mayBeLost: boolean;
  /** How often an agent began it. */
  begun: number;
}

const good: Habits = { never: 0, ends: 0, slow: 0 };
/** ms between two looks at locks and sessions that have run out. */
const sweepEvery = 30_000;
/** ms after which nothing of a disturbance is left at the service. */
const recovery = 180_000;
/** ms that a pool of these scenarios gives an agent to end its job; and ms by which a clock may be early. */
const grace = 35_000 - 500;
/** Agents of one slot that fail in so many ms: some soon after one another, then one every five minutes; each with a standby. */
const triesIn = (ms: number): number => 2 * (12 + ms / 200_000);
/** ms between two comparisons of what onejob says of its agents with what they do. */
const compareEvery = 10_000;
/** Requests of managers in one minute that are too many, whatever happens: a loop that spins. */
const tooMany = 1_500;

/** What an agent's image holds, as the script that looks inside says it. */
const inside = (image: string | null): string =>
  [
    ...[
      'root=/opt/agent',
      'writable=yes',
      ...(image === 'agent:2' ? ['version=5.279.0', 'tool=mvn=/usr/bin/mvn'] : ['version=5.278.0']),
    ],
    ...['tool=git=/usr/bin/git', 'tool=sh=/bin/sh', 'uid=1000'],
    ...['arch=x86_64', 'environment', "export MARK='yes'", "export PATH='/usr/bin:/bin'", ''],
  ].join('\n');

export function azurePipelines(host: SimHost, random: () => number): Outside {
  installKeys();
  const { engine, time } = host;
  const broken: string[] = [];
  const counts = {
    azureJobs: 0,
    azureDone: 0,
    azureCancelled: 0,
    azureAbandoned: 0,
    azureBegun: 0,
    azureOutages: 0,
    azureAgents: 0,
    azureRequests: 0,
    azureDisturbed: 0,
    azurePeople: 0,
    azureTokens: 0,
    azureStopped: 0,
    azureRights: 0,
    azureOtherImage: 0,
    azureStops: 0,
  };
  const jobs = new Map<number, Wanted>();
  const open = new Set<number>();
  /** Jobs that nobody can queue yet: before the first placeholder they would fail at once, and a service that is away takes none. */
  let early = 0;
  /** Jobs that run in sandboxes, by onejob's id of the agent. */
  const busy = new Map<string, number>();
  const hadJob = new Set<string>();
  /** Agents that were told to end with their manager, and since when. */
  const stopped = new Map<string, number>();
  /** Entries at the service that it did not give up in time, by id. */
  const kept = new Set<number>();
  const tokens: string[] = [];
  let habits = good;
  /** The service itself is away, and no more happens in it. */
  let isAway = false;
  let current = '';
  /** Since when the token in use is refused. */
  let refusedSince: number | null = null;
  let refusals = 0;
  let minute = { at: 0, requests: 0 };
  /** Since when the owner of the token may not manage the pool, and entries that were tried to be made since. */
  let denied: { readonly since: number; readonly starts: number; tries: number } | null = null;
  /** Since when agents fail, with what may be registered before nothing helps any more. */
  let hopeless: { readonly since: number; readonly starts: number; added: number; begun: number } | null = null;
  /** Somebody has told a manager twice to end. */
  let isHurried = false;
  /** The last moment at which something was wrong with the service, the way to it, or this host. */
  let wrongAt = 0;
  let slots = 0;
  /** Since when each of our agents has a session, and since when each works on a job. */
  const onlineSince = new Map<string, number>();
  const busySince = new Map<string, number>();
  let comparedAt = 0;
  /** The last moment at which the service could not be reached, and the last one at which a manager may have been refused by it. */
  let [awayAt, refusingAt] = [Number.NEGATIVE_INFINITY, Number.NEGATIVE_INFINITY];
  /** Jobs that are queued at the worst moment: just as the manager looks at one agent, to see whether it has one. */
  let traps: Happening[] = [];
  /** Whether somebody has removed a placeholder, so that jobs may fail for want of one. */
  let isUnplaced = false;
  const [, looks = '10'] = /poll: (\d+)s/.exec(host.config) ?? [];
  const [, patience = '180'] = /boot_timeout: (\d+)s/.exec(host.config) ?? [];
  /** ms; of the service. */
  const [poll, bootTimeout] = [Number(looks) * 1_000, Number(patience) * 1_000];
  const breaks = (what: string): void => void broken.push(what);

  const standin = openAzureDevOps({
    now: () => time.wall - time.jumped,
    after: (ms, fn) => time.after(ms, fn),
    origin: new URL(azureUrl).origin,
    remembered: 60,
    heard: (request) => heard(request),
    fault: ({ identity, from }) => (from === 'person' ? null : wire.draw(identity)),
  });
  const { azure, world } = standin;
  const wire = new AzureWire(time, random, () => standin);
  const pool = azure.addPool('gpu', { autoUpdate: true });
  const person = azure.addPat({ scopes: ['agentpools_manage'] });

  /** `poolAdmin`: whether its owner may manage the pool. */
  function giveToken(poolAdmin = true): void {
    current = azure.addPat({ scopes: ['agentpools_manage', 'build'], poolAdmin });
    tokens.push(current);
    writeFileSync(join(host.dir, azureToken), `${current}\n`, { mode: 0o600 });
    refusedSince = null;
    refusals = 0;
    denied = poolAdmin ? null : { since: time.now, starts: host.starts, tries: 0 };
  }
  giveToken();

  // Agents of others, some with names that look like ours, and the placeholder of another installation.
  const foreign = new Map<number, string>();
  const strangers = ['build-7', 'ci-1', 'ci-1-deadbeef-0123456789ab', 'onejob-placeholder-deadbeef-01234567', 'onejob-placeholder'];
  for (const name of strangers) {
    const id = enlist(name);
    foreign.set(id, describe(id));
  }

  function enlist(name: string): number {
    const about = { name, version: '5.278.0', osDescription: 'Linux', publicKey: { exponent: 'AQAB', modulus: keyPart(256, 99) } };
    const id = world.next();
    world.pools.get(pool)?.agents.set(id, {
      ...about,
      id,
      pool: world.pools.get(pool) as never,
      enabled: true,
      system: {},
      user: {},
      clientId: `stranger-${id}`,
      session: null,
      everOnline: true,
      leaving: false,
    });
    return id;
  }
  function describe(id: number): string {
    const one = world.pools.get(pool)?.agents.get(id);
    return one === undefined ? 'gone' : JSON.stringify([one.name, one.enabled, one.system, one.user, one.clientId]);
  }
  const ours = () => azure.agents(pool).filter(({ id }) => !foreign.has(id));
  const isPlaceholder = (name: string): boolean => name.startsWith('onejob-placeholder-');
  const agents = () => ours().filter(({ name }) => !isPlaceholder(name));
  const placeholders = () => ours().filter(({ name }) => isPlaceholder(name));

  function heard({ method, path, from, leaked, identity }: LoggedRequest): void {
    counts.azureRequests += 1;
    if (leaked) breaks(`S8: a token stands in ${method} ${path}`);
    if (from !== 'manager') return;
    if (identity === 'pat' && /session|message|\/plans\//.test(path)) breaks(`S8: the manager acts as an agent: ${method} ${path}`);
    const [, id = ''] = /\/agents\/(\d+)/.exec(path) ?? [];
    if (method !== 'GET' && foreign.has(Number(id)))
      breaks(`S4: ${method} of an agent that onejob did not make: ${foreign.get(Number(id))}`);
    if (refusedSince !== null) {
      refusals += 1;
      const windows = 2 + host.starts + (time.now - refusedSince) / 600_000;
      if (refusals > 12 * windows) breaks(`S9: a refused token was shown ${refusals} times`);
    }
    if (denied !== null && method === 'POST' && /\/agents(\?|$)/.test(path)) {
      denied.tries += 1;
      const windows = 2 + host.starts - denied.starts + (time.now - denied.since) / 600_000;
      if (denied.tries > 12 * windows) breaks(`S9: ${denied.tries} entries were tried to be made without the right to`);
    }
    if (traps.length > 0 && method === 'GET' && id !== '') {
      const trap = traps.shift() as Happening;
      time.after(random() * 400, () => queue(trap));
    }
    const now = Math.floor(time.now / 60_000);
    if (minute.at !== now) minute = { at: now, requests: 0 };
    minute.requests += 1;
    if (minute.requests === tooMany)
      breaks(`S9: the manager asks the service ${tooMany} times a minute, at last ${method} ${path}`);
  }

  const tell = host.tell.bind(host);
  host.tell = (what) => {
    for (const token of tokens) if (what.includes(token)) breaks(`S8: a token is in the log: ${what.slice(0, 80)}`);
    if (what.includes('has not come online') && time.now - awayAt < bootTimeout)
      breaks(`S9: the service was away ${time.now - awayAt} ms ago, and already an agent is given up: ${what.slice(0, 80)}`);
    tell(what);
  };

  azure.on((event) => {
    switch (event.kind) {
      case 'agentAdded':
        counts.azureAgents += 1;
        tell(`azure: ${event.name} is registered`);
        if (isPlaceholder(event.name)) isUnplaced = false;
        else if (hopeless !== null) {
          hopeless.added += 1;
          const { since, starts, added, begun } = hopeless;
          const most = slots * triesIn(time.now - since) * (1 + host.starts - starts) + 2 * begun;
          if (added > most) breaks(`S9: ${added} agents were registered in ${time.now - since} ms, and all fail`);
        }
        return;
      case 'agentDeleted':
        tell(`azure: ${event.name} is gone`);
        return;
      case 'requestAssigned':
        tell(`azure: job ${event.request.requestId} goes to ${event.request.agent?.name}`);
        if (world.faults.givesSecondJob) excuse(event.request.requestId, 'it may have been a second job');
        if (wire.outage !== null) excuse(event.request.requestId, 'the network was away when it was given to an agent');
        if (host.heldSince !== null && time.now - Math.max(wrongAt, host.heldSince) > recovery)
          breaks(`S7: a pool takes job ${event.request.requestId}, and is held for ${time.now - host.heldSince} ms`);
        plan();
        return;
      case 'sessionOpened':
        onlineSince.set(agentIn(event.name), time.now);
        plan();
        return;
      case 'sessionClosed':
        onlineSince.delete(agentIn(event.name));
        // What it was given and has not heard of went with its session.
        if (event.why === 'expired') lost(event.agent, 'its agent was not heard of in time');
        return;
      case 'requestFinished':
        ended(event.request);
        return;
    }
  });

  /** Locks and sessions run out also while nobody asks. A service that is away itself ends none. */
  let isPlanned = false;
  function plan(): void {
    if (isPlanned) return;
    isPlanned = true;
    time.after(sweepEvery, () => {
      isPlanned = false;
      if (!isAway) standin.sweep();
      if (world.sessions.size > 0 || open.size > 0) plan();
    });
  }

  function excuse(id: number, why: string, mayBeLost = true): void {
    const job = jobs.get(id);
    if (job === undefined) return;
    job.excuse ??= why;
    job.mayBeLost ||= mayBeLost;
  }

  /** Whether something is wrong with the service, the way to it, its token, its agents, or this host. */
  const isWrong = (): boolean =>
    host.up === null ||
    !engine.isUp ||
    engine.faults !== noFaults ||
    wire.outage !== null ||
    wire.weather.managers !== fine ||
    wire.weather.agents !== fine ||
    refusedSince !== null ||
    denied !== null ||
    habits !== good ||
    world.faults.givesSecondJob ||
    isDiskFull();

  host.onUp.add(() => {
    isHurried = false;
    slots = Math.max(slots, host.slots.length);
  });
  // Called before the first word, and again with the second.
  host.onEnding.add(() => (isHurried = host.up?.loop.reconciler.stopping === true));
  host.onStopped.add((how, isCalm) => {
    if (how === 'leave' || !isCalm || time.now - wrongAt < recovery) return;
    counts.azureStops += 1;
    const busy = new Set([...world.open].map(({ agent }) => agent?.id));
    const left = agents().filter(({ id }) => !busy.has(id) && !kept.has(id));
    if (left.length > 0)
      breaks(`S10: after the stop (${how}) agents are left at the service: ${left.map(({ name }) => name).join(', ')}`);
  });

  /** What onejob says of its agents is what they do. */
  function compare(): void {
    if (time.now - comparedAt < compareEvery) return;
    comparedAt = time.now;
    // Two looks, and the way of an answer.
    const seen = 2 * poll + 25_000;
    const since = (at: number | undefined): number =>
      at === undefined ? 0 : time.now - Math.max(at, wrongAt, refusingAt + recovery);
    for (const { key, agent: lane } of host.slots) {
      if (lane.kind !== 'idle') continue;
      const [online, working] = [since(onlineSince.get(lane.agent)), since(busySince.get(lane.agent))];
      if (working > seen) breaks(`S7: agent ${lane.agent} of ${key} has had a job for ${working} ms, and onejob does not know`);
      if (online > seen && !lane.online)
        breaks(`S9: agent ${lane.agent} of ${key} has been online for ${online} ms, and onejob does not know`);
    }
  }

  /** From now on agents fail, for `ms`. */
  function despair(ms: number): void {
    hopeless = { since: time.now, starts: host.starts, added: 0, begun: 0 };
    const these = hopeless;
    time.after(ms, () => {
      if (hopeless === these) hopeless = null;
    });
  }

  function lost(agent: number, why: string): void {
    for (const id of open) if (world.requests.get(id)?.agent?.id === agent) excuse(id, why);
  }

  function ended({ requestId, result, failedAtQueue, statusMessage, agent }: RequestView): void {
    const job = jobs.get(requestId);
    if (job === undefined || result === null) return;
    open.delete(requestId);
    jobs.delete(requestId);
    tell(`azure: job ${requestId} ended: ${result}${job.excuse === null ? '' : ` (${job.excuse})`}`);
    counts.azureDone += 1;
    if (result === 'abandoned') counts.azureAbandoned += 1;
    // Its entry was kept until then, and goes a while later.
    if (result === 'abandoned' && agent !== null) kept.add(agent.id);
    if (result === 'canceled' && !job.mayBeLost && !job.isCancelled) counts.azureStopped += 1;
    if (result === 'canceled') counts.azureCancelled += 1;
    if (failedAtQueue) {
      if (!isUnplaced) breaks(`a job failed for want of an agent: ${statusMessage}`);
      return;
    }
    if (result === (isDoomed(job) ? 'abandoned' : job.result)) return;
    if (job.isCancelled && result === 'canceled') return;
    if (job.excuse !== null && (result === 'canceled' || (result === 'abandoned' && job.mayBeLost))) counts.azureDisturbed += 1;
    else breaks(`S5: job ${requestId} was to end as ${job.result}${job.bad === undefined ? '' : `, ${job.bad}`}, and is ${result}`);
  }

  /** A person asks the service, as the web pages do. */
  function ask(method: string, path: string, body?: unknown): void {
    const bytes = Buffer.from(body === undefined ? '' : JSON.stringify(body));
    const authorization = `Basic ${Buffer.from(`:${person}`).toString('base64')}`;
    const headers = { authorization, accept: 'application/json; api-version=7.1' };
    const signal = new AbortController().signal;
    const url = `/acme/_apis/distributedtask/pools/${pool}/${path}`;
    void standin.enter({ method, url, headers, body: async () => bytes, from: 'person', signal });
    counts.azurePeople += 1;
  }

  function remove({ id, name }: { readonly id: number; readonly name: string }): void {
    tell(`azure: somebody deletes ${name}`);
    ask('DELETE', `agents/${id}`);
  }

  function queue(happening: Happening): void {
    if ((placeholders().length === 0 && !isUnplaced) || isAway) {
      early += 1;
      time.after(1_000, () => {
        early -= 1;
        queue(happening);
      });
      return;
    }
    const { ms, result = 'succeeded', bad, demands = ['flavour -equals blue'], cancelAfter } = happening;
    const work: Work = {
      ms: Number(ms),
      result: result as Work['result'],
      ...(bad != null && { bad: bad as Work['bad'] & string }),
    };
    // Known before it is queued, since it may end in the same moment.
    const wanted = { ...work, isCancelled: false, excuse: null, mayBeLost: false, begun: 0 };
    const off = azure.on((event) => {
      if (event.kind !== 'requestQueued') return;
      jobs.set(event.request.requestId, wanted);
      open.add(event.request.requestId);
    });
    counts.azureJobs += 1;
    const { requestId } = azure.queue(pool, { script: JSON.stringify(work), demands: demands as string[] });
    off();
    const after = cancelAfter ?? (work.bad === 'hang' ? work.ms : null);
    if (typeof after === 'number') time.after(after, () => cancel(requestId));
  }

  function cancel(id: number | undefined): void {
    const job = id === undefined ? undefined : jobs.get(id);
    if (id === undefined || job === undefined) return;
    job.isCancelled = true;
    tell(`azure: somebody cancels job ${id}`);
    azure.cancel(id);
  }

  const agentParts = {
    time,
    random,
    wire,
    service: standin,
    habits: () => habits,
    broken: breaks,
    excuse,
    tell,
    hears(what: 'job' | 'done', request: number, { spec }: Stage): void {
      if (what === 'done') {
        busySince.delete(spec.agent);
        busy.delete(spec.agent);
        return;
      }
      busy.set(spec.agent, request);
      busySince.set(spec.agent, time.now);
      counts.azureBegun += 1;
      if (hopeless !== null) hopeless.begun += 1;
      if (stopped.has(spec.agent)) excuse(request, 'it came as the manager was stopped', isWrong() || isHurried);
      if (hadJob.has(spec.agent)) breaks(`S3: agent ${spec.agent} began a second job, ${request}`);
      hadJob.add(spec.agent);
      const job = jobs.get(request);
      if (job === undefined) return;
      job.begun += 1;
      if (job.begun > 1) breaks(`S3: job ${request} began ${job.begun} times`);
    },
  };

  engine.programs.add((script, stage) => {
    if (script.includes('bin/Agent.Listener" --version')) {
      time.after(100 + random() * 900, () => {
        stage.print(`${inside(stage.spec.recipe.image)}\n${stage.spec.agent} 0`);
        stage.end(0);
      });
      return true;
    }
    if (!isAgent(script)) return false;
    const whole = `${script}\n${JSON.stringify(stage.spec)}`;
    for (const token of tokens) if (whole.includes(token)) breaks(`S8: a token is in the sandbox of agent ${stage.spec.agent}`);
    if (stage.spec.recipe.image !== 'agent:1') counts.azureOtherImage += 1;
    // Not before the gate has said that it is released.
    time.after(1, () => void new SimAgent(agentParts, stage).run(script));
    return true;
  });

  /** Who runs a job ends by itself, by its service, or by people; nothing else ends it. */
  const disturbed = (how: string) => (sandbox: Seen, signal: string) => {
    const { agent } = sandbox.spec;
    const request = busy.get(agent);
    const isStopping = host.up?.loop.reconciler.stopping === true;
    if (isStopping && !stopped.has(agent)) stopped.set(agent, time.now);
    if (sandbox.exit !== null || request === undefined) {
      if (sandbox.exit !== null) busy.delete(agent);
      return;
    }
    const job = jobs.get(request);
    const had = time.now - (stopped.get(agent) ?? time.now);
    if (isStopping) {
      // Its agent has time to tell of it; only one that is hurried, or does not hear, is lost.
      const mayBeLost = isHurried || isWrong() || job?.bad !== undefined;
      excuse(request, 'the manager was stopped', mayBeLost);
      if (signal !== 'TERM' && !mayBeLost && had < grace)
        breaks(`S10: agent ${agent} was ${how} after ${had} ms with job ${request}`);
    } else if (job !== undefined && job.excuse === null && !job.isCancelled)
      breaks(`S5/S6: agent ${agent} was ${how} with job ${request}`);
  };
  engine.watchers.add({ signalled: disturbed('signalled'), removed: (sandbox) => disturbed('removed')(sandbox, '') });

  const number = (value: unknown, otherwise: number): number => (typeof value === 'number' ? value : otherwise);
  const picked = <T>(from: readonly T[], pick: unknown): T | undefined =>
    from[Math.floor((number(pick, 0) / 1_000) * from.length) % Math.max(1, from.length)];

  return {
    name: 'azure',
    parts: (process) => ({ fetch: wire.fetchOf(process) }),
    takes: {
      /** A pipeline queues a job: `ms`, `result`, `bad`, `demands`; `cancelAfter`: ms until somebody cancels it. */
      'azure.queue': queue,
      /** The same, in the very moment in which the manager looks at one agent. */
      'azure.trap'(happening) {
        traps.push(happening);
      },
      'azure.cancel': ({ pick }) => cancel(picked([...open], pick)),
      /** `how`: see `Outage`. `network`: the service continues meanwhile, and takes those it does not hear of for gone. */
      'azure.outage'({ ms, how = 'refused', network = false }) {
        if (wire.outage !== null) return;
        counts.azureOutages += 1;
        const [began, lasts] = [time.now, number(ms, 10_000)];
        tell(`azure: away for ${lasts} ms (${how}${network === true ? ', the network' : ''})`);
        wire.begin(how as Outage);
        isAway = network !== true;
        const isBack = (): void => {
          wire.outage = null;
          isAway = false;
          tell('azure: there again');
          if (network !== true) lengthen(time.now - began);
        };
        // Its own time stands still where it is away itself.
        if (network !== true) lengthen(lasts + sweepEvery);
        time.after(lasts, isBack);
      },
      /** Shares of requests that go wrong, for `ms`; `who`: managers, agents, or both. */
      'azure.faults': (how) => wire.change(how),
      /** How agents begin, for `ms`: shares of those that never come online, end at once, are slow. */
      'azure.agents'({ ms, never, ends, slow }) {
        habits = { never: number(never, 0), ends: number(ends, 0), slow: number(slow, 0) };
        if (habits.never + habits.ends >= 1) despair(number(ms, 600_000));
        time.after(number(ms, 600_000), () => (habits = good));
      },
      /** For `ms` the service gives busy agents a second job. */
      'azure.second'({ ms }) {
        world.faults.givesSecondJob = true;
        time.after(number(ms, 60_000), () => (world.faults.givesSecondJob = false));
      },
      /** Somebody deletes the entry of one of our agents; the service refuses that of one with a job. */
      'azure.delete'({ pick }) {
        const one = picked(agents(), pick);
        if (one !== undefined) remove(one);
      },
      /** Somebody deletes a placeholder. */
      'azure.unplace'({ pick }) {
        const one = picked(placeholders(), pick);
        if (one === undefined) return;
        isUnplaced = true;
        remove(one);
      },
      /** Somebody disables one of our agents for `ms`. */
      'azure.disable'({ pick, ms }) {
        const one = picked(agents(), pick);
        if (one === undefined) return;
        tell(`azure: somebody disables ${one.name}`);
        ask('PATCH', `agents/${one.id}`, { id: one.id, enabled: false });
        time.after(number(ms, 60_000), () => ask('PATCH', `agents/${one.id}`, { id: one.id, enabled: true }));
      },
      /** How long the service holds a poll, instead of 50 s: a long day has less to simulate. */
      'azure.pace'({ ms }) {
        world.pollHoldMs = number(ms, 50_000);
      },
      /** Agents are to be of another version, for `ms`. */
      'azure.update'({ ms }) {
        azure.updateAgents(pool, '5.999.0');
        despair(number(ms, 60_000));
        time.after(number(ms, 60_000), () => {
          const one = world.pools.get(pool);
          if (one !== undefined) one.wanted = null;
        });
      },
      /** From now on the service gives jobs that never arrived to somebody else. */
      'azure.requeue': () => void Object.assign(world, { requeueUnreceived: true }),
      /** The token in use is of somebody who may not manage the pool; after `ms` there is another one. */
      'azure.rights'({ ms }) {
        if (denied !== null) return;
        counts.azureRights += 1;
        tell('azure: the token has no right to manage the pool any more');
        giveToken(false);
        time.after(number(ms, 600_000), () => giveToken());
      },
      /** The token is refused from now on; after `ms` there is another one. */
      'azure.token'({ ms }) {
        counts.azureTokens += 1;
        tell('azure: the token has expired');
        azure.expirePat(current);
        refusedSince ??= time.now;
        time.after(number(ms, 600_000), () => giveToken());
      },
    },
    broken() {
      if (isWrong()) wrongAt = time.now;
      if (wire.outage !== null) awayAt = time.now;
      if (wire.outage !== null || wire.weather.managers !== fine || refusedSince !== null || denied !== null) refusingAt = time.now;
      compare();
      return broken.length === 0 ? broken : broken.splice(0);
    },
    unsettled() {
      const [first] = open;
      if (first !== undefined) return `job ${first} is ${JSON.stringify(jobs.get(first))}, and ${open.size - 1} others are open`;
      if (early > 0) return `${early} jobs are to be queued`;
      if (wire.outage !== null) return 'the service is away';
      if (denied !== null) return 'the token may not do enough';
      return refusedSince === null ? null : 'the token is refused';
    },
    calm() {
      hopeless = null;
      traps = [];
      wire.clear();
      azure.faults.clear();
      habits = good;
    },
    census() {
      const found = agents().map(({ name }) => `S4: agent ${name} is left at the service`);
      if (placeholders().length === 0) found.push('S4: no placeholder is left at the service');
      for (const [id, was] of foreign) if (describe(id) !== was) found.push(`S4: ${was} was changed: ${describe(id)}`);
      for (const path of filesIn(host.dir))
        if (path !== join(host.dir, azureToken) && tokens.some((token) => readFileSync(path, 'latin1').includes(token)))
          found.push(`S8: a token is in ${path.slice(host.dir.length)}`);
      return found;
    },
    counts: () => ({ ...counts, azureFaults: wire.faults }),
  };

  function lengthen(ms: number): void {
    for (const request of world.open) if (request.lockedUntil !== null) request.lockedUntil += ms;
    for (const session of world.sessions.values()) session.lastSeen += ms;
  }
}

/** onejob's id of an agent, from its name at the service. */
function agentIn(name: string): string {
  return name.slice(name.lastIndexOf('-') + 1);
}

function isDoomed({ bad }: Work): boolean {
  return bad === 'crash' || bad === 'vanish';
}

function filesIn(dir: string): string[] {
  return readdirSync(dir)
    .map((name) => join(dir, name))
    .flatMap((path) => (statSync(path).isDirectory() ? filesIn(path) : [path]));
}

/** Bytes as a part of an RSA key: nobody signs with it here. */
function keyPart(size: number, seed: number): string {
  const bytes = Buffer.from(Array.from({ length: size }, (_, at) => (at * 37 + seed) & 255));
  bytes[0] = (bytes[0] ?? 0) | 0x80;
  bytes[size - 1] = (bytes[size - 1] ?? 0) | 1;
  return bytes.toString('base64');
}

let areKeysInstalled = false;

/** Makes `generateKeyPair` hand managers keys that are not keys, each another one: a real one takes a tenth of a second. */
function installKeys(): void {
  if (areKeysInstalled) return;
  areKeysInstalled = true;
  const real = crypto.generateKeyPair;
  let made = 0;
  const instead = (...args: Parameters<typeof real>): void => real(...args);
  Object.defineProperty(instead, promisify.custom, {
    async value(...args: Parameters<typeof real>) {
      const own = currentProcess();
      if (own === undefined) return await promisify(real)(...(args as never as [never, never]));
      await new Promise<void>((resolve) => own.after(100, resolve));
      made += 1;
      const url = (size: number, seed: number) => Buffer.from(keyPart(size, seed), 'base64').toString('base64url');
      const [n, d] = [url(256, made), url(256, made + 1)];
      const jwk = {
        kty: 'RSA',
        e: 'AQAB',
        n,
        d,
        p: url(128, 2),
        q: url(128, 3),
        dp: url(128, 4),
        dq: url(128, 5),
        qi: url(128, 6),
      };
      return { privateKey: { export: () => jwk }, publicKey: null };
    },
  });
  Object.assign(crypto, { generateKeyPair: instead });
  syncBuiltinESMExports();
}
