/** A sandbox without bubblewrap: a process with a clean environment and folders of its own. Keeps little apart. */
import { asUser } from './bubblewrap.ts';

/** `command` as the agent's user (or the manager's, for null), with `env` and nothing else as its environment. */
export function plainCommand(uid: number | null, env: Readonly<Record<string, string>>, command: readonly string[]): string[] {
  const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  // A session of its own, so that ending it ends no supervisor.
  return ['setsid', ...(uid === null ? [] : asUser(uid)), 'env', '-i', ...variables, ...command];
}
