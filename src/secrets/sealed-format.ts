/**
 * Encrypted values of onejob's own: `oj1:<key id>:<base64url of an age file>`. The cryptography is age's (X25519, HKDF-SHA256,
 * ChaCha20-Poly1305; https://age-encryption.org/v1): every changed bit is noticed. Name and pipelines of a value lie inside with
 * it, so that nobody can use it for another one without the private key. Who has the public key can write any value for any
 * pipeline, but read none.
 */
import { z } from 'zod';
import { checkValue, fromBase64Url, toText } from './encoding.ts';
import type { SecretKey } from './keys.ts';
import { covers, listPipelines, type PipelinePattern, parsePipeline } from './pipelines.ts';
import { doesNotOpen } from './seed-format.ts';

/** Name of a variable, as shells take it. */
export const variableName = /^[A-Za-z_][A-Za-z0-9_]*$/;
/** Longest name, in characters. */
export const longestName = 200;
/** How many pipelines one value may name. */
const mostPipelines = 100;

const content = z.strictObject({
  v: z.literal(1),
  /** Variable that the job gets it in. */
  name: z.string().max(longestName).regex(variableName),
  pipelines: z
    .array(z.string().refine((each) => parsePipeline(each) !== null))
    .min(1)
    .max(mostPipelines),
  value: z.string(),
});

/** What a sealed value says of itself, and the value. */
export type Sealed = Readonly<Omit<z.infer<typeof content>, 'v' | 'pipelines'>> & {
  readonly pipelines: readonly PipelinePattern[];
};

/** A private key that may open it. */
type Opener = Pick<Extract<SecretKey, { kind: 'x25519' }>, 'id' | 'identity'>;

type Unsealed = { readonly ok: true; readonly sealed: Sealed } | { readonly ok: false; readonly why: string };

/** Whether it means to be one, in whatever state it is. */
export function looksSealed(text: string): boolean {
  return /^oj\d+:/.test(text);
}

/** `key`: id of the key it was made for, 8 hex digits. null when it is damaged, or of a later version. */
export function parseEnvelope(text: string): { readonly key: string; readonly body: Buffer } | null {
  const [, key, encoded] = /^oj1:([0-9a-f]{8}):([A-Za-z0-9_-]+)$/.exec(text) ?? [];
  const body = encoded === undefined ? null : fromBase64Url(encoded);
  return key === undefined || body === null ? null : { key, body };
}

/**
 * @param to public key, `age1…`, and its id
 * @throws OnejobError E_SECRET_VALUE for a value that no variable can hold
 */
export async function seal(to: { readonly id: string; readonly recipient: string }, sealed: Sealed): Promise<string> {
  checkValue(sealed.value);
  const { Encrypter } = await import('age-encryption');
  const encrypter = new Encrypter();
  encrypter.addRecipient(to.recipient);
  const { name, pipelines, value } = sealed;
  const bytes = await encrypter.encrypt(JSON.stringify(content.parse({ v: 1, name, pipelines, value })));
  return `oj1:${to.id}:${Buffer.from(bytes).toString('base64url')}`;
}

/** Opens it for its owner, whatever it is for; jobs get it through `fits` only. */
export async function unseal(openers: readonly Opener[], text: string): Promise<Unsealed> {
  const envelope = parseEnvelope(text);
  if (envelope === null) {
    const isLater = /^oj\d+:/.test(text) && !text.startsWith('oj1:');
    const why = isLater
      ? 'was made by a later version of onejob'
      : 'is damaged or cut off: it is not what "secret encrypt" printed';
    return { ok: false, why };
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
  const read = inside === null ? null : content.safeParse(fromJson(inside));
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

function fromJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
