/** A sandbox without bubblewrap: a process with a clean environment and folders of its own. Keeps little apart. */
import { asUser } from './bubblewrap.ts';

export interface PlainSpec {
  /** The agent's user; null for the manager's. */
  readonly uid: number | null;
  /** What `asUser` takes. */
  readonly groups: readonly number[];
  readonly env: Readonly<Record<string, string>>;
  /** What goes before it, as root: `filterLoader`. */
  readonly confine: readonly string[];
}

/** `command` as that user, with `env` and nothing else as its environment. */
export function plainCommand({ uid, groups, env, confine }: PlainSpec, command: readonly string[]): string[] {
  const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  // A session of its own, so that ending it ends no supervisor.
  return ['setsid', ...confine, ...(uid === null ? [] : asUser(uid, groups)), 'env', '-i', ...variables, ...command];
}
