/**
 * A config that the command line or the environment names counts, or the command is refused: a daemon that runs already has read
 * its own, and would do something else without a word.
 */
import { realpathSync } from 'node:fs';
import type { Client } from '../api/client.ts';
import { attempt, OnejobError } from '../base/errors.ts';
import { findConfig, type Given } from '../config/paths.ts';
import type { StatusView } from '../contract/schema.ts';
import { wrongUsage } from './exit.ts';
import type { Session } from './session.ts';

/** The config that somebody chose for this command; null: none, or only the usual place has one. */
function namedConfig({ context, flags }: Session): Given | null {
  const found = findConfig(flags, context.environment, context.cwd);
  return found === null || found.from.source === 'default' ? null : found;
}

/** @throws OnejobError E_DAEMON_CONFIG if the daemon has another config than the named one; E_USAGE for another host's daemon */
export async function checkNamedConfig(session: Session, client: Pick<Client, 'status'>): Promise<void> {
  if (session.remote !== null) {
    if (session.flags.config === undefined) return;
    throw wrongUsage(
      `The daemon of ${session.remote.shown} has read its own config, not the one of --config.`,
      'Leave out --config.',
    );
  }
  const named = namedConfig(session);
  const problem = named === null ? null : otherConfig(named, await client.status());
  if (problem !== null) throw problem;
}

function otherConfig(named: Given, status: Pick<StatusView, 'config' | 'configChanged' | 'pid' | 'temporary'>): OnejobError | null {
  const { config, configChanged, pid, temporary } = status;
  const is = config !== null && real(config) === real(named.path);
  // A permanent daemon says itself that it waits for "config apply".
  if (is && (configChanged === null || !temporary)) return null;
  const its = is ? 'what that file said when it started' : config === null ? 'no config file' : config;
  const leave = named.from.source === '--config' ? 'leave out --config' : `unset ${named.from.source}`;
  const end = temporary
    ? 'It ends with its last job and command: wait for that ("onejob jobs")'
    : `To use it, ${leave}. To replace it, type "onejob down --leave" and "onejob up --config ${named.path}"`;
  return new OnejobError(
    'E_DAEMON_CONFIG',
    `Cannot use config ${named.path} (${named.from.source}): a ${temporary ? 'temporary ' : ''}daemon (pid ${pid}) runs already, with ${its}.`,
    { hint: `${end}. Or choose a state directory of its own with --state-dir DIR.` },
  );
}

function real(path: string): string {
  return attempt(() => realpathSync(path)) ?? path;
}
