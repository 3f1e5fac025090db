/** What every adapter's calls share: one request in bounded time and size, the cloud's clock, and programs that print a credential. */

import type { ErrorOptions } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import type { Variables } from '../../base/variables.ts';
import type { Clock } from '../../core/clock.ts';
import { createSend, type Send } from '../../http/api.ts';
import type { NoAnswer } from '../../http/exchange.ts';
import { CloudError, type Offer } from '../../ports/cloud.ts';
import { type Ended, run } from '../../system/run.ts';

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
export interface CloudRequest extends Sending {
  /** Permissions that it needs, in the cloud's words. */
  readonly needs: readonly string[];
  /** For one that makes a machine: which. */
  readonly offer?: Offer;
}

/** ms for one answer. */
const patience = 30_000;
/** Bytes of an answer. */
const most = 16 * 1024 * 1024;

/** Errors of a connection that was never there: the request was certainly not carried out. */
const neverSent: ReadonlySet<string> = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH']);

export interface Caller {
  /** ms that the cloud's clock is ahead of ours, by the `Date` of its latest answer, in whole seconds; null before the first one. */
  readonly skew: () => number | null;
  /** ms since the epoch by the cloud's clock. */
  readonly now: () => number;
  /** Whatever status comes is an answer. @throws CloudError E_CLOUD_UNREACHABLE */
  readonly send: Send<Sending>;
}

export function createCaller({ clock, fetch, version }: Pick<CloudParts, 'clock' | 'fetch' | 'version'>): Caller {
  const send: Caller['send'] = createSend({ clock, fetch, timeout: patience, most, version }, unreachable);
  /** ms that the cloud's clock is ahead of `clock.now()`, which no step of the wall clock changes. */
  let base: number | null = null;
  const skew = (): number | null => (base === null ? null : Math.round(base + clock.now() - clock.wall()));
  return {
    skew,
    now: () => clock.wall() + (skew() ?? 0),
    async send(request, sending, signal) {
      const answer = await send(request, sending, signal);
      const date = Date.parse(answer.headers.get('Date') ?? '');
      const wall = clock.wall();
      if (!Number.isNaN(date)) base = (Math.abs(date - wall) < 1000 ? wall : date) - clock.now();
      return answer;
    },
  };
}

function unreachable({ about: { why, hint, code } }: NoAnswer, { doing, place, changes }: Sending): CloudError {
  const message = `Cannot ${doing}: ${place} gave no answer: ${why}.`;
  return new CloudError('E_CLOUD_UNREACHABLE', message, { hint, retry: true, isAmbiguous: changes && !neverSent.has(code) });
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
    ended.code === 'ENOENT'
      ? 'it is not installed'
      : ended.code === 'EACCES'
        ? 'this user may not run it'
        : ended.code === null
          ? 'it took too long'
          : `it ended with ${ended.code}`;
  // Below the line that names the error, some print advice.
  const all = ended.stderr.trim().split('\n');
  const lines = all.find((line) => /^\W*error\b/i.test(line)) ?? all.at(-1) ?? '';
  const said = lines === '' ? '' : ` It said: ${lines.slice(0, 300)}`;
  throw new CloudError('E_CLOUD_CREDENTIAL', `Cannot get a credential from "${program}": ${why}.${said}`, remedyOf(ended, command));
}

/** Of a program that may not be run, or of a script that calls one which is not there or may not be run, as shells say it. */
const notStarted: readonly Ended['code'][] = ['EACCES', 126, 127];

/** What a program says that could not ask its provider. Some print "sign in" below that, too. */
const mayPass =
  /connection|\b(could not connect|resolv\w*|name resolution|retries|timed? ?out|transient|temporary failure|temporarily|unreachable|throttl\w*|HTTP 5\d\d)\b/i;

/** What programs say when nobody is signed in, or a person must sign in again, with what does that. */
const signedOut: readonly (readonly [said: RegExp, signIn: string])[] = [
  [/\baz login\b|\bAADSTS\d+/i, 'az login'],
  [/application default credentials|default credentials were not found/i, 'gcloud auth application-default login'],
  [/active account selected|\binvalid_(grant|rapt)\b|reauthentication/i, 'gcloud auth login'],
  [/\baws sso login\b|error loading sso token|sso (session|token)\b.*\b(expired|invalid)/i, 'aws sso login'],
  [/unable to locate credentials|config profile .* could not be found/i, 'aws configure'],
];

/** Whether another try may help, and what to type. What nobody knows is tried again, since a machine that lives costs money. */
function remedyOf(ended: Ended, command: readonly string[]): ErrorOptions {
  const [program = ''] = command;
  const whole = command.join(' ');
  const look = `Run "${whole}" as the user that onejob runs as.`;
  const other = 'or write other "credentials" for the cloud.';
  if (ended.code === 'ENOENT') return { hint: `Install "${program}", so that "${whole}" prints a credential, ${other}` };
  if (ended.code === null) return { hint: look, retry: true };
  if (notStarted.includes(ended.code)) return { hint: look };
  const words = ended.stderr.replace(/\s+/g, ' ');
  const found = mayPass.test(words) ? undefined : signedOut.find(([said]) => said.test(words));
  if (found === undefined) return { hint: look, retry: true };
  const [, signIn] = found;
  const isDefault = signIn === 'gcloud auth login' && command.includes('application-default');
  const profile = signIn.startsWith('aws ') ? command.indexOf('--profile') : -1;
  const named = profile === -1 ? '' : ` --profile ${command[profile + 1]}`;
  const typed = isDefault ? 'gcloud auth application-default login' : `${signIn}${named}`;
  return { hint: `Run "${typed}" as the user that onejob runs as, ${other}` };
}

/** With its full stop. */
export const sentence = (text: string): string => (/[.!?…]$/.test(text) ? text : `${text}.`);
