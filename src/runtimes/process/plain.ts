/** A sandbox without bubblewrap: a process with a clean environment and folders of its own. Keeps little apart. */

export interface PlainSpec {
  /** What makes it the agent's user: `asUser`. */
  readonly become: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  /** What goes before it, as root: `filterLoader`. */
  readonly confine: readonly string[];
}

/** `command` as its user, with `env` and nothing else as its environment. */
export function plainCommand({ become, env, confine }: PlainSpec, command: readonly string[]): string[] {
  const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  // A session of its own, so that ending it ends no supervisor.
  return ['setsid', ...confine, ...become, 'env', '-i', ...variables, ...command];
}
