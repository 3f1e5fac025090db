/** Detects that the files of a config have changed since the daemon read them at its start. */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { formatTime } from '../base/units.ts';
import { checkCommand, type Given } from './paths.ts';

export interface ReadFile {
  readonly path: string;
  /** SHA-256 of its bytes; null when it could not be read. */
  readonly digest: string | null;
}

export interface LoadedConfig {
  /** null without a file. */
  readonly path: string | null;
  readonly files: readonly ReadFile[];
  /** Wall clock, ms since the epoch. */
  readonly at: number;
}

export const howToApply = 'To apply it, type "onejob config apply"; running jobs continue meanwhile.';
export const whenTemporary = 'The daemon is temporary: it ends with its last job and command, and the next one reads it.';
export const howToFix = (found: Given | null): string => `It is invalid, or a secret is missing: see "${checkCommand(found)}".`;

/** What has changed, as a sentence; null if nothing has. `found`: where a config file is now. */
export async function configChange(loaded: LoadedConfig, found: Given | null, now: number): Promise<string | null> {
  const when = formatTime(loaded.at, now);
  if (loaded.path === null)
    return found === null ? null : `${found.path} exists now, but this daemon was started without a config at ${when}.`;
  for (const { path, digest } of loaded.files) {
    const current = await readFile(path).then(digestOf, () => null);
    if (current === digest) continue;
    if (current === null) return `Cannot read ${path} any more; the daemon still uses the config that it loaded at ${when}.`;
    return `${path} was changed after the daemon loaded it at ${when}; the daemon still uses what it loaded.`;
  }
  return null;
}

/** SHA-256, in hex. */
export function digestOf(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
