/** What every adapter's calls share: one request in bounded time and size, the cloud's clock, and programs that print a credential. */
import type { Clock } from '../../core/clock.ts';
import { type Answer, exchange, NoAnswer, type Outgoing } from '../../http/exchange.ts';
import type { Log } from '../../log.ts';
import type { Variables } from '../../secrets/reference.ts';
import { run } from '../../system/run.ts';
import { CloudError, type Offer } from '../cloud.ts';

/** What adapters are made from. */
export interface CloudParts {
  readonly clock: Clock;
  readonly fetch: typeof fetch;
  readonly log: Log;
  /** Where secrets and a cloud's own variables are looked up. */
  readonly variables: Variables;
  /** Of onejob, for the `User-Agent`. */
  readonly version: string;
  /** Runs a program of the user, by default for real. */
  readonly run?: typeof run;
}

interface Sending {
  /** In words, for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  /** The cloud and where, for messages: `EC2 in us-west-2`. */
  readonly place: string;
  /** Whether the call changes something, so that its fate is unknown when no answer comes. */
  readonly changes: boolean;
}

/** A call that a cloud may refuse. */
export interface Asked extends Sending {
  /** Permissions that it needs, in the cloud's words. */
  readonly needs: readonly string[];
  /** For one that makes a machine: which. */
  readonly offer?: Offer;
}

export type Caller = ReturnType<typeof createCaller>;

/** ms for one answer. */
const patience = 30_000;
/** Bytes of an answer. */
const most = 16 * 1024 * 1024;

/** Errors of a connection that was never there: the request was certainly not carried out. */
const neverSent: ReadonlySet<string> = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH']);

export function createCaller({ clock, fetch, version }: Pick<CloudParts, 'clock' | 'fetch' | 'version'>) {
  /** ms that the cloud's clock is ahead of `clock.now()`, which no step of the wall clock changes. */
  let base: number | null = null;
  const skew = (): number | null => (base === null ? null : Math.round(base + clock.now() - clock.wall()));
  return {
    /** ms that the cloud's clock is ahead of ours, by the `Date` of its latest answer, in whole seconds; null before the first one. */
    skew,
    /** ms since the epoch by the cloud's clock. */
    now: (): number => clock.wall() + (skew() ?? 0),
    /** Whatever status comes is an answer. @throws CloudError E_CLOUD_UNREACHABLE */
    async send(request: Outgoing, { doing, place, changes }: Sending, signal: AbortSignal): Promise<Answer> {
      const headers = { 'User-Agent': `onejob/${version}`, ...request.headers };
      try {
        const answer = await exchange({ ...request, headers }, { clock, fetch, timeout: patience, most }, signal);
        const date = Date.parse(answer.headers.get('Date') ?? '');
        const wall = clock.wall();
        if (!Number.isNaN(date)) base = (Math.abs(date - wall) < 1000 ? wall : date) - clock.now();
        return answer;
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        const { why, hint, code } = error.about;
        throw new CloudError('E_CLOUD_UNREACHABLE', `Cannot ${doing}: ${place} gave no answer: ${why}.`, {
          ...{ hint, retry: true, isAmbiguous: changes && !neverSent.has(code) },
        });
      }
    },
  };
}

/** ms for a program that prints a credential: it may ask a person's identity provider. */
const programTime = 60_000;

/**
 * What a program of the user prints, such as `aws configure export-credentials`. Its output is a secret and is in no message.
 * @throws CloudError E_CLOUD_CREDENTIAL
 */
export async function askProgram(command: readonly string[], parts: Pick<CloudParts, 'run'>, signal: AbortSignal): Promise<string> {
  const [program = '', ...args] = command;
  const ended = await (parts.run ?? run)(program, args, { timeout: programTime, most: 256 * 1024, signal });
  signal.throwIfAborted();
  if (ended.error === null) return ended.stdout.toString().trim();
  const why =
    ended.code === 'ENOENT' ? 'it is not installed' : ended.code === null ? 'it took too long' : `it ended with ${ended.code}`;
  // Below the line that names the error, some print advice.
  const all = ended.stderr.trim().split('\n');
  const lines = all.find((line) => /^\W*error\b/i.test(line)) ?? all.at(-1) ?? '';
  const said = lines === '' ? '' : ` It said: ${lines.slice(0, 300)}`;
  throw new CloudError('E_CLOUD_CREDENTIAL', `Cannot get a credential from "${program}": ${why}.${said}`, {
    hint: `Run "${[program, ...args].join(' ')}" as the user that onejob runs as.`,
    retry: true,
  });
}

/** With its full stop. */
export const sentence = (text: string): string => (/[.!?…]$/.test(text) ? text : `${text}.`);
