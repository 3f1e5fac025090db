/**
 * Microsoft's agent as it runs in a sandbox, acted out over the wire in virtual time: `run --once`. It opens a session, waits for a
 * message, takes one job, renews its lock, ends it with the result that the job was given, and exits; or it misbehaves. When it
 * gives up what, and with which exit code, is the real agent's (`test/standins/azure-devops/agent/`).
 */
import { createDecipheriv } from 'node:crypto';
import type { AzureInProcess } from '../standins/azure-devops/in-process.ts';
import type { Agent as Entry } from '../standins/azure-devops/state.ts';
import { type AzureWire, Refusal } from './azure-wire.ts';
import type { Stage } from './runtime.ts';
import type { SimTime } from './time.ts';
import { pass } from './wire.ts';

/** What a job does; stands in its script. */
export interface Work {
  readonly ms: number;
  readonly result: 'succeeded' | 'failed';
  /**
   * `crash`: its agent dies with it (137). `vanish`: its agent ends and tells nobody (0). `hang`: continues until it is cancelled.
   * `linger`: its agent stays for ten minutes after the job's end. `deaf`: its agent does not hear TERM.
   */
  readonly bad?: 'crash' | 'vanish' | 'hang' | 'linger' | 'deaf';
}

/** How agents begin, as shares from 0 to 1. */
export interface Habits {
  /** It never opens a session. */
  readonly never: number;
  /** It ends at once: with 1, 3 or 4. */
  readonly ends: number;
  /** It takes up to four minutes before it is online. */
  readonly slow: number;
}

export interface AgentParts {
  readonly time: SimTime;
  readonly random: () => number;
  readonly wire: AzureWire;
  readonly service: AzureInProcess;
  readonly habits: () => Habits;
  /** Something that no agent may find: said as a promise. */
  readonly broken: (what: string) => void;
  /** What explains that a request ends in another way than it was given. */
  readonly excuse: (request: number, why: string) => void;
  readonly tell: (what: string) => void;
  readonly hears: (what: 'job' | 'done', request: number, stage: Stage) => void;
}

interface Message {
  readonly messageId: number;
  readonly messageType: string;
  readonly iv: string;
  readonly body: string;
}

interface JobMessage {
  readonly requestId: number;
  readonly jobId: string;
  readonly plan: { readonly scopeIdentifier: string; readonly planId: string };
  readonly steps: readonly { readonly inputs: { readonly script: string } }[];
  readonly resources: {
    readonly endpoints: readonly { readonly authorization: { readonly parameters: { readonly AccessToken: string } } }[];
  };
}

const lockToken = '00000000-0000-0000-0000-000000000000';
const fatal = new Set([
  'TaskAgentNotFoundException',
  'TaskAgentPoolNotFoundException',
  'AccessDeniedException',
  'UnauthorizedRequestException',
]);
const gone = new Set(['TaskAgentJobNotFoundException', 'TaskAgentJobTokenExpiredException', 'TaskAgentNotFoundException']);

/** The file of that name that the script writes. */
function fileIn(script: string, name: string): Record<string, unknown> | null {
  const from = script.indexOf(`rm -f ${name}; printf '%s' '`);
  if (from === -1) return null;
  const start = script.indexOf("'%s' '", from) + 6;
  const end = script.indexOf(`' >${name} || exit 1`, start);
  return JSON.parse(script.slice(start, end).replaceAll("'\\''", "'")) as Record<string, unknown>;
}

/** Whether a script makes a sandbox an agent. */
export function isAgent(script: string): boolean {
  return script.includes('exec ./bin/Agent.Listener run --once');
}

/** From the files to the exit code; ends with its stage. */
export class SimAgent {
  readonly #parts: AgentParts;
  readonly #stage: Stage;
  readonly #stopping = new AbortController();
  #isDeaf = false;
  #id = 0;

  constructor(parts: AgentParts, stage: Stage) {
    this.#parts = parts;
    this.#stage = stage;
    stage.onTerm = () => {
      if (!this.#isDeaf) this.#stopping.abort(new Error('TERM'));
    };
  }

  /** Never throws. */
  async run(script: string): Promise<void> {
    const { ended } = this.#stage;
    let code: number;
    try {
      code = await this.#run(script);
    } catch (error) {
      if (ended.aborted) return;
      code = error instanceof Exit ? error.code : 2;
      this.#parts.tell(
        `azure: agent ${this.#stage.spec.agent} gives up: ${error instanceof Error ? error.message : String(error)}`,
      );
      if (!(error instanceof Exit)) this.#stage.print(`An error occurred: ${String(error)}\n`);
    }
    if (code !== 0) this.#excuse(`its agent ended by itself with ${code}`);
    if (code !== 0) this.#parts.tell(`azure: agent ${this.#stage.spec.agent} ends with ${code}`);
    this.#stage.end(code);
  }

