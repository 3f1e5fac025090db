/**
 * The command line of `buildkite-agent start`, and the same said with variables. Names of flags and variables: `clicommand/agent_start.go`
 * and `clicommand/global.go` of agent v3.137.0.
 */

/** Flags without a value. */
const switches = new Set(
  `disconnect-after-job reflect-exit-status no-color debug no-http2 no-ansi-timestamps timestamp-lines no-pty no-ssh-keyscan
no-command-eval no-plugins no-plugin-validation plugins-always-clone-fresh no-local-hooks no-git-submodules no-feature-reporting
enable-environment-variable-allowlist strict-single-hooks skip-checkout git-mirrors-skip-update git-skip-fetch-existing-commits
no-multipart-artifact-upload enable-job-log-tmpfile write-job-logs-to-stdout job-logs-otlp tags-from-host spawn-with-priority
tags-from-ec2-meta-data tags-from-ec2-tags tags-from-ecs-meta-data tags-from-gcp-labels fail-on-missing-tags debug-http trace-http
tracing-propagate-traceparent metrics-datadog metrics-datadog-distributions debug-signing`.split(/\s+/),
);

/** What the agent inside can be told by a variable just as well, so that it is kept. */
const asVariable = new Set(
  `shell hooks-shell no-pty no-ssh-keyscan no-command-eval no-plugins no-plugin-validation plugins-always-clone-fresh no-local-hooks
no-git-submodules allowed-repositories enable-environment-variable-allowlist allowed-environment-variables allowed-plugins
no-ansi-timestamps timestamp-lines strict-single-hooks redacted-vars trace-context-encoding tracing-backend tracing-service-name
tracing-propagate-traceparent skip-checkout checkout-override-mode git-checkout-flags git-clone-flags git-clone-mirror-flags
git-clean-flags git-commit-verification git-fetch-flags git-sparse-checkout-paths git-sparse-checkout-mode git-mirrors-path
git-mirror-checkout-mode git-mirrors-lock-timeout git-mirrors-skip-update git-submodule-clone-config git-checkout-timeout
git-skip-fetch-existing-commits checkout-attempts no-multipart-artifact-upload experiment verification-failure-behavior
additional-hooks-paths`.split(/\s+/),
);

/** Variables whose names do not follow from their flags. */
const irregular: Readonly<Record<string, string>> = {
  experiment: 'BUILDKITE_AGENT_EXPERIMENT',
  'verification-failure-behavior': 'BUILDKITE_AGENT_JOB_VERIFICATION_NO_SIGNATURE_BEHAVIOR',
};

/** Variables that mean a flag which is understood here. */
const meant: Readonly<Record<string, string>> = {
  BUILDKITE_AGENT_NAME: 'name',
  BUILDKITE_AGENT_TAGS: 'tags',
  BUILDKITE_AGENT_META_DATA: 'tags',
  BUILDKITE_AGENT_QUEUE: 'queue',
  BUILDKITE_AGENT_PRIORITY: 'priority',
  BUILDKITE_AGENT_TOKEN: 'token',
  BUILDKITE_AGENT_ENDPOINT: 'endpoint',
  BUILDKITE_AGENT_CONFIG: 'config',
  BUILDKITE_AGENT_SPAWN: 'spawn',
  BUILDKITE_AGENT_PING_MODE: 'ping-mode',
  BUILDKITE_AGENT_DISCONNECT_AFTER_JOB: 'disconnect-after-job',
  BUILDKITE_AGENT_DISCONNECT_AFTER_IDLE_TIMEOUT: 'disconnect-after-idle-timeout',
  BUILDKITE_AGENT_DISCONNECT_AFTER_UPTIME: 'disconnect-after-uptime',
  BUILDKITE_AGENT_ACQUIRE_JOB: 'acquire-job',
  BUILDKITE_AGENT_TAGS_FROM_HOST: 'tags-from-host',
  BUILDKITE_HOOKS_PATH: 'hooks-path',
  BUILDKITE_PLUGINS_PATH: 'plugins-path',
  BUILDKITE_BUILD_PATH: 'build-path',
  BUILDKITE_SOCKETS_PATH: 'sockets-path',
};

/** The flag that a variable means; null for all others, which stay variables. */
export function flagOf(variable: string): string | null {
  return Object.hasOwn(meant, variable) ? (meant[variable] ?? null) : null;
}

/** The variable that says the same as a flag to the agent inside; null when onejob or nobody cares for that flag. */
export function variableOf(flag: string): string | null {
  return asVariable.has(flag) ? (irregular[flag] ?? `BUILDKITE_${flag.toUpperCase().replaceAll('-', '_')}`) : null;
}

export interface Flag {
  readonly name: string;
  readonly value: string;
  /** Where in the words of the command it stands, from 0. */
  readonly at: number;
}

export interface CommandLine {
  readonly flags: readonly Flag[];
  /** Whether it starts an agent, as far as one can see. */
  readonly isStart: boolean;
  /** Words that are neither the program, `start` nor a flag. */
  readonly rest: readonly string[];
}

const known = new Set([...switches, ...asVariable, ...Object.values(meant), 'health-check-addr', 'log-level', 'log-format']);

/** `--flag=value`, `--flag value` and `--flag`, with one dash or two as the agent takes them. */
export function readCommandLine(words: readonly string[]): CommandLine {
  const flags: Flag[] = [];
  const rest: string[] = [];
  let isStart = false;
  for (let at = 0; at < words.length; at++) {
    const word = words[at] ?? '';
    const [, name, equals, value = ''] = /^--?([a-z][a-z0-9-]*)(=(.*))?$/s.exec(word) ?? [];
    const next = words[at + 1];
    if (name === undefined) {
      if (word === 'start') isStart = true;
      else if (!/(^|\/)buildkite-agent$/.test(word)) rest.push(word);
    } else if (equals !== undefined) flags.push({ name, value, at });
    else if (switches.has(name) || next === undefined || (next.startsWith('-') && !/^-\d/.test(next)))
      flags.push({ name, value: 'true', at });
    else flags.push({ name, value: next, at: at++ });
  }
  return { flags, rest, isStart: isStart || flags.some(({ name }) => known.has(name) && name !== 'config' && name !== 'debug') };
}
