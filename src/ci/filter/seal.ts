/**
 * Sealed tokens: all that a job's sandbox holds of the filter's. A token contains the service's token, its job, and when it expires.
 * Only this installation's key opens it, so the filter keeps no state. AES-256-GCM.
 */
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import { chmodSync, existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';
import { attempt, codeOf, OnejobError } from '../../base/errors.ts';
import { storeFault } from '../../store/fault.ts';
import { writeWhole } from '../../system/files.ts';

const sealed = z.strictObject({
  /** Type of the service, for its rules. */
  rules: z.string(),
  /** Of the service's API, without a slash at its end. */
  endpoint: z.string(),
  /** The service's; with `file` the key of that instead, unless the agent shows the key itself. Never a text that others have, too. */
  token: z.string(),
  /** What it is for, in the word of the rules. */
  use: z.string(),
  job: z.string(),
  /** The job's; null: the service did not say. */
  build: z.string().nullable(),
  /** Name of what was left for it (`one-time-files.ts`). */
  file: z.string().optional(),
  /** Headers with which the service knows the agent, in the place of those that the agent sends. */
  signs: z.record(z.string(), z.string()).optional(),
  /** Which caches of its host it reads, and writes; null: none. Paths, as `ownerPath` makes them. `as`: how its runner asks for them. */
  caches: z
    .strictObject({
      as: z.enum(['s3', 'actions']),
      writes: z.string().nullable(),
      reads: z.array(z.string()),
      limits: z.strictObject({ bytes: z.number(), minFree: z.number() }),
    })
    .optional(),
  /** Wall clock, ms since the epoch, at which it expires. */
  until: z.number(),
});
export type Sealed = Readonly<z.infer<typeof sealed>>;

const [keyBytes, ivBytes, tagBytes] = [32, 12, 16];
/** Lets people and scanners of secrets recognise it. */
const prefix = 'ojf_';
const use = Buffer.from('onejob filter 1');

export const looksSealed = (text: string): boolean => text.startsWith(prefix);

/** @param key 32 bytes */
export class Seal {
  readonly #key: Uint8Array;

  constructor(key: Uint8Array) {
    this.#key = key;
  }

  close(about: Sealed): string {
    const iv = randomBytes(ivBytes);
    const cipher = createCipheriv('aes-256-gcm', this.#key, iv).setAAD(use);
    const body = Buffer.concat([cipher.update(JSON.stringify(about), 'utf8'), cipher.final()]);
    return prefix + Buffer.concat([iv, cipher.getAuthTag(), body]).toString('base64url');
  }

  /** null: invalid. */
  open(token: string): Sealed | null {
    const bytes = Buffer.from(token.slice(prefix.length), 'base64url');
    if (!token.startsWith(prefix) || bytes.length < ivBytes + tagBytes) return null;
    return attempt(() => {
      const cipher = createDecipheriv('aes-256-gcm', this.#key, bytes.subarray(0, ivBytes), { authTagLength: tagBytes });
      cipher.setAAD(use).setAuthTag(bytes.subarray(ivBytes, ivBytes + tagBytes));
      const text = Buffer.concat([cipher.update(bytes.subarray(ivBytes + tagBytes)), cipher.final()]).toString('utf8');
      return sealed.parse(JSON.parse(text));
    });
  }
}

/**
 * A key of the installation, made at first need in `dir`, the filter's folder; only the owner can read it. `key` seals tokens, and the
 * filter proves itself with `proof.key`. @throws OnejobError E_STATE_CORRUPT when the file is not a key, E_STATE_DIR, E_STATE_FULL
 */
export function installationKey(dir: string, name: 'key' | 'proof.key' = 'key'): Uint8Array {
  const path = join(dir, name);
  try {
    if (!existsSync(path)) make(path);
    const key = Buffer.from(readFileSync(path, 'utf8').trim(), 'base64');
    chmodSync(path, 0o600);
    if (key.length === keyBytes) return key;
  } catch (error) {
    throw storeFault('read', path, error);
  }
  throw new OnejobError('E_STATE_CORRUPT', `Cannot use ${path}: it is not a key file of onejob.`, {
    hint: `Restore it from a backup, or remove ${path}: untrusted jobs that run now then lose their connection to their service.`,
  });
}

/** It is complete, and never replaced. */
function make(path: string): void {
  try {
    writeWhole(path, `${randomBytes(keyBytes).toString('base64')}\n`, { over: false, mode: 0o600 });
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error;
  }
}
