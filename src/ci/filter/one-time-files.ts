/**
 * What the manager leaves for one call of one job, such as the job itself, which is too large for a token. The file is encrypted with
 * a key of its own that only the job's sealed token contains, or the config of its agent, and it is given out once. AES-256-GCM.
 */
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';
import { existsSync, rmSync } from 'node:fs';
import { readFile, unlink } from 'node:fs/promises';
import { join } from 'node:path';
import { attempt, codeOf } from '../../base/errors.ts';
import { makeFolder, writeWhole } from '../../system/files.ts';

const [keyBytes, ivBytes, tagBytes] = [32, 12, 16];

/** `dir`: the filter's folder, in the state directory. `name`: letters, digits, `-` and `_`, such as the id of an agent. */
export class OneTimeFiles {
  readonly #folder: string;

  constructor(dir: string) {
    this.#folder = join(dir, 'left');
  }

  /**
   * Replaces what was left under this name before, and returns the key. It is on disk by then: an agent on another host outlives a power
   * cut of this one, and asks for it afterwards. @throws Error of the file system
   */
  leave(name: string, content: string | Uint8Array): string {
    const path = this.#pathOf(name);
    const [key, iv] = [randomBytes(keyBytes), randomBytes(ivBytes)];
    const cipher = createCipheriv('aes-256-gcm', key, iv).setAAD(Buffer.from(name));
    const body = Buffer.concat([cipher.update(content), cipher.final()]);
    makeFolder(this.#folder);
    writeWhole(path, Buffer.concat([iv, cipher.getAuthTag(), body]), { over: true, mode: 0o600, alone: true });
    return key.toString('base64url');
  }

  /** Gives it out, and removes it; null: it was given out before, or the key does not open it, and then it stays untouched. */
  async take(name: string, key: string): Promise<Buffer | null> {
    const path = this.#pathOf(name);
    const bytes = await readFile(path).catch(nullIfGone);
    if (bytes === null) return null;
    const content = attempt(() => {
      const options = { authTagLength: tagBytes };
      const cipher = createDecipheriv('aes-256-gcm', Buffer.from(key, 'base64url'), bytes.subarray(0, ivBytes), options);
      cipher.setAAD(Buffer.from(name)).setAuthTag(bytes.subarray(ivBytes, ivBytes + tagBytes));
      return Buffer.concat([cipher.update(bytes.subarray(ivBytes + tagBytes)), cipher.final()]);
    });
    if (content === null) return null;
    // Of two calls only one removes it, and so gets it. `rm` would tell both that they did.
    return unlink(path).then(() => content, nullIfGone);
  }

  /** Whether it was left, and neither given out nor forgotten since. */
  has(name: string): boolean {
    return existsSync(this.#pathOf(name));
  }

  forget(name: string): void {
    rmSync(this.#pathOf(name), { force: true });
  }

  #pathOf(name: string): string {
    if (!isName(name)) throw new RangeError(`${JSON.stringify(name)} cannot be the name of a file`);
    return join(this.#folder, name);
  }
}

const isName = (text: string): boolean => /^[A-Za-z0-9_-]{1,128}$/.test(text);

/** @throws `error` unless it says that there is no such file */
function nullIfGone(error: unknown): null {
  if (codeOf(error) !== 'ENOENT') throw error;
  return null;
}
