/** Decrypts all secrets of one trusted job. Pins are checked first: how a manipulated old value decrypts must not show. */

import { OnejobError } from '../base/errors.ts';
import type { Clock } from '../core/clock.ts';
import { covers, listPipelines, type PipelinePattern, parsePipeline } from '../schema/pipelines.ts';
import type { Store } from '../store/store.ts';
import { formatOf, openSecret, type SecretFormat, type SecretOfJob, secretFingerprint, secretsIn } from './open.ts';
import type { Decrypted } from './seed-format.ts';

export interface JobSecrets {
  readonly opened: readonly { readonly name: string; readonly value: string }[];
  /** `why`: a whole sentence for the job's log, without any of a value. */
  readonly refused: readonly { readonly name: string; readonly why: string }[];
}

/** How many variables of one job are decrypted: each old one takes about 50 ms of a core. */
export const mostSecrets = 100;
/** Most values of a job that are RSA alone: whether made-up ones decrypt, and to what, would reveal another's value. */
const mostPlain = 10;
/** How many are decrypted at once: fewer than Node has threads, which file access needs too. */
const atOnce = 3;

interface Job extends Omit<SecretOfJob, 'name' | 'text'> {
  /** As the CI service gave it; nothing inside a sandbox can have changed it. */
  readonly env: Readonly<Record<string, string>>;
  readonly pins: PinStore;
}

export async function openJobSecrets(job: Job): Promise<JobSecrets> {
  const secrets = secretsIn(job.env);
  const found = secrets.map((): Decrypted => tooMany);
  const isCrowded = secrets.filter(({ text }) => formatOf(text) === 'plain-rsa').length > mostPlain;
  const rest = secrets.slice(0, mostSecrets).entries();
  const lane = async (): Promise<void> => {
    for (const [index, { name, text }] of rest)
      found[index] = isCrowded && formatOf(text) === 'plain-rsa' ? tooManyPlain : await openOne({ ...job, name, text });
  };
  await Promise.all(Array.from({ length: atOnce }, lane));
  const all = secrets.map((secret, index) => ({ ...secret, found: found[index] ?? tooMany }));
  return {
    opened: all.flatMap(({ name, found }) => (found.ok ? [{ name, value: found.value }] : [])),
    refused: all.flatMap(({ name, variable, found }) => (found.ok ? [] : [{ name, why: `${variable} ${found.why}.` }])),
  };
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
  const fingerprint = secretFingerprint(text);
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

/** `pin`: it was never used; store the pin before the value goes out. */
type PinVerdict = 'open' | 'pin' | { readonly refused: string };

/**
 * Old values name no pipeline: anyone who sees one in another pipeline's definition could use it in their own. So the first
 * pipeline that uses one keeps it, and others are refused until its owner allows them. Pure; `src/store/secret-pins.ts` stores
 * pins.
 * @param pins pipelines of the pins of `fingerprint`; empty when it was never used
 * @param organisation, pipeline slugs as the CI service gives them; null when it gave none
 * `refused`: the end of a sentence that begins with the variable.
 */
export function decidePin({ format, fingerprint, pins, organisation, pipeline }: PinRequest): PinVerdict {
  if (format === 'sealed') return 'open';
  const alone = 'is in the old format, which is for one pipeline only';
  if (organisation === null || pipeline === null)
    return { refused: `${alone}, and the job does not say which pipeline it belongs to` };
  const here = `${organisation}/${pipeline}`;
  // It would be a pattern, or become part of a command that a person is told to type.
  if (here.includes('*') || parsePipeline(here) === null)
    return { refused: `${alone}, and the pipeline name that the job gives is invalid` };
  if (pins.length === 0) return 'pin';
  if (covers(pins, organisation, pipeline)) return 'open';
  const allow = `if ${here} may use it too, type "onejob secret allow --pipeline ${here} ${fingerprint}" on the host`;
  const owner = `${listPipelines(pins)}, which used it first or was allowed to use it`;
  return { refused: `is in the old format and belongs to ${owner}; ${allow}` };
}

/** The pins of encrypted values. */
export interface PinStore {
  /** The pipelines of a value's pins; empty when it was never used. */
  of(fingerprint: string): PipelinePattern[];
  /** Pins a value that has no pin; its pins afterwards, another job's if that was faster. Durable when it returns. */
  first(fingerprint: string, pipeline: PipelinePattern, name: string): PipelinePattern[];
}

export function createPinStore(store: Pick<Store, 'secretPins' | 'transaction'>, clock: Pick<Clock, 'wall'>): PinStore {
  const { secretPins } = store;
  const of = (fingerprint: string): PipelinePattern[] => secretPins.of(fingerprint).map((pin) => pin.pipeline);
  return {
    of,
    first(fingerprint, pipeline, name) {
      // `decidePin` has refused it: a pattern here would allow every pipeline.
      if (pipeline.includes('*') || parsePipeline(pipeline) === null)
        throw new OnejobError('E_BUG', 'A value cannot be pinned to no pipeline.');
      store.transaction({ durable: true }, () => secretPins.first({ fingerprint, pipeline, name, at: clock.wall() }));
      return of(fingerprint);
    },
  };
}
