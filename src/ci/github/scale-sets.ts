/**
 * Runner scale sets: GitHub offers a set's jobs in messages, and tells with each how many wait. Facts from GitHub's own client
 * (`actions/scaleset` 0.4.0), ARC and garm; GitHub publishes no reference.
 */
import { z } from 'zod';
import { deadline, doubling, sleep } from '../../core/clock.ts';
import { attempt, OnejobError, toFailure } from '../../errors.ts';
import { jsonOf } from '../../system/json.ts';
import type { CiEvent } from '../ci-service.ts';
import { createRest, type Rest, type RestCall, type RestParts } from '../kit/rest.ts';
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
/** ms before its end at which a token is renewed. */
const early = 60_000;

const id = z.int();
const text = z.string().nullish();
const connection = z.object({ url: z.url(), token: z.string().regex(/^[\x21-\x7e]+$/) });
const scaleSet = z.object({ id, name: z.string() });
const sets = z.object({ value: z.array(scaleSet).nullish() });
const statistics = z.object({ totalAvailableJobs: id, totalAcquiredJobs: id, totalAssignedJobs: id, totalRunningJobs: id });
const session = z.object({
  sessionId: z.string(),
  messageQueueUrl: z.url(),
  messageQueueAccessToken: z.string().regex(/^[\x21-\x7e]+$/),
  statistics: statistics.nullish(),
});
type Session = z.output<typeof session>;
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

export type ScaleSets = ReturnType<typeof createScaleSets>;

