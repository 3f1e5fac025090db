/**
 * All secrets of one trusted job, opened. Who is refused by a pin is refused before anything is decrypted: what an old value
 * does when it is tampered with would tell a stranger about it. A pin is noted before the value goes out.
 */
import { OnejobError } from '../errors.ts';
import { fingerprintOf, formatOf, openSecret, type SecretFormat, type SecretOfJob, secretsIn } from './open.ts';
import { covers, listPipelines, type PipelinePattern, parsePipeline } from './pipelines.ts';
import type { Decrypted } from './seed-format.ts';

/** Where pins are remembered. */
export interface PinStore {
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

interface Job extends Omit<SecretOfJob, 'name' | 'text'> {
  /** As the CI service gave it, which nothing that ran inside a sandbox has touched. */
  readonly env: Readonly<Record<string, string>>;
  readonly pins: PinStore;
}

export async function openJobSecrets(job: Job): Promise<JobSecrets> {
  const secrets = secretsIn(job.env);
  const found = secrets.map((): Decrypted => tooMany);
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
  why: `was not decrypted: a job may have at most ${mostPlain} values in the oldest format, which has no ";"; encrypt them again with "onejob secret rotate"`,
} as const;

const tooMany = { ok: false, why: `was not decrypted: a job may have at most ${mostSecrets} encrypted variables` } as const;

async function openOne(request: SecretOfJob & { readonly pins: PinStore }): Promise<Decrypted> {
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
  if (now === 'pin') throw new OnejobError('E_BUG', `Failed to store the pin of SECRET_${name}.`);
  return { ok: false, why: now.refused };
}

interface PinRequest extends Pick<SecretOfJob, 'organisation' | 'pipeline'> {
  readonly format: SecretFormat;
  readonly fingerprint: string;
  readonly pins: readonly PipelinePattern[];
}

/** `pin`: nobody has used it yet; note the pipeline before the value goes out. */
type PinVerdict = 'open' | 'pin' | { readonly refused: string };

/**
 * Old values are bound to nothing: who sees one in another pipeline's definition could use it in their own. So the first pipeline
 * that uses one keeps it, and others are refused until its owner allows them. Pure; `src/store/secret-pins.ts` remembers.
 * @param pins what `fingerprint` is pinned to; empty when it was never used
 * @param organisation, pipeline slugs as the CI service gives them; null when it gave none
 * `refused`: the end of a sentence that begins with the variable.
 */
export function decidePin({ format, fingerprint, pins, organisation, pipeline }: PinRequest): PinVerdict {
  if (format === 'sealed') return 'open';
  if (organisation === null || pipeline === null)
    return {
      refused: 'is in the old format, which is for one pipeline only, and the job does not say which pipeline it belongs to',
    };
  const here = `${organisation}/${pipeline}`;
  // It would be a pattern, or stand in a command that somebody is told to type.
  if (here.includes('*') || parsePipeline(here) === null)
    return { refused: 'is in the old format, which is for one pipeline only, and the pipeline name that the job gives is invalid' };
  if (pins.length === 0) return 'pin';
  if (covers(pins, organisation, pipeline)) return 'open';
  return {
    refused:
      `is in the old format and belongs to ${listPipelines(pins)}, which used it first or was allowed to use it; ` +
      `if ${here} may use it too, type "onejob secret allow --pipeline ${here} ${fingerprint}" on the host`,
  };
}
