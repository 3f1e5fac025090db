/**
 * onejob's own encrypted values: `oj1:<key id>:<base64url of an age file>`. The cryptography is age's (X25519, HKDF-SHA256,
 * ChaCha20-Poly1305; https://age-encryption.org/v1), which detects every changed bit. Name and pipelines are encrypted with the
 * value, so that without the private key nobody can use it for others. The public key is enough to write any value for any
 * pipeline, but to read none.
 */
import { z } from 'zod';
import { covers, listPipelines, type PipelinePattern, parsePipeline } from '../schema/pipelines.ts';
import { jsonOf } from '../system/json.ts';
import { checkValue, decodeStrict, type Outcome, toText } from './encoding.ts';
import type { SecretKey } from './keys.ts';
import { doesNotOpen } from './seed-format.ts';

export const variableName = /^[A-Za-z_][A-Za-z0-9_]*$/;
export const longestName = 200;
const mostPipelines = 100;

const pattern = z.string().refine((each) => parsePipeline(each) !== null);
const content = z.strictObject({
  v: z.literal(1),
  name: z.string().max(longestName).regex(variableName),
  pipelines: z.array(pattern).min(1).max(mostPipelines),
  value: z.string(),
});

export type Sealed = Readonly<Omit<z.infer<typeof content>, 'v' | 'pipelines'>> & {
  readonly pipelines: readonly PipelinePattern[];
};

type Opener = Pick<Extract<SecretKey, { kind: 'x25519' }>, 'id' | 'identity'>;
/** Whether it begins like one, damaged or not. */
export function looksSealed(text: string): boolean {
  return /^oj\d+:/.test(text);
}

/** `key`: id of its key, 8 hex digits. null for one that is damaged, or of a later version. */
export function parseEnvelope(text: string): { readonly key: string; readonly body: Buffer } | null {
  const [, key, encoded] = /^oj1:([0-9a-f]{8}):([A-Za-z0-9_-]+)$/.exec(text) ?? [];
  const body = encoded === undefined ? null : decodeStrict(encoded, 'base64url');
  return key === undefined || body === null ? null : { key, body };
}

/** @throws OnejobError E_SECRET_VALUE for a value that no variable can contain */
export async function seal(to: { readonly id: string; readonly recipient: string }, sealed: Sealed): Promise<string> {
  checkValue(sealed.value);
  const { Encrypter } = await import('age-encryption');
  const encrypter = new Encrypter();
  encrypter.addRecipient(to.recipient);
  const { name, pipelines, value } = sealed;
  const bytes = await encrypter.encrypt(JSON.stringify(content.parse({ v: 1, name, pipelines, value })));
  return `oj1:${to.id}:${Buffer.from(bytes).toString('base64url')}`;
}

/** Decrypts it for its owner, for any name and pipeline; for a job, `misfit` must allow it. */
export async function unseal(openers: readonly Opener[], text: string): Promise<Outcome<{ readonly sealed: Sealed }>> {
  const envelope = parseEnvelope(text);
  if (envelope === null) {
    const isLater = looksSealed(text) && !text.startsWith('oj1:');
    const damaged = 'is damaged or cut off: it is not what "secret encrypt" printed';
    return { ok: false, why: isLater ? 'was made by a later version of onejob' : damaged };
  }
  const mine = openers.filter((each) => each.id === envelope.key);
  if (mine.length === 0) {
    const ids = openers.map((each) => each.id).join(', ');
    const have = ids === '' ? 'this host has no key of this kind' : `this host has ${ids}`;
    return { ok: false, why: `was made for key ${envelope.key}, and ${have}` };
  }
  const { Decrypter } = await import('age-encryption');
  const decrypter = new Decrypter();
  for (const each of mine) decrypter.addIdentity(each.identity());
  let inside: string | null;
  try {
    inside = toText(await decrypter.decrypt(envelope.body));
  } catch {
    return { ok: false, why: doesNotOpen };
  }
  const read = inside === null ? null : content.safeParse(jsonOf(inside));
  if (read === null || !read.success || read.data.value.includes('\0')) return { ok: false, why: doesNotOpen };
  const { name, pipelines, value } = read.data;
  return { ok: true, sealed: { name, pipelines, value } };
}

/** Why a job may not have it, as the end of the sentence "it …"; null when it may. */
export function misfit(
  sealed: Sealed,
  job: { readonly name: string; readonly organisation: string | null; readonly pipeline: string | null },
): string | null {
  if (!covers(sealed.pipelines, job.organisation, job.pipeline)) {
    const here =
      job.organisation === null || job.pipeline === null ? 'a job of an unknown pipeline' : `${job.organisation}/${job.pipeline}`;
    return `was encrypted for ${listPipelines(sealed.pipelines)}, not for ${here}`;
  }
  return sealed.name === job.name ? null : `was encrypted as SECRET_${sealed.name}, and is used as SECRET_${job.name}`;
}
