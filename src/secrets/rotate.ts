/** One encrypted value for another key: what it is for goes with it, and an old value is told what it is for. */
import type { Replacement } from './in-text.ts';
import type { PublicKey, SecretKeys } from './keys.ts';
import { decryptSecret } from './open.ts';
import type { PipelinePattern } from './pipelines.ts';
import { parseEnvelope, seal } from './sealed-format.ts';
import { encryptSeed } from './seed-format.ts';

export interface Rotation {
  readonly from: SecretKeys;
  /** An RSA key writes the old format. */
  readonly to: PublicKey;
  /** For values of the old format, which say nothing themselves; empty when nobody said. */
  readonly pipelines: readonly PipelinePattern[];
}

/** Why a value stays when it need not be changed. */
export const alreadyThere = 'is encrypted for the new key already';

/** @param name variable the value is used as; null when nobody knows */
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
    return { stays: 'is in the old format and says nothing about what it is for; say it with --pipeline' };
  if (secret.name === null) return { stays: 'does not say what it is called; say it with --name' };
  return { text: await seal(to, { name: secret.name, pipelines, value }) };
}