  async #run(script: string): Promise<number> {
    const { random, habits, broken } = this.#parts;
    const { ended } = this.#stage;
    const settings = fileIn(script, '.agent');
    const credentials = fileIn(script, '.credentials') as { data?: { clientId?: string } } | null;
    const key = fileIn(script, '.credentials_rsaparams');
    if (settings === null || credentials === null || key === null) {
      broken('the script of an agent lacks one of its files');
      return 1;
    }
    this.#id = Number(settings.agentId);
    const never = random();
    const { never: share, ends, slow } = habits();
    await this.#wait(500 + random() * 3_000);
    if (never < ends) return [1, 3, 4][Math.floor(random() * 3)] as number;
    if (never < ends + share) {
      await new Promise<void>((resolve) => {
        this.#stopping.signal.addEventListener('abort', () => resolve(), { once: true });
        ended.addEventListener('abort', () => resolve(), { once: true });
      });
      return 0;
    }
    if (never < ends + share + slow) await this.#wait(random() * 240_000);
    if (this.#stopping.signal.aborted) return 0;
    const entry = this.#entryOf(settings, credentials.data?.clientId ?? '', String(key.modulus));
    const session = await this.#open(Number(settings.poolId), Number(settings.agentId), entry);
    if (session === null) return 0;
    try {
      return await session.listen();
    } finally {
      await session.close();
    }
  }

  /** A job that the service has given to an agent on its way out is lost, and nobody else is to blame. */
  #excuse(why: string): void {
    const { service, excuse } = this.#parts;
    for (const { id, agent } of service.world.open) if (agent?.id === this.#id) excuse(id, why);
  }

  /** Its entry at the service, which is the only one with its key; null if there isn't one any more. */
  #entryOf(settings: Record<string, unknown>, clientId: string, modulus: string): Entry | null {
    const { service, broken } = this.#parts;
    const entry = service.world.pools.get(Number(settings.poolId))?.agents.get(Number(settings.agentId)) ?? null;
    if (entry === null) return null;
    if (entry.clientId !== clientId || entry.publicKey.modulus !== modulus || entry.name !== settings.agentName)
      broken(`S3: the files of agent ${String(settings.agentName)} are not those of its entry ${entry.name}`);
    return entry;
  }

  /** Waits; ends early on TERM. Throws when the sandbox ends. */
  async #wait(ms: number): Promise<void> {
    const { time } = this.#parts;
    const either = AbortSignal.any([this.#stage.ended, this.#stopping.signal]);
    await pass(time, ms, either).catch(() => this.#stage.ended.throwIfAborted());
  }

  /** null: it was told to end before. @throws Exit when the real one gives up */
  async #open(pool: number, id: number, entry: Entry | null): Promise<Session | null> {
    const { wire, service } = this.#parts;
    const { ended } = this.#stage;
    // Signing in takes a signature and its check, and says no more than that the entry is there.
    const token = `agent.${id}`;
    if (entry !== null) service.world.tokens.set(token, { of: entry, until: Number.POSITIVE_INFINITY });
    ended.addEventListener('abort', () => service.world.tokens.delete(token), { once: true });
    const call = (method: string, path: string, body?: unknown, signal: AbortSignal = ended) =>
      wire.ask(method, `/acme/_apis/distributedtask/pools/${pool}/${path}`, { token, body, signal });
    let conflicts = 0;
    while (!this.#stopping.signal.aborted) {
      try {
        const systemCapabilities = { ...entry?.system, 'Agent.Discovered': 'yes' };
        const agent = { id, name: entry?.name, version: '5.278.0', osDescription: 'Linux' };
        const { json } = await call('POST', 'sessions', { ownerName: 'box', agent, systemCapabilities });
        const { sessionId } = json as { sessionId?: string };
        if (sessionId === undefined) throw new Error('a session without an id');
        return new Session(this.#parts, this.#stage, this.#stopping.signal, {
          pool,
          id,
          entry,
          sessionId,
          call,
          again: () => this.#open(pool, id, entry),
          deaf: () => {
            this.#isDeaf = true;
          },
        });
      } catch (error) {
        ended.throwIfAborted();
        if (error instanceof Refusal) {
          if (fatal.has(error.typeKey)) throw new Exit(1);
          if (error.typeKey === 'TaskAgentAccessTokenExpiredException') throw new Exit(entry === null ? 1 : 0);
          // Without an entry it can never sign in.
          if (error.status === 401) throw new Exit(1);
          if (error.typeKey === 'TaskAgentSessionConflictException') conflicts += 1;
          if (conflicts > 8) throw new Exit(1);
        }
        await this.#wait(30_000);
      }
    }
    return null;
  }
}

