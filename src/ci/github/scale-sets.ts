/**
 * Runner scale sets: GitHub offers a set's jobs in messages, and tells with each how many wait. Facts from GitHub's own client
 * (`actions/scaleset` 0.4.0), ARC and garm; GitHub publishes no reference.
 */
import { z } from 'zod';
import { abortable } from '../../base/abortable.ts';
import { OnejobError, toFailure } from '../../base/errors.ts';
import { deadline, doubling, sleep } from '../../core/clock.ts';
import { shown } from '../../http/exchange.ts';
import { serviceId } from '../../http/service-id.ts';
import type { CiEvent } from '../../ports/ci-service.ts';
import { jsonOf } from '../../system/json.ts';
import { Rest, type RestCall, type RestParts } from '../kit/rest.ts';
import { type GithubClient, nameTaken } from './client.ts';

export interface ScaleSetParts extends Pick<RestParts, 'clock' | 'fetch' | 'version'> {
  /** Of the REST API. */
  readonly base: string;
  /** Of the service, as people write it. */
  readonly url: string;
  readonly client: Pick<GithubClient, 'registrationToken'>;
  /** Who this host is, for others that want the same set. */
  readonly owner: string;
  readonly log: { warn(text: string, fields?: Record<string, unknown>): void };
}

/** A pool as a scale set. */
export interface SetPool {
  readonly name: string;
  readonly place: string;
  /** What jobs write in `runs-on`. */
  readonly set: string;
  readonly group: number;
  /** How many jobs its agents can have at a time. */
  capacity(): number;
}

/** What GitHub says of a job of the set. */
export type SetJob = Readonly<z.output<typeof setJob>>;

/** ms: GitHub holds a poll for about 50 s; a set that another session holds is tried again after 30 s, as ARC does. */
const [pollTime, again] = [75_000, 30_000];
/** ms. The service's own token lives about 20 minutes. */
const adminLife = 900_000;
/** ms between two questions for a count while they fail. */
const longestCount = 60_000;
/** Questions for a count that may fail before it is unknown. */
const mostMissed = 10;

const id = z.int();
const text = z.string().nullish();
const admin = z.object({ url: z.url(), token: z.string().regex(/^[\x21-\x7e]+$/) });
const scaleSet = z.object({ id, name: z.string() });
const sets = z.object({ value: z.array(scaleSet).nullish() });
const statistics = z.object({ totalAvailableJobs: id, totalAcquiredJobs: id, totalAssignedJobs: id, totalRunningJobs: id });
const session = z.object({
  sessionId: serviceId,
  messageQueueUrl: z.url(),
  messageQueueAccessToken: z.string().regex(/^[\x21-\x7e]+$/),
  statistics: statistics.nullish(),
});
type Session = z.output<typeof session>;
const counted = z.object({ statistics: statistics.nullish() });
const message = z.object({ messageId: id, messageType: z.string(), body: z.string(), statistics: statistics.nullish() });
const setJob = z.object({
  messageType: z.string(),
  runnerRequestId: id,
  ownerName: text,
  repositoryName: text,
  jobDisplayName: text,
  jobWorkflowRef: text,
  workflowRunId: id.nullish(),
  eventName: text,
  runnerId: id.nullish(),
  result: text,
});
const newRunner = z.object({ runner: z.object({ id }), encodedJITConfig: z.string().regex(/^[\w+/=-]+$/) });

const preview = { 'api-version': '6.0-preview' };
const at = (path: string): Pick<RestCall, 'path' | 'query'> => ({ path: `/_apis/runtime/runnerscalesets${path}`, query: preview });

interface Connection {
  readonly rest: Rest;
  readonly address: string;
}

const hints = {
  credential: 'Put a valid token where "token" of the service points, or check "app".',
  denied:
    'GitHub allows scale sets only to those who may administer the account, and not on every plan. Otherwise write "mode: jit".',
  answer: 'Check "url" of the service, and what answers there.',
};

export class ScaleSets {
  readonly #parts: ScaleSetParts;
  readonly #connections = new Map<string, Promise<Connection>>();
  readonly #known = new Map<string, Promise<number>>();
  readonly #waiting = new Map<string, number>();
  readonly #common: Omit<RestParts, 'base' | 'authorization'>;

