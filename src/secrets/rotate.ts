/**
 * Encrypted values for another key, alone or in a text that people wrote: a pipeline's YAML, JSON, or a list of variables. There each is
 * found by the variable before it; everything else stays as it is, byte for byte.
 */
import type { PublicKey, SecretKeys } from './keys.ts';
import { decryptSecret, formatOf } from './open.ts';
import type { PipelinePattern } from './pipelines.ts';
import { looksSealed, parseEnvelope, seal } from './sealed-format.ts';
import { encryptSeed } from './seed-format.ts';

interface FoundSecret {
  /** Of the variable, without `SECRET_`. */
  readonly name: string;
  /** The encrypted value; it may be damaged. */
  readonly text: string;
  /** Where it begins in the whole text. */
  readonly at: number;
  /** From 1. */
  readonly line: number;
}

/** `SECRET_NAME: "…"`, `SECRET_NAME=…`, `"SECRET_NAME": "…"`, also with an anchor, or with the value on the next line (`>-`). */
const assigned =
  /(?<![A-Za-z0-9_])SECRET_([A-Za-z_][A-Za-z0-9_]*)["']?[ \t]*[:=][ \t]*(?:&[^\s]+[ \t]+)?(?:[>|][-+0-9]*[ \t]*\r?\n[ \t]*)?["']?([A-Za-z0-9+/=_:;-]+)/g;

/** Shorter than any damaged one that could be told from a word. */
const shortest = 64;

/** Those in the order of the text. What is too short to be one, or names another variable, is none. */
export function secretsInText(text: string): FoundSecret[] {
  return [...text.matchAll(assigned)].flatMap((match) => {
    const [all, name = '', value = ''] = match;
    if (formatOf(value) === null && !looksSealed(value) && value.length < shortest) return [];
    const at = match.index + all.length - value.length;
    return [{ name, text: value, at, line: text.slice(0, at).split('\n').length }];
  });
}

/** What becomes of one value: another text, or why it stays. */
export type Replacement = { readonly text: string } | { readonly stays: string };

/** Replaces each value that `replace` gives another text for. */
export async function replaceSecrets(
  text: string,
  replace: (secret: FoundSecret) => Promise<Replacement>,
): Promise<{ text: string; replaced: FoundSecret[]; stayed: (FoundSecret & { why: string })[] }> {
  const replaced: FoundSecret[] = [];
  const stayed: (FoundSecret & { why: string })[] = [];
  let made = '';
  let done = 0;
  for (const secret of secretsInText(text)) {
    const found = await replace(secret);
    if ('stays' in found) {
      stayed.push({ ...secret, why: found.stays });
      continue;
    }
    made += text.slice(done, secret.at) + found.text;
    done = secret.at + secret.text.length;
    replaced.push(secret);
  }
  return { text: made + text.slice(done), replaced, stayed };
}

export interface Rotation {
  readonly from: SecretKeys;
  /** An RSA key writes the old format. */
  readonly to: PublicKey;
  /** For values of the old format, which say nothing themselves; empty when nobody said. */
  readonly pipelines: readonly PipelinePattern[];
}

/** Why a value stays when it need not be changed. */
export const alreadyThere = 'is already encrypted for the new key';

/**
 * One value for another key: what it is for goes with it, and an old value is told what it is for.
 * @param name variable the value is used as; null when nobody knows
 */
export async function rotateSecret(
  { from, to, pipelines }: Rotation,
  secret: { readonly name: string | null; readonly text: string },
): Promise<Replacement> {
  if (to.kind === 'x25519' && parseEnvelope(secret.text)?.key === to.id) return { stays: alreadyThere };
  const opened = await decryptSecret(secret.text, from);
  if (!opened.ok) return { stays: opened.why };
  const { sealed, value } = opened;
  if (to.kind === 'rsa') {
    // Written in the old format, it would be bound to nothing any more.
    if (sealed !== null) return { stays: 'is in the new format, and would be less safe in the old one' };
    return { text: await encryptSeed(to.key, value) };
  }
  if (sealed !== null) return { text: await seal(to, sealed) };
  if (pipelines.length === 0)
    return { stays: 'is in the old format and does not say which pipelines it is for; name them with --pipeline' };
  if (secret.name === null) return { stays: 'does not say what it is called; name it with --name' };
  return { text: await seal(to, { name: secret.name, pipelines, value }) };
}
