/**
 * How a sandbox becomes the agent of one job: what is mounted into it, and the script that begins it. It holds nothing long-lived: the
 * token is for one agent of that job, unless the agent takes its job itself. The script names every place where an earlier job could
 * have left something, so that the agent reads none of its own defaults.
 */

import { inQuotes } from '../../../base/quoted.ts';
import type { PoolConfig } from '../../../config/config.ts';
import type { AgentContext } from '../../../ports/ci-service.ts';
import type { Recipe } from '../../../ports/runtime.ts';
import { acceptsToo, mounted, noProxyFor, ownFolder, readOnlyMount } from '../../kit/mounted.ts';

export interface AgentAccess {
  readonly token: string;
  /** Of the Agent API as the sandbox reaches it: the service's, or the filter's, such as `http://172.18.0.1:7070/v3`. */
  readonly endpoint: string;
  /** `endpoint` is the filter's, on this host: no proxy leads there. */
  readonly isFiltered: boolean;
  /** The certificate of the filter in PEM; null: what the system accepts. */
  readonly ca?: string | null;
  /** The job to run; null: the agent waits for one, with a token that may take any. */
  readonly job: string | null;
}

export interface ScriptParts extends Pick<AgentContext, 'name' | 'workspace'> {
  readonly access: AgentAccess;
  /** `key=value` each, without commas. */
  readonly tags: readonly string[];
  /** In the environment of the job, and masked in its log. */
  readonly secrets: readonly { readonly name: string; readonly value: string }[];
  readonly hooks: string | null;
  readonly plugins: string | null;
  /** Whether the agent must find the commit of a job on the branch that the service names for it. */
  readonly verifiesCommit: boolean;
  /** ms a cancelled job may take to end after TERM. */
  readonly cancelGrace: number;
  /** A line for the log of the job; null: none. With hooks of the owner only the agent's log has it. */
  readonly note: string | null;
}

/** The agent's program, and the owner's folders. */
export const insideAgent = {
  program: `${ownFolder}/buildkite-agent`,
  hooks: `${ownFolder}/hooks`,
  plugins: `${ownFolder}/plugins`,
} as const;

/** As `CiService.equip`. `folder`: on this host, with the agent's program; null: the image brings its own. */
export function equippedForBuildkite(recipe: Recipe, pool: PoolConfig | undefined, folder: string | null): Recipe {
  const mounts = [
    ...(pool?.hooks == null ? [] : [readOnlyMount(pool.hooks, insideAgent.hooks)]),
    ...(pool?.plugins == null ? [] : [readOnlyMount(pool.plugins, insideAgent.plugins)]),
  ];
  const own = mounted(recipe, folder, 'buildkite-agent');
  return mounts.length === 0 ? own : { ...own, mounts: [...own.mounts, ...mounts] };
}

/** Variables that an image may set, and that would make it another agent, several, or one that ends too early. */
const foreign = [
  ...['TAGS', 'META_DATA', 'QUEUE', 'PRIORITY', 'SPAWN', 'SPAWN_PER_CPU', 'SPAWN_WITH_PRIORITY', 'ACQUIRE_JOB'],
  ...['DISCONNECT_AFTER_JOB', 'DISCONNECT_AFTER_JOB_TIMEOUT', 'DISCONNECT_AFTER_IDLE_TIMEOUT', 'DISCONNECT_AFTER_UPTIME'],
];

/** Lets `buildkite-agent` be found, also when there is no PATH. */
export const findsProgram = `export PATH=${ownFolder}:${'$'}{PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}`;

/** Variables that the agent masks by default (its `clicommand/global.go`); naming others replaces them. */
const masked = [
  ...['*_PASSWORD', '*_SECRET', '*_TOKEN', '*_PRIVATE_KEY', '*_ACCESS_KEY', '*_SECRET_KEY', '*_CONNECTION_STRING'],
  ...['*_SSH_KEY', '*_API_KEY'],
];

