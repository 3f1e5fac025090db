/** Encrypts values again for another key, alone or in a text, in which everything else stays as it is, byte for byte. */

import type { PipelinePattern } from '../schema/pipelines.ts';
import type { PublicKey, SecretKeys } from './keys.ts';
import { decryptSecret, formatOf } from './open.ts';
import { looksSealed, parseEnvelope, seal } from './sealed-format.ts';
import { encryptSeed } from './seed-format.ts';

/** `SECRET_NAME: "…"`, `SECRET_NAME=…`, `"SECRET_NAME": "…"`, also with an anchor, or with the value on the next line (`>-`). */
const assigned =
  /(?<![A-Za-z0-9_])SECRET_([A-Za-z_][A-Za-z0-9_]*)["']?[ \t]*[:=][ \t]*(?:&[^\s]+[ \t]+)?(?:[>|][-+0-9]*[ \t]*\r?\n[ \t]*)?["']?([A-Za-z0-9+/=_:;-]+)/g;

/** Any damaged value that can be told from a word is longer. */
const shortest = 64;

/**
 * In the order of the text, without words that are too short for a value. `name`: of the variable, without `SECRET_`. `text`: the
 * encrypted value, possibly damaged. `at`: its offset. `line`: from 1.
 */
export function secretsInText(text: string) {
  return [...text.matchAll(assigned)].flatMap((match) => {
    const [all, name = '', value = ''] = match;
    if (formatOf(value) === null && !looksSealed(value) && value.length < shortest) return [];
    const at = match.index + all.length - value.length;
    return [{ name, text: value, at, line: text.slice(0, at).split('\n').length }];
  });
}

/** A key of a map or a variable of a file. Not one that is set from another variable. */
const keyed =
  /^[ \t]*(?:-[ \t]+|export[ \t]+|\{[ \t]*)?["']?(SECRET_[A-Za-z_][A-Za-z0-9_]*)["']?(?:[ \t]*:[ \t]+|=)["']?(?=[^\s&>|#"'$])/gm;

/** Variables whose values `secretsInText` leaves out. */
export function plainInText(text: string) {
  const values = new Set(secretsInText(text).map(({ name, line }) => `${line} SECRET_${name}`));
  const found = [...text.matchAll(keyed)].map((match) => ({
    line: text.slice(0, match.index).split('\n').length,
    variable: match[1] ?? '',
  }));
  return found.filter(({ line, variable }) => !values.has(`${line} ${variable}`));
}

type FoundSecret = ReturnType<typeof secretsInText>[number];

/** The new text of one value, or why it stays. */
export type Replacement = { readonly text: string } | { readonly stays: string };

/** Replaces the values for which `replace` returns another text. */
export async function replaceSecrets(text: string, replace: (secret: FoundSecret) => Promise<Replacement>) {
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
  /** For values of the old format, which do not contain theirs; empty when not given. */
  readonly pipelines: readonly PipelinePattern[];
}

export const alreadyThere = 'is already encrypted for the new key';

/** Encrypts one value for another key, with its name and pipelines, or those given for an old value. `name`: null when unknown. */
export async function rotateSecret(
  { from, to, pipelines }: Rotation,
  secret: { readonly name: string | null; readonly text: string },
): Promise<Replacement> {
  if (to.kind === 'x25519' && parseEnvelope(secret.text)?.key === to.id) return { stays: alreadyThere };
  const opened = await decryptSecret(secret.text, from);
  if (!opened.ok) return { stays: opened.why };
  const { sealed, value } = opened;
  if (to.kind === 'rsa') {
    // In the old format it would no longer be bound to a pipeline.
    if (sealed !== null) return { stays: 'is in the new format, and would be less safe in the old one' };
    return { text: await encryptSeed(to.key, value) };
  }
  if (sealed !== null) return { text: await seal(to, sealed) };
  if (pipelines.length === 0)
    return { stays: 'is in the old format and does not say which pipelines it is for; name them with --pipeline' };
  if (secret.name === null) return { stays: 'does not say what it is called; name it with --name' };
  return { text: await seal(to, { name: secret.name, pipelines, value }) };
}
