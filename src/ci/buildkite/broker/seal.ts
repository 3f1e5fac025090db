/**
 * What the broker keeps of tokens and jobs, unreadable without the installation's key: AES-256-GCM, bound to the row that it
 * stands in. The key lies beside the database, so this keeps tokens out of copies of the database, not from its owner.
 */

import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto';
import { chmodSync, closeSync, fsyncSync, linkSync, openSync, readFileSync, unlinkSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { OnejobError } from '../../../errors.ts';
import { storeFault } from '../../../store/fault.ts';

export interface Seal {
  /** @param row id of the row that it will stand in */
  close(row: string, value: unknown): Uint8Array;
  /** @throws Error when it was changed, stood in another row, or was closed with another key */
  open(row: string, bytes: Uint8Array): unknown;
  /** A mark of these words that nobody without the key can make: 32 bytes. */
  mark(...words: readonly string[]): Buffer;
}

const version = 1;
const keyBytes = 32;
const ivBytes = 12;
const tagBytes = 16;

/** @param key 32 bytes */
export function createSeal(key: Uint8Array): Seal {
  const derived = (use: string) => Buffer.from(hkdfSync('sha256', key, '', `onejob broker ${use}`, keyBytes));
  const [sealing, marking] = [derived('seal'), derived('alias')];
  return {
    close(row, value) {
      const iv = randomBytes(ivBytes);
      const cipher = createCipheriv('aes-256-gcm', sealing, iv).setAAD(Buffer.from(row));
      const body = Buffer.concat([cipher.update(JSON.stringify(value), 'utf8'), cipher.final()]);
      return Buffer.concat([Buffer.of(version), iv, cipher.getAuthTag(), body]);
    },
    open(row, bytes) {
      const all = Buffer.from(bytes);
      if (all.length < 1 + ivBytes + tagBytes || all[0] !== version) throw new Error('it is not sealed in a known way');
      const iv = all.subarray(1, 1 + ivBytes);
      const tag = all.subarray(1 + ivBytes, 1 + ivBytes + tagBytes);
      const cipher = createDecipheriv('aes-256-gcm', sealing, iv, { authTagLength: tagBytes });
      cipher.setAAD(Buffer.from(row)).setAuthTag(tag);
      const text = Buffer.concat([cipher.update(all.subarray(1 + ivBytes + tagBytes)), cipher.final()]).toString('utf8');
      return JSON.parse(text);
    },
    // Each word with its length, so that no two lists of words look the same.
    mark: (...words) => {
      const hmac = createHmac('sha256', marking);
      for (const word of words) hmac.update(`${Buffer.byteLength(word)}:${word}`);
      return hmac.digest();
    },
  };
}

/**
 * The installation's key, made at first need. Only the owner can read it.
 * @param dir the broker's own folder
 * @throws OnejobError E_STATE_CORRUPT when the file holds something else, E_STATE_DIR, E_STATE_FULL
 */
export function installationKey(dir: string): Uint8Array {
  const path = join(dir, 'key');
  try {
    const found = read(path) ?? make(path);
    const key = Buffer.from(found.trim(), 'base64');
    if (key.length === keyBytes) return key;
  } catch (error) {
    throw storeFault('read', path, error);
  }
  throw new OnejobError('E_STATE_CORRUPT', `Cannot use ${path}: it is no key of onejob.`, {
    hint: `Put it back from a copy, or move ${path} aside: then the agents that were sealed with it are forgotten.`,
  });
}

function read(path: string): string | null {
  try {
    const text = readFileSync(path, 'utf8');
    chmodSync(path, 0o600);
    return text;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw error;
  }
}

/** Written beside and then linked: a key that is there is whole, and never another's. */
function make(path: string): string {
  const beside = `${path}.${randomBytes(4).toString('hex')}`;
  const text = `${randomBytes(keyBytes).toString('base64')}\n`;
  const fd = openSync(beside, 'wx', 0o600);
  try {
    writeSync(fd, text);
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
  try {
    linkSync(beside, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    unlinkSync(beside);
  }
  return read(path) ?? text;
}