export function agentScript(parts: ScriptParts): string {
  const { access, name, workspace, tags, secrets, hooks, plugins, verifiesCommit, cancelGrace, note } = parts;
  const { token, endpoint, isFiltered, ca = null, job } = access;
  const own = `${workspace}/.buildkite`;
  // git runs programs that its settings name, and a home may outlive the job that wrote them.
  const settings = `${own}/gitconfig`;
  const set: readonly (readonly [string, string])[] = [
    ['BUILDKITE_AGENT_TOKEN', token],
    ['BUILDKITE_AGENT_ENDPOINT', endpoint],
    ['BUILDKITE_AGENT_NAME', name],
    ['BUILDKITE_AGENT_TAGS', tags.join(',')],
    // A home that outlives the agent may contain a config of an earlier job.
    ['BUILDKITE_AGENT_CONFIG', `${own}/agent.cfg`],
    ['BUILDKITE_BUILD_PATH', `${workspace}/builds`],
    ['BUILDKITE_HOOKS_PATH', hooks ?? `${own}/hooks`],
    ['BUILDKITE_PLUGINS_PATH', plugins ?? `${own}/plugins`],
    ['BUILDKITE_SOCKETS_PATH', `${own}/sockets`],
    ['BUILDKITE_CANCEL_GRACE_PERIOD', String(Math.max(1, Math.floor(cancelGrace / 1000)))],
    ['BUILDKITE_AGENT_PING_MODE', 'poll-only'],
    // The agent's own log is on standard error.
    ['BUILDKITE_WRITE_JOB_LOGS_TO_STDOUT', 'true'],
    ...(job === null
      ? ([
          ['BUILDKITE_AGENT_DISCONNECT_AFTER_JOB', 'true'],
          // Its log is all that tells how far it is.
          ['BUILDKITE_LOG_FORMAT', 'text'],
          ['BUILDKITE_AGENT_LOG_LEVEL', 'info'],
        ] as const)
      : ([
          ['BUILDKITE_AGENT_ACQUIRE_JOB', job],
          // So that onejob knows how the job ended.
          ['BUILDKITE_AGENT_REFLECT_EXIT_STATUS', 'true'],
        ] as const)),
    ...(secrets.length === 0
      ? []
      : [['BUILDKITE_REDACTED_VARS', [...masked, ...secrets.map((one) => one.name)].join(',')] as const]),
    ...secrets.map((one) => [one.name, one.value] as const),
  ];
  return [
    `unset BASH_ENV ENV ${foreign.map((name) => `BUILDKITE_AGENT_${name}`).join(' ')}`,
    `mkdir -p ${inQuotes(`${own}/hooks`)} ${inQuotes(`${own}/plugins`)} ${inQuotes(`${own}/sockets`)} || exit 1`,
    `: > ${inQuotes(`${own}/agent.cfg`)} || exit 1`,
    `: > ${inQuotes(settings)} || exit 1`,
    // The pool's `env` may name others.
    `[ -n "\${GIT_CONFIG_GLOBAL:-}" ] || export GIT_CONFIG_GLOBAL=${inQuotes(settings)}`,
    ...set.map(([variable, value]) => `export ${variable}=${inQuotes(value)}`),
    // A setting of the agent: neither service nor pipeline can change it. The owner may write `warn`.
    ...(verifiesCommit ? ['export BUILDKITE_GIT_COMMIT_VERIFICATION="${BUILDKITE_GIT_COMMIT_VERIFICATION:-strict}"'] : []),
    ...(note === null ? [] : saysIn(hooks === null ? `${own}/hooks/environment` : null, note)),
    ...(isFiltered ? noProxyFor(endpoint) : []),
    ...(ca === null ? [] : acceptsToo(ca, `${own}/ca.pem`)),
    findsProgram,
    'exec buildkite-agent start',
  ].join('\n');
}

function saysIn(hook: string | null, note: string): string[] {
  const say = `printf '%s\\n' ${inQuotes(note)}`;
  return hook === null
    ? [say]
    : [`${say} >&2`, `printf '%s\\n' ${inQuotes(say)} > ${inQuotes(hook)} && chmod 755 ${inQuotes(hook)}`];
}

export function scriptFor(
  { name, workspace }: Pick<AgentContext, 'name' | 'workspace'>,
  pool: PoolConfig,
  access: AgentAccess,
  { note, secrets }: Pick<ScriptParts, 'note' | 'secrets'>,
): string {
  return agentScript({
    name,
    workspace,
    access,
    note,
    secrets,
    tags: [`queue=${pool.queue}`, ...pool.tags],
    hooks: pool.hooks === null ? null : insideAgent.hooks,
    plugins: pool.plugins === null ? null : insideAgent.plugins,
    verifiesCommit: pool.trust.branches != null,
    cancelGrace: Math.max(1_000, pool.stopGrace - 5_000),
  });
}
