/**
 * All secrets of one trusted job, opened. Who is refused by a pin is refused before anything is decrypted: what an old value
 * does when it is tampered with would tell a stranger about it. A pin is noted before the value goes out.
 */
import { OnejobError } from '../errors.ts';
import type { SecretKeys } from './keys.ts';
import { fingerprintOf, formatOf, openSecret, secretsIn } from './open.ts';
import { decidePin } from './pins.ts';
import type { PipelinePattern } from './pipelines.ts';

/** Where pins are remembered. */
export interface PinBook {
  /** What a value is pinned to; empty when it was never used. */
  of(fingerprint: string): readonly PipelinePattern[] | Promise<readonly PipelinePattern[]>;
  /** Pins a value that is pinned to nothing; what it is pinned to now, which is another's where that one was faster. Durable when it returns. */
  first(
    fingerprint: string,
    pipeline: PipelinePattern,
    name: string,
  ): readonly PipelinePattern[] | Promise<readonly PipelinePattern[]>;
}

export interface JobSecrets {
  readonly opened: readonly { readonly name: string; readonly value: string }[];
  /** `why`: a whole sentence for the job's log, without any of a value. */
  readonly refused: readonly { readonly name: string; readonly why: string }[];
}

/** How many variables of one job are opened: each old one costs some 50 ms of a core. */
export const mostSecrets = 100;
/**
 * How many of a job's values may be RSA alone. Whether one opens is told, and what it opens to is the job's: whoever asks for
 * thousands that they made up learns what another's means.
 */
const mostPlain = 10;
/** How many are opened at once: fewer than Node has threads, which files wait for as well. */
const atOnce = 3;

/** @param env of the job as the CI service gave it, which nothing that ran inside a sandbox has touched */
export async function openJobSecrets(job: {
  readonly env: Readonly<Record<string, string>>;
  readonly organisation: string | null;
  readonly pipeline: string | null;
  readonly keys: SecretKeys;
  readonly pins: PinBook;
}): Promise<JobSecrets> {
  const secrets = secretsIn(job.env);
  const found = secrets.map((): Found => tooMany);
  const isCrowded = secrets.filter(({ text }) => formatOf(text) === 'plain-rsa').length > mostPlain;
  const rest = secrets.slice(0, mostSecrets).entries();
  const lane = async (): Promise<void> => {
    for (const [index, { name, text }] of rest) {
      found[index] = isCrowded && formatOf(text) === 'plain-rsa' ? tooManyPlain : await openOne({ ...job, name, text });
    }
  };
  await Promise.all(Array.from({ length: atOnce }, lane));
  const opened: { name: string; value: string }[] = [];
  const refused: { name: string; why: string }[] = [];
  for (const [index, { name, variable }] of secrets.entries()) {
    const one = found[index] ?? tooMany;
    if (one.ok) opened.push({ name, value: one.value });
    else refused.push({ name, why: `${variable} ${one.why}.` });
  }
  return { opened, refused };
}

const tooManyPlain = {
  ok: false,
  why: `was not opened: a job may have ${mostPlain} values of the oldest format, which has no ";"; encrypt them anew with "onejob secret rotate"`,
} as const;

type Found = { readonly ok: true; readonly value: string } | { readonly ok: false; readonly why: string };

const tooMany = { ok: false, why: `was not opened: a job may have ${mostSecrets} encrypted variables` } as const;

async function openOne(request: {
  readonly name: string;
  readonly text: string;
  readonly organisation: string | null;
  readonly pipeline: string | null;
  readonly keys: SecretKeys;
  readonly pins: PinBook;
}): Promise<Found> {
  const { name, text, organisation, pipeline, pins } = request;
  const format = formatOf(text);
  if (format === null || format === 'sealed') return openSecret(request);
  const fingerprint = fingerprintOf(text);
  const decide = (known: readonly PipelinePattern[]) => decidePin({ format, fingerprint, pins: known, organisation, pipeline });
  const verdict = decide(await pins.of(fingerprint));
  if (typeof verdict !== 'string') return { ok: false, why: verdict.refused };
  const opened = await openSecret(request);
  if (!opened.ok || verdict === 'open') return opened;
  const now = decide(await pins.first(fingerprint, `${organisation}/${pipeline}`, name));
  if (now === 'open') return opened;
  if (now === 'pin') throw new OnejobError('E_BUG', `The pin of SECRET_${name} was not kept.`);
  return { ok: false, why: now.refused };
}
