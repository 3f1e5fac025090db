/** Encrypted variables of a job that the caller trusts: which they are, and how a value is decrypted for exactly one job. */
import { hash } from 'node:crypto';
import type { Outcome } from './encoding.ts';
import type { SecretKeys } from './keys.ts';
import { looksSealed, misfit, parseEnvelope, type Sealed, unseal, variableName } from './sealed-format.ts';
import { decryptSeed, parseSeed } from './seed-format.ts';

/** `seed`: `BASE64;BASE64`. `plain-rsa`: the same without `;`. `sealed`: `oj1:…`, bound to its pipelines and its name. */
export type SecretFormat = 'seed' | 'plain-rsa' | 'sealed';

/** `why`: the end of a sentence that begins with the variable, without any of its value. */
export type Opened = Outcome<{ readonly value: string; readonly format: SecretFormat }>;

/** Longest encrypted text, in characters: no process could be given a longer one. */
const longestText = 128 * 1024;

/**
 * Variables that begin with `SECRET_` followed by a name, sorted. The shell scripts that old values come from take those that
 * contain `SECRET_` anywhere and cut off 7 characters, so `MY_SECRET_KEY` became `T_KEY`; onejob ignores those. `name`: without
 * `SECRET_`, as the job gets it.
 */
export function secretsIn(env: Readonly<Record<string, string>>) {
  return Object.entries(env)
    .filter(([variable]) => variable.startsWith('SECRET_') && variableName.test(variable.slice(7)))
    .map(([variable, text]) => ({ name: variable.slice(7), variable, text: text.trim() }))
    .sort((a, b) => (a.variable < b.variable ? -1 : 1));
}

/** null: not an encrypted value, or one that is cut off or damaged. Needs no key. */
export function formatOf(text: string): SecretFormat | null {
  if (text.length > longestText) return null;
  if (looksSealed(text)) return parseEnvelope(text) === null ? null : 'sealed';
  const parts = parseSeed(text);
  return parts === null ? null : parts.body === null ? 'plain-rsa' : 'seed';
}

/**
 * What identifies an encrypted value: 32 hex digits that reveal nothing of it. For an old value only the RSA part counts: anyone
 * can change what is after the `;` so that it still decrypts, and it would be another value then.
 */
export function secretFingerprint(text: string): string {
  const parts = looksSealed(text) || text.length > longestText ? null : parseSeed(text);
  return hash('sha256', parts === null ? text : parts.key).slice(0, 32);
}

/** `organisation`, `pipeline`: slugs as the CI service gives them; null when it gave none. */
export interface SecretOfJob {
  readonly text: string;
  readonly name: string;
  readonly organisation: string | null;
  readonly pipeline: string | null;
  readonly keys: SecretKeys;
}

/** Decrypts `text` for the job's variable `name`. Old values name no pipeline: ask `decidePin` first. */
export async function openSecret(request: SecretOfJob): Promise<Opened> {
  const opened = await decryptSecret(request.text, request.keys);
  if (!opened.ok) return opened;
  const { sealed, ...plain } = opened;
  const why = sealed === null ? null : misfit(sealed, request);
  return why === null ? plain : { ok: false, why };
}

/** `sealed`: the contents of a value in the new format. */
export type Decrypted = Outcome<{ readonly value: string; readonly format: SecretFormat; readonly sealed: Sealed | null }>;

/** Decrypts it for the key's owner, for any pipeline and name. */
export async function decryptSecret(text: string, { keys }: SecretKeys): Promise<Decrypted> {
  const format = formatOf(text);
  if (looksSealed(text) && text.length <= longestText) {
    const own = keys.filter((each) => each.kind === 'x25519');
    const found = await unseal(own, text);
    return found.ok ? { ok: true, value: found.sealed.value, format: 'sealed', sealed: found.sealed } : found;
  }
  if (format === null) return { ok: false, why: text.length > longestText ? 'is too long to be an encrypted value' : notEncrypted };
  const rsa = keys.flatMap((each) => (each.kind === 'rsa' ? [each.key] : []));
  if (rsa.length === 0) return { ok: false, why: 'was encrypted in the old format, but this host has no RSA key' };
  const found = await decryptSeed(rsa, text);
  return found.ok ? { ok: true, value: found.value, format, sealed: null } : found;
}

const notEncrypted = 'is not an encrypted value, or is damaged or cut off';