export function createScaleSets(parts: ScaleSetParts) {
  const { clock, client, url, log } = parts;
  const connections = new Map<string, Promise<Rest>>();
  const known = new Map<string, number>();
  const waiting = new Map<string, number>();
  const hints = {
    credential: 'Put a valid token where "token" of the service points, or check "app".',
    denied:
      'GitHub allows scale sets only to those who may administer the account, and not on every plan. Otherwise write "mode: jit".',
    answer: 'Check "url" of the service, and what answers there.',
  };
  const accept = 'application/json; api-version=6.0-preview';
  const common = { clock, fetch: parts.fetch, version: parts.version, accept, hints };

  /** The service that has the place's sets; its token lives about 20 minutes, and its address may move. */
  async function connect(place: string): Promise<Rest> {
    const first = new AbortController().signal;
    let admin = await register(place, first);
    return createRest({
      ...common,
      base: admin.url.replace(/\/+$/, ''),
      async authorization(signal) {
        if (clock.wall() > endOf(admin.token) - early) admin = await register(place, signal);
        return `Bearer ${admin.token}`;
      },
      async again(_, refusals, signal) {
        if (refusals > 1) return false;
        admin = await register(place, signal);
        return true;
      },
    });
  }

  async function register(place: string, signal: AbortSignal): Promise<z.output<typeof connection>> {
    const registration = await client.registrationToken(place, signal);
    const rest = createRest({ ...common, base: parts.base, authorization: async () => `RemoteAuth ${registration}` });
    const named = place.replace(/^(orgs|repos)\//, '');
    const body = { url: `${url}/${named}`, runner_event: 'register' };
    const call = { method: 'POST', path: '/actions/runner-registration', body, doing: `reach the scale sets of ${place}` } as const;
    return rest.send(connection, call, signal);
  }

  function restOf(place: string): Promise<Rest> {
    const found = connections.get(place) ?? connect(place);
    connections.set(place, found);
    // What failed is tried again with the next call.
    found.catch(() => connections.delete(place));
    return found;
  }

  const at = (path: string): Pick<RestCall, 'path' | 'query'> => ({
    path: `/_apis/runtime/runnerscalesets${path}`,
    query: preview,
  });

  /** The pool's set, made if there is none. It stays when onejob ends, so that jobs keep waiting for it. */
  async function find({ place, set, group }: SetPool, signal: AbortSignal): Promise<number> {
    const key = `${place} ${group} ${set}`;
    const before = known.get(key);
    if (before !== undefined) return before;
    const rest = await restOf(place);
    const query = { ...preview, runnerGroupId: String(group), name: set };
    const found = await rest.read(sets, { ...at(''), query, doing: `find scale set ${set} of ${place}` }, signal);
    const there = found.value?.find(({ name }) => name.toLowerCase() === set.toLowerCase());
    const body = {
      name: set,
      runnerGroupId: group,
      labels: [{ type: 'System', name: set }],
      RunnerSetting: { disableUpdate: true },
    };
    const call = { method: 'POST', ...at(''), body, doing: `make scale set ${set} of ${place}` } as const;
    const made = there ?? (await rest.send(scaleSet, call, signal));
    known.set(key, made.id);
    return made.id;
  }

  /** Takes part in a set until the signal aborts: acquires its jobs for the agents that wait. */
  async function attend(pool: SetPool, heard: (job: SetJob) => void, connected: () => void, signal: AbortSignal): Promise<void> {
    const { place, set } = pool;
    const number = await find(pool, signal);
    const rest = await restOf(place);
    const sessions = at(`/${number}/sessions`);
    const body = { ownerName: parts.owner };
    const opening = { method: 'POST', ...sessions, body, doing: `open a session of scale set ${set}` } as const;
    const answered = await rest.ask(opening, signal);
    if (answered.status === 409) {
      const hint = 'Only one program can serve a scale set: give this pool another tag, or end the other one.';
      const why = `${url} says that another program serves it (${answered.why})`;
      throw new OnejobError('E_CI_NAME_TAKEN', `Cannot take jobs of scale set ${set}: ${why}.`, { hint, retry: true });
    }
    if (answered.status === 404) known.clear();
    const parsed = session.safeParse(answered.body);
    if (!answered.ok || !parsed.success) throw rest.unexpected(opening, answered);
    let held: Session = parsed.data;
    const ofSession = at(`/${number}/sessions/${held.sessionId}`);
    const { origin, pathname, searchParams } = new URL(held.messageQueueUrl);
    const renew = async (inner: AbortSignal): Promise<boolean> => {
      held = await rest.send(session, { method: 'PATCH', ...ofSession, doing: `renew the session of scale set ${set}` }, inner);
      return true;
    };
    const queue = createRest({
      ...common,
      ...{ base: origin, timeout: pollTime },
      authorization: async () => `Bearer ${held.messageQueueAccessToken}`,
      again: async (_, refusals, inner) => refusals <= 1 && renew(inner),
    });
    const query = Object.fromEntries(searchParams);
    saw(pool, held.statistics);
    connected();
    try {
      for (let last = 0; !signal.aborted; ) {
        const headers = { 'X-ScaleSetMaxCapacity': String(pool.capacity()) };
        const doing = `wait for jobs of scale set ${set}`;
        const asked = { method: 'GET', path: pathname, query: { ...query, lastMessageId: String(last) }, headers, doing } as const;
        const told = await queue.ask(asked, signal);
        if (told.status === 202) continue;
        const found = message.safeParse(told.body);
        if (!told.ok || !found.success) throw queue.unexpected(asked, told);
        await take(found.data);
        last = found.data.messageId;
      }
    } finally {
      const call = { method: 'DELETE', ...ofSession, doing: `close the session of scale set ${set}` } as const;
      // Otherwise nobody could serve the set until the session expires.
      using limit = deadline(clock, 3_000, new AbortController().signal);
      await rest.ask(call, limit.signal).catch(() => {});
    }

    /** Acquires before it deletes: a crash in between offers the jobs again. */
    async function take(one: z.output<typeof message>): Promise<void> {
      saw(pool, one.statistics);
      const jobs = z.array(z.unknown()).safeParse(jsonOf(one.body)).data ?? [];
      const read = jobs.flatMap((job) => setJob.safeParse(job).data ?? []);
      const offered = read
        .filter(({ messageType }) => messageType === 'JobAvailable')
        .map(({ runnerRequestId }) => runnerRequestId);
      if (offered.length > 0) {
        const path = `/${number}/acquirejobs`;
        const call = { method: 'POST', ...at(path), body: offered, doing: `take jobs of scale set ${set}` } as const;
        const signedBy = { Authorization: `Bearer ${held.messageQueueAccessToken}` };
        const won = await rest.ask({ ...call, signedBy }, signal);
        // Somebody cancelled them, or another set has them.
        if (!won.ok && won.status !== 404 && won.status !== 409) throw rest.unexpected(call, won);
      }
      for (const job of read) heard(job);
      const gone = {
        method: 'DELETE',
        path: `${pathname}/${one.messageId}`,
        query,
        doing: `acknowledge a message of scale set ${set}`,
      } as const;
      await queue.ask(gone, signal);
    }
  }

  function saw(pool: SetPool, found: z.output<typeof statistics> | null | undefined): void {
    if (found == null) return;
    waiting.set(pool.name, found.totalAvailableJobs + Math.max(0, found.totalAssignedJobs - found.totalRunningJobs));
  }

  return {
    /** Jobs that wait for the pool's set; null: GitHub has not said yet. */
    waiting: (pool: string): number | null => waiting.get(pool) ?? null,
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
          await attend(await find(signal), heard, connected, signal);
        } catch (error) {
          if (signal.aborted) return;
          failures += 1;
          const { message: reason, retry } = toFailure(error);
          // A session that ended by itself is opened again before anybody notices.
          if (failures > 1 || !retry) hold(reason);
          else log.warn('a session of a scale set ended', { pool, reason });
          await sleep(clock, doubling(1_000, again, failures), signal);
        }
      }
    },
    /** As the REST API's. @throws OnejobError E_CI_NAME_TAKEN, E_CI_* */
    async generateJitConfig(pool: SetPool, name: string, signal: AbortSignal): Promise<{ id: number; config: string }> {
      const number = await find(pool, signal);
      const rest = await restOf(pool.place);
      const body = { name, workFolder: '_work' };
      const call = { method: 'POST', ...at(`/${number}/generatejitconfig`), body, doing: `register runner ${name}` } as const;
      const answered = await rest.ask(call, signal);
      if (answered.status === 409) throw nameTaken(name, answered.why);
      if (answered.status === 404) known.clear();
      const found = newRunner.safeParse(answered.body);
      if (!answered.ok || !found.success) throw rest.unexpected(call, answered);
      return { id: found.data.runner.id, config: found.data.encodedJITConfig };
    },
    async deleteRunner(place: string, runner: string, signal: AbortSignal): Promise<'removed' | 'absent' | 'busy'> {
      const rest = await restOf(place);
      const path = `/_apis/distributedtask/pools/0/agents/${runner}`;
      const call = { method: 'DELETE', path, query: preview, doing: `remove runner ${runner} from ${place}` } as const;
      const answered = await rest.ask(call, signal);
      if (answered.ok) return 'removed';
      const kind = z.object({ typeName: z.string() }).safeParse(answered.body).data?.typeName ?? '';
      if (/JobStillRunning/.test(kind)) return 'busy';
      if (/AgentNotFound/.test(kind)) return 'absent';
      throw rest.unexpected(call, answered);
    },
  };
}

/** When a token ends, by its own words (RFC 7519); ms since the epoch. */
function endOf(token: string): number {
  const claims = attempt(() => JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()) as unknown);
  const found = z.object({ exp: z.number() }).safeParse(claims).data;
  return found === undefined ? Number.POSITIVE_INFINITY : found.exp * 1000;
}
