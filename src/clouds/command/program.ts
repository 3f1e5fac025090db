/**
 * Calls of the program that is a cloud: the verb is its only argument, a request goes to its input as JSON, and one JSON object comes
 * from its output, in bounded time and size. docs/cloud/command.md says what a program can rely on.
 *
 * Nothing secret is in its arguments or environment, or in a message of ours. An end that the page does not name says nothing about
 * what was done.
 */
import type { z } from 'zod';
import type { Variables } from '../../base/variables.ts';
import type { Clock } from '../../core/clock.ts';
import { brief } from '../../http/exchange.ts';
import { CloudError, type CloudErrorCode } from '../../ports/cloud.ts';
import { readSecret } from '../../schema/secret-reference.ts';
import { without } from '../../secrets/credential.ts';
import { runGroup } from '../../system/group.ts';
import { jsonOf } from '../../system/json.ts';
import { sentence } from '../kit/caller.ts';
import type { CommandConfig } from './config.ts';

export type Verb = 'check' | 'create' | 'end' | 'list' | 'destroy' | 'console';

/** Of the requests and answers. */
export const protocol = 1;

/** How a program ended. */
export interface ProgramEnd {
  /** null: it did not end by itself, or never ran. */
  readonly code: number | null;
  /** As the end of a sentence; null: it ended with 0. */
  readonly why: string | null;
  readonly isUnstarted: boolean;
  readonly stdout: string;
  /** The end of it. */
  readonly stderr: string;
}

interface Running {
  readonly timeout: number;
  readonly clock: Clock;
  /** Of this process. */
  readonly variables: Variables;
}

export type RunProgram = (
  command: readonly [program: string, verb: string],
  input: string,
  parts: Running,
  signal: AbortSignal,
) => Promise<ProgramEnd>;

/** What a program gets of this process' environment: what finds programs and files, and the way out of the network. */
const passed =
  /^(PATH|HOME|USER|LOGNAME|LANG|LC_\w+|TZ|TMPDIR|XDG_CONFIG_HOME|XDG_RUNTIME_DIR|SSL_CERT_(FILE|DIR)|(https?|no|all)_proxy)$/i;

/** Bytes of an answer, and of what else a program prints. */
const [mostAnswer, mostWords] = [4 * 2 ** 20, 64 * 1024];

export const runProgram: RunProgram = async (command, input, { variables, ...limits }, signal) => {
  const answer: Buffer[] = [];
  let [size, words] = [0, Buffer.alloc(0)];
  const take = (data: Buffer, from: 'stdout' | 'stderr'): boolean => {
    if (from === 'stderr') words = Buffer.concat([words, data]).subarray(-mostWords);
    else answer.push(data);
    if (from === 'stdout') size += data.length;
    return size <= mostAnswer;
  };
  const env = Object.fromEntries(
    Object.entries(variables).flatMap(([name, value]) => (passed.test(name) && value !== undefined ? [[name, value]] : [])),
  );
  const end = await runGroup({ ...limits, command, env, input, signal, take });
  return { ...end, stdout: Buffer.concat(answer).toString(), stderr: words.toString() };
};

/** What exit codes mean; the numbers are those of sysexits.h. With each of them the program says that it made no machine. */
export const exits: Readonly<Record<number, readonly [code: CloudErrorCode, words: string, retry: boolean]>> = {
  64: ['E_CLOUD_REQUEST', 'the request cannot be carried out', false],
  69: ['E_CLOUD_CAPACITY', 'no capacity', true],
  73: ['E_CLOUD_QUOTA', 'a quota is used up', false],
  75: ['E_CLOUD_UNREACHABLE', 'a temporary failure', true],
  77: ['E_CLOUD_DENIED', 'no permission', false],
};

export interface Call<S extends z.ZodType> {
  readonly verb: Verb;
  readonly request: Readonly<Record<string, unknown>>;
  /** In words, for messages: `Cannot <doing>: …`. */
  readonly doing: string;
  readonly answer: S;
  /** Whether it may make a machine. */
  readonly makes?: boolean;
}

export class Program {
  readonly #config: CommandConfig;
  readonly #parts: Omit<Running, 'timeout'>;
  readonly #run: RunProgram;

  constructor(config: CommandConfig, parts: Omit<Running, 'timeout'>, run: RunProgram) {
    this.#config = config;
    this.#parts = parts;
    this.#run = run;
  }

  /** @throws CloudError, and E_SECRET if a secret cannot be read */
  async call<S extends z.ZodType>(how: Call<S>, signal: AbortSignal): Promise<z.output<S>> {
    const { verb, request, doing, answer, makes = false } = how;
    const { program, options, timeout } = this.#config;
    const secrets = await this.#secrets();
    const input = JSON.stringify({ version: protocol, verb, ...request, options, secrets });
    const end = await this.#run([program, verb], input, { ...this.#parts, timeout }, signal);
    if (end.why !== null) throw this.#refusal(end, how, safeWords(end.stderr, input, Object.values(secrets)));
    const found = answer.safeParse(end.stdout.trim() === '' ? {} : jsonOf(end.stdout));
    if (found.success) return found.data;
    const [issue] = found.error.issues;
    const where = issue === undefined || issue.path.length === 0 ? '' : ` (${issue.path.join('.')}: ${issue.message})`;
    const message = `Cannot ${doing}: the answer of ${program} to "${verb}" is not as docs/cloud/command.md says${where}.`;
    const hint = `Run "onejob cloud check-provider ${program}".`;
    throw new CloudError('E_CLOUD_ANSWER', message, { retry: true, isAmbiguous: makes, hint });
  }

  #refusal({ code, why, isUnstarted }: ProgramEnd, { doing, makes = false }: Omit<Call<z.ZodType>, 'answer'>, said: string) {
    const { program } = this.#config;
    if (isUnstarted) {
      const hint = 'Check "program" of the cloud: the user that onejob runs as must be able to run it.';
      return new CloudError('E_CLOUD_REQUEST', `Cannot ${doing}: ${why}.`, { hint });
    }
    const words = said === '' ? '' : ` It said: ${said}`;
    const [kind, meaning, retry] = exits[code ?? 0] ?? [code === null ? 'E_CLOUD_UNREACHABLE' : 'E_CLOUD_ANSWER', null, true];
    const what = meaning === null ? `failed: ${why}.` : `ended with ${code} (${meaning}).`;
    const isAmbiguous = makes && meaning === null;
    return new CloudError(kind, sentence(`Cannot ${doing}: ${program} ${what}${words}`), {
      reason: code === null ? null : String(code),
      retry,
      isAmbiguous,
    });
  }

  /** With their names. */
  async #secrets(): Promise<Record<string, string>> {
    const found = Object.entries(this.#config.secrets).map(
      async ([name, reference]) => [name, await readSecret(reference, this.#parts.variables)] as const,
    );
    return Object.fromEntries(await Promise.all(found));
  }
}

/** The last line of what it printed, without anything secret: a program in trouble may print what it was given. */
function safeWords(stderr: string, input: string, secrets: readonly string[]): string {
  const known = secrets.flatMap((secret) => [secret, JSON.stringify(secret).slice(1, -1)]);
  const line = without(known, stderr).trim().split('\n').at(-1) ?? '';
  // The join token in the text for cloud-init is such a word. It may be a part of another one: `TOKEN=…`.
  const isGiven = (word: string) =>
    Array.from(word).some((_, at) => at + 20 <= word.length && input.includes(word.slice(at, at + 20)));
  return brief(line.replace(/[\w+/=-]{20,}/g, (word) => (isGiven(word) ? '***' : word)));
}
