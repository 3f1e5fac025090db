/** Files that `init` writes: whole or not at all, and over nothing that is there unless it is asked for. */
import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import type { Environment } from '../config/environment.ts';
import { OnejobError } from '../errors.ts';
import type { PlaceFlags } from './context.ts';

/** Where a daemon would look for its config first, by what it is started with. */
export function configPlace(flags: Pick<PlaceFlags, 'config'>, { config, configHome, uid }: Environment): string {
  return flags.config ?? config ?? (uid === 0 ? '/etc/onejob/config.yml' : join(configHome, 'onejob', 'config.yml'));
}

/** @throws OnejobError E_INIT_FILE when there is a file already */
export function refuseToOverwrite(path: string, option: string): void {
  if (!existsSync(path)) return;
  throw new OnejobError('E_INIT_FILE', `There is a file already: ${path}.`, {
    hint: `Write another one with ${option} FILE, or overwrite it with --force.`,
  });
}

/** Readable for this user only. @throws OnejobError E_INIT_FILE */
export function writePrivate(path: string, text: string): void {
  const unfinished = `${path}.${process.pid}.new`;
  try {
    mkdirSync(dirname(path), { recursive: true, mode: 0o755 });
    writeFileSync(unfinished, text, { mode: 0o600, flag: 'wx' });
    renameSync(unfinished, path);
  } catch (error) {
    try {
      rmSync(unfinished, { force: true });
    } catch {
      // Where its folder is none, it is not there either.
    }
    const why = error instanceof Error ? error.message.replace(/^(\w+): ([^,]+),.*$/s, '$2 ($1)') : String(error);
    throw new OnejobError('E_INIT_FILE', `Cannot write ${path}: ${why}.`, {
      hint: 'Write to a place of your own with --config FILE and --token-file FILE, or type it as root.',
      cause: error,
    });
  }
}