class Exit extends Error {
  readonly code: number;
  constructor(code: number) {
    super(`exit ${code}`);
    this.code = code;
  }
}

interface SessionParts {
  readonly pool: number;
  readonly id: number;
  readonly entry: Entry | null;
  readonly sessionId: string;
  readonly call: (method: string, path: string, body?: unknown, signal?: AbortSignal) => Promise<{ status: number; json: unknown }>;
  readonly again: () => Promise<Session | null>;
  readonly deaf: () => void;
}

interface Running {
  readonly jobId: string;
  readonly cancel: () => void;
  readonly finished: Promise<number | null>;
}

class Session {
  readonly #parts: AgentParts;
  readonly #stage: Stage;
  readonly #stopping: AbortSignal;
  #session: SessionParts;
  #last = 0;

  constructor(parts: AgentParts, stage: Stage, stopping: AbortSignal, session: SessionParts) {
    this.#parts = parts;
    this.#stage = stage;
    this.#stopping = stopping;
    this.#session = session;
  }

  /** Until its one job is over, or it is told to end. */
  async listen(): Promise<number> {
    const { ended } = this.#stage;
    const polling = new AbortController();
    const over = AbortSignal.any([polling.signal, this.#stopping, ended]);
    const stopped = new Promise<'stopped'>((resolve) => {
      const stop = (): void => resolve('stopped');
      this.#stopping.addEventListener('abort', stop, { once: true });
      ended.addEventListener('abort', stop, { once: true });
      if (this.#stopping.aborted || ended.aborted) stop();
    });
    let asking: Promise<Message> | null = null;
    let job: Running | null = null;
    try {
      for (;;) {
        asking ??= this.#next(over);
        asking.catch(() => {});
        const event: Message | 'stopped' | number | null = await Promise.race([
          asking,
          stopped,
          ...(job === null ? [] : [job.finished]),
        ]);
        if (event === 'stopped') {
          if (job !== null) {
            job.cancel();
            // It does not wait longer for the job's end.
            const late = pass(this.#parts.time, 30_000, ended).then(
              () => null,
              () => null,
            );
            await Promise.race([job.finished, late]);
          }
          return 0;
        }
        if (event === null || typeof event === 'number') return event ?? 0;
        asking = null;
        const message = event;
        const body = this.#open(message);
        if (message.messageType === 'AgentRefresh') {
          await this.#acknowledge(message);
          if (job === null) return 4;
          continue;
        }
        if (message.messageType === 'PipelineAgentJobRequest') {
          // A second one is left alone, also unacknowledged.
          if (job !== null) continue;
          job = this.#begin(body as unknown as JobMessage);
        } else if (message.messageType === 'JobCancellation' && job?.jobId === body.jobId) job?.cancel();
        await this.#acknowledge(message);
      }
    } finally {
      polling.abort(new Error('done'));
    }
  }

  async close(): Promise<void> {
    const { call, sessionId } = this.#session;
    await call('DELETE', `sessions/${sessionId}`).catch(() => this.#stage.ended.throwIfAborted());
  }

  #open({ body, iv }: Message): Record<string, unknown> {
    const { service } = this.#parts;
    const key = service.world.sessions.get(this.#session.sessionId)?.key;
    if (key === undefined) return {};
    const decipher = createDecipheriv('aes-256-cbc', key, Buffer.from(iv, 'base64'));
    const plain = Buffer.concat([decipher.update(Buffer.from(body, 'base64')), decipher.final()]);
    return JSON.parse(plain.toString('utf8')) as Record<string, unknown>;
  }

  async #acknowledge({ messageId }: Message): Promise<void> {
    const { call, sessionId } = this.#session;
    await call('DELETE', `messages/${messageId}?sessionId=${sessionId}`).catch(() => this.#stage.ended.throwIfAborted());
  }

  /** The next message. @throws Exit where the real one gives up, and what `over` is aborted with */
  async #next(over: AbortSignal): Promise<Message> {
    const { time, random } = this.#parts;
    for (let failures = 0; ; ) {
      try {
        const { call, sessionId } = this.#session;
        const after = this.#last === 0 ? '' : `&lastMessageId=${this.#last}`;
        const { status, json } = await call('GET', `messages?sessionId=${sessionId}${after}`, undefined, over);
        failures = 0;
        if (status === 200 && json !== null && typeof (json as Message).messageId === 'number') {
          this.#last = (json as Message).messageId;
          return json as Message;
        }
        await pass(time, 5_000 + random() * 10_000, over);
      } catch (error) {
        over.throwIfAborted();
        if (error instanceof Refusal) {
          if (error.typeKey === 'TaskAgentAccessTokenExpiredException') throw new Exit(0);
          if (error.typeKey === 'TaskAgentSessionExpiredException') {
            const again = await this.#session.again();
            if (again === null) throw new Exit(0);
            this.#session = again.#session;
            this.#last = 0;
            continue;
          }
          if (fatal.has(error.typeKey)) throw new Exit(2);
        }
        failures += 1;
        await pass(time, (failures <= 5 ? 15_000 : 30_000) * (1 + random()), over);
      }
    }
  }

  #begin(message: JobMessage): Running {
    const cancelling = new AbortController();
    const finished = this.#work(message, cancelling).catch((error: unknown) => {
      if (!this.#stage.ended.aborted) this.#parts.excuse(message.requestId, `its agent failed: ${String(error)}`);
      return null;
    });
    return { jobId: message.jobId, cancel: () => cancelling.abort(new Error('cancelled')), finished };
  }

  /** An exit code when the agent must end with it. */
  async #work({ requestId, jobId, plan, steps, resources }: JobMessage, cancelling: AbortController): Promise<number | null> {
    const { time, random, excuse, hears, wire } = this.#parts;
    const { ended } = this.#stage;
    const renew = () => this.#session.call('PATCH', `jobrequests/${requestId}?lockToken=${lockToken}`, { requestId });
    for (let tries = 1; ; tries += 1) {
      try {
        await renew();
        break;
      } catch (error) {
        ended.throwIfAborted();
        if (tries === 5 || (error instanceof Refusal && gone.has(error.typeKey))) {
          excuse(requestId, 'its agent could not take it');
          return null;
        }
        await pass(time, 10_000, ended);
      }
    }
    hears('job', requestId, this.#stage);
    const { ms, result, bad } = JSON.parse(steps[0]?.inputs.script ?? '{}') as Work;
    this.#stage.print(`Running job: ${requestId}\n`);
    if (bad === 'deaf') this.#session.deaf();
    const over = new AbortController();
    const renewing = this.#keep(renew, requestId, cancelling, AbortSignal.any([over.signal, ended]));
    const work = AbortSignal.any([cancelling.signal, ended]);
    if (bad === 'crash' || bad === 'vanish') {
      await pass(time, ms * random(), work).catch(() => ended.throwIfAborted());
      hears('done', requestId, this.#stage);
      this.#stage.end(bad === 'crash' ? 137 : 0);
      ended.throwIfAborted();
    }
    await pass(time, bad === 'hang' ? 86_400_000 : ms, work).catch(() => ended.throwIfAborted());
    const token = resources.endpoints[0]?.authorization.parameters.AccessToken ?? '';
    const body = {
      name: 'JobCompleted',
      requestId,
      jobId,
      result: cancelling.signal.aborted ? 'canceled' : result,
      agentShuttingDown: true,
    };
    for (let tries = 1; ; tries += 1) {
      try {
        const path = `/acme/${plan.scopeIdentifier}/_apis/distributedtask/hubs/Build/plans/${plan.planId}/events`;
        await wire.ask('POST', path, { token, body, signal: ended });
        break;
      } catch (error) {
        ended.throwIfAborted();
        if (tries === 5) {
          excuse(requestId, `its agent could not tell its result: ${String(error)}`);
          break;
        }
        await pass(time, 10_000, ended);
      }
    }
    over.abort(new Error('done'));
    await renewing;
    hears('done', requestId, this.#stage);
    if (bad === 'linger') await pass(time, 600_000, AbortSignal.any([this.#stopping, ended])).catch(() => ended.throwIfAborted());
    return null;
  }

  async #keep(renew: () => Promise<unknown>, request: number, cancelling: AbortController, over: AbortSignal): Promise<void> {
    while (!over.aborted) {
      await pass(this.#parts.time, 60_000, over).catch(() => {});
      if (over.aborted) return;
      await renew().catch((error: unknown) => {
        if (!(error instanceof Refusal) || !gone.has(error.typeKey)) return;
        this.#parts.excuse(request, 'its lock was lost');
        cancelling.abort(new Error('the job is gone'));
      });
    }
  }
}