  constructor(parts: ScaleSetParts) {
    this.#parts = parts;
    const { clock, fetch, version } = parts;
    this.#common = { clock, fetch, version, accept: 'application/json; api-version=6.0-preview', hints };
  }

  /** Jobs that wait for the pool's set; null: GitHub has not said yet. */
  waiting(pool: string): number | null {
    return this.#waiting.get(pool) ?? null;
  }

  /** Serves a pool's set until the signal aborts, and holds the pool while it cannot. `heard`: of each job. Never fails. */
  async serve(
    pool: string,
    find: (signal: AbortSignal) => Promise<SetPool>,
    heard: (job: SetJob) => void,
    emit: (event: CiEvent) => void,
    signal: AbortSignal,
  ): Promise<void> {
    const hold = (reason: string | null) => emit({ kind: 'hold', pool, reason });
    let failures = 0;
    const connected = (): void => {
      failures = 0;
      hold(null);
    };
    while (!signal.aborted) {
      try {
        await this.#attend(await find(signal), heard, emit, connected, signal);
      } catch (error) {
        if (signal.aborted) return;
        failures += 1;
        this.#waiting.delete(pool);
        const { message: reason, retry } = toFailure(error);
        // A session that ended by itself is opened again before anybody notices.
        if (failures > 1 || !retry) hold(reason);
        else this.#parts.log.warn('a session of a scale set ended', { pool, reason });
        await sleep(this.#parts.clock, doubling(1_000, again, failures), signal);
      }
    }
  }

  /**
   * Only counts the jobs of a pool's set, until the signal aborts: a set has one session, which another onejob needs that runs its
   * jobs. Never fails. `every`: ms between two questions.
   */
  async count(
    pool: string,
    find: (signal: AbortSignal) => Promise<SetPool>,
    every: number,
    emit: (event: CiEvent) => void,
    signal: AbortSignal,
  ): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      try {
        const of = await find(signal);
        const { statistics } = await this.#look(of, signal);
        failures = 0;
        this.#saw(of, statistics);
        emit({ kind: 'hold', pool, reason: null });
        emit({ kind: 'waiting', pool });
      } catch (error) {
        if (signal.aborted) return;
        failures += 1;
        // The last number stands until many questions have failed.
        if (failures >= mostMissed && this.#waiting.delete(pool)) emit({ kind: 'waiting', pool });
        emit({ kind: 'hold', pool, reason: toFailure(error).message });
      }
      await sleep(this.#parts.clock, Math.max(every, doubling(every, longestCount, failures)), signal);
    }
  }

  /** As the REST API's. @throws OnejobError E_CI_NAME_TAKEN, E_CI_* */
  async generateJitConfig(pool: SetPool, name: string, signal: AbortSignal): Promise<{ id: number; config: string }> {
    const number = await this.#find(pool, signal);
    const { rest } = await this.#connectionOf(pool.place);
    const body = { name, workFolder: '_work' };
    const call = { method: 'POST', ...at(`/${number}/generatejitconfig`), body, doing: `register runner ${name}` } as const;
    const answered = await rest.ask(call, signal);
    if (answered.status === 409) throw nameTaken(name, answered.why);
    if (answered.status === 404) this.#known.clear();
    const { runner, encodedJITConfig: config } = rest.expected(newRunner, call, answered);
    return { id: runner.id, config };
  }

  async deleteRunner(place: string, runner: string, signal: AbortSignal): Promise<'removed' | 'absent' | 'busy'> {
    const { rest } = await this.#connectionOf(place);
    const path = `/_apis/distributedtask/pools/0/agents/${runner}`;
    const call = { method: 'DELETE', path, query: preview, doing: `remove runner ${runner} from ${place}` } as const;
    const answered = await rest.ask(call, signal);
    if (answered.ok) return 'removed';
    const kind = z.object({ typeName: z.string() }).safeParse(answered.body).data?.typeName ?? '';
    if (/JobStillRunning/.test(kind)) return 'busy';
    if (/AgentNotFound/.test(kind)) return 'absent';
    throw rest.unexpected(call, answered);
  }

  /** The service that has the place's sets, by the address and the token that GitHub gives out for it. */
  async #connect(place: string): Promise<Connection> {
    const base = this.#parts.base;
    const registering = new Rest({
      ...this.#common,
      base,
      authorization: async (signal) => `RemoteAuth ${await this.#parts.client.registrationToken(place, signal)}`,
      // GitHub may not know a new token yet.
      again: async (_, refusals, __, signal) => {
        await sleep(this.#parts.clock, 1_000, signal);
        return refusals < 5;
      },
    });
    const body = { url: `${this.#parts.url}/${place.replace(/^(orgs|repos)\//, '')}`, runner_event: 'register' };
    const call = { method: 'POST', path: '/actions/runner-registration', body, doing: `reach the scale sets of ${place}` } as const;
    const register = (signal: AbortSignal) => registering.send(admin, call, signal);
    let held = await register(new AbortController().signal);
    let renewAt = this.#parts.clock.now() + adminLife;
    const renew = async (signal: AbortSignal): Promise<void> => {
      const before = held.url;
      held = await register(signal);
      renewAt = this.#parts.clock.now() + adminLife;
      if (held.url === before) return;
      this.#connections.delete(place);
      const message = `Cannot reach the scale sets of ${place} at ${shown(before)}: they have moved.`;
      throw new OnejobError('E_CI_UNREACHABLE', message, { hint: 'onejob tries again at their new address.', retry: true });
    };
    const rest = new Rest({
      ...this.#common,
      base: held.url.replace(/\/+$/, ''),
      authorization: async (signal) => {
        if (this.#parts.clock.now() >= renewAt) await renew(signal);
        return `Bearer ${held.token}`;
      },
      async again(_, refusals, __, signal) {
        if (refusals === 1) await renew(signal);
        return refusals === 1;
      },
    });
    return { rest, address: held.url };
  }

  #connectionOf(place: string): Promise<Connection> {
    const found = this.#connections.get(place) ?? this.#connect(place);
    this.#connections.set(place, found);
    // What failed is tried again with the next call.
    found.catch(() => this.#connections.delete(place));
    return found;
  }

  /** The pool's set, made if it is missing. It stays when onejob ends, so that jobs keep waiting for it. */
  #find(pool: SetPool, signal: AbortSignal): Promise<number> {
    const key = `${pool.place} ${pool.group} ${pool.set}`;
    const found = this.#known.get(key) ?? this.#findOrMake(pool);
    this.#known.set(key, found);
    found.catch(() => this.#known.delete(key));
    return abortable(found, signal);
  }

  /** Not bound to one caller's signal, because others wait for it too. */
  async #findOrMake({ place, set, group }: SetPool): Promise<number> {
    const { signal } = new AbortController();
    const { rest } = await this.#connectionOf(place);
    const query = { ...preview, runnerGroupId: String(group), name: set };
    const all = await rest.read(sets, { ...at(''), query, doing: `find scale set ${set} of ${place}` }, signal);
    const there = all.value?.find(({ name }) => name.toLowerCase() === set.toLowerCase());
    const labels = [{ type: 'System', name: set }];
    const body = { name: set, runnerGroupId: group, labels, RunnerSetting: { disableUpdate: true } };
    const call = { method: 'POST', ...at(''), body, doing: `make scale set ${set} of ${place}` } as const;
    return (there ?? (await rest.send(scaleSet, call, signal))).id;
  }

  /** Takes part in a set until the signal aborts: acquires its jobs for the agents that wait. */
  async #attend(
    pool: SetPool,
    heard: (job: SetJob) => void,
    emit: (event: CiEvent) => void,
    connected: () => void,
    signal: AbortSignal,
  ): Promise<void> {
    const { place, set } = pool;
    const number = await this.#find(pool, signal);
    const { rest, address } = await this.#connectionOf(place);
    const sessions = at(`/${number}/sessions`);
    const body = { ownerName: this.#parts.owner };
    const opening = { method: 'POST', ...sessions, body, doing: `open a session of scale set ${set}` } as const;
    const answered = await rest.ask(opening, signal);
    if (answered.status === 409) throw this.#heldElsewhere(set, answered.why);
    if (answered.status === 404) this.#known.clear();
    let held: Session = rest.expected(session, opening, answered);
    const ofSession = at(`/${number}/sessions/${held.sessionId}`);
    const { origin, pathname, searchParams } = new URL(held.messageQueueUrl);
    /** Signs in with the token of the queue, which ends sooner than the session. */
    const asSession = {
      ...this.#common,
      authorization: async () => `Bearer ${held.messageQueueAccessToken}`,
      again: async (_: string, refusals: number, __: Headers, inner: AbortSignal): Promise<boolean> => {
        if (refusals > 1) return false;
        held = await rest.send(session, { method: 'PATCH', ...ofSession, doing: `renew the session of scale set ${set}` }, inner);
        return true;
      },
    };
    const queue = new Rest({ ...asSession, base: origin, timeout: pollTime });
    const acting = new Rest({ ...asSession, base: address.replace(/\/+$/, '') });
    const query = Object.fromEntries(searchParams);
    /** Acquires before it deletes: a crash in between offers the jobs again. */
    const take = async (one: z.output<typeof message>): Promise<void> => {
      this.#saw(pool, one.statistics);
      const jobs = z.array(z.unknown()).safeParse(jsonOf(one.body)).data ?? [];
      const read = jobs.flatMap((job) => setJob.safeParse(job).data ?? []);
      const offered = read
        .filter(({ messageType }) => messageType === 'JobAvailable')
        .map(({ runnerRequestId }) => runnerRequestId);
      if (offered.length > 0) {
        const call = {
          method: 'POST',
          ...at(`/${number}/acquirejobs`),
          body: offered,
          doing: `take jobs of scale set ${set}`,
        } as const;
        const won = await acting.ask(call, signal);
        // Somebody cancelled them, or another set has them: the message must not come again.
        if (!won.ok) this.#parts.log.warn('jobs of a scale set not taken', { set, reason: won.why });
      }
      for (const job of read) heard(job);
      const gone = {
        method: 'DELETE',
        path: `${pathname}/${one.messageId}`,
        query,
        doing: `acknowledge a message of scale set ${set}`,
      } as const;
      await queue.ask(gone, signal);
    };
    this.#saw(pool, held.statistics);
    connected();
    emit({ kind: 'waiting', pool: pool.name });
    try {
      for (let last = 0; !signal.aborted; ) {
        const headers = { 'X-ScaleSetMaxCapacity': String(pool.capacity()) };
        const doing = `wait for jobs of scale set ${set}`;
        const asked = { method: 'GET', path: pathname, query: { ...query, lastMessageId: String(last) }, headers, doing } as const;
        const told = await queue.ask(asked, signal);
        if (told.status === 202) continue;
        const found = queue.expected(message, asked, told);
        await take(found);
        emit({ kind: 'waiting', pool: pool.name });
        last = found.messageId;
      }
    } finally {
      const call = { method: 'DELETE', ...ofSession, doing: `close the session of scale set ${set}` } as const;
      // Otherwise nobody could serve the set until the session expires.
      using limit = deadline(this.#parts.clock, 3_000, new AbortController().signal);
      await rest.ask(call, limit.signal).catch(() => {});
    }
  }

  #heldElsewhere(set: string, why: string): OnejobError {
    const isOurs = why.includes(this.#parts.owner);
    const who = isOurs ? 'the session of an earlier onejob of this host has not ended yet' : 'another program serves it';
    const hint = isOurs
      ? 'onejob tries again every 30 s, until GitHub has given that session up.'
      : 'Only one program can serve a scale set: give this pool another tag, or end the other one.';
    const message = `Cannot take jobs of scale set ${set}: ${who} (${why}).`;
    return new OnejobError('E_CI_NAME_TAKEN', message, { hint, retry: true });
  }

  /** The set as it is now; it is made if it is missing. @throws OnejobError E_CI_* */
  async #look(pool: SetPool, signal: AbortSignal) {
    const number = await this.#find(pool, signal);
    const { rest } = await this.#connectionOf(pool.place);
    const call = { method: 'GET', ...at(`/${number}`), doing: `look at scale set ${pool.set}` } as const;
    const answered = await rest.ask(call, signal);
    if (answered.status === 404) this.#known.clear();
    return rest.expected(counted, call, answered);
  }

  #saw(pool: SetPool, found: z.output<typeof statistics> | null | undefined): void {
    if (found == null) return;
    this.#waiting.set(pool.name, found.totalAvailableJobs + Math.max(0, found.totalAssignedJobs - found.totalRunningJobs));
  }
}
