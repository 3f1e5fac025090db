/** One service of a Compose file as one agent, with remarks. */
import { posix } from 'node:path';
import type { Path } from '../../src/schema/problem.ts';
import {
  composeNumber,
  filled,
  insideContainer,
  isMap,
  listOf,
  looksSecret,
  nameFrom,
  pairsOf,
  type Service,
  soundsSecret,
  textOf,
  wordsOf,
} from './agent.ts';
import { readImage, readLimits, readMounts } from './container.ts';
import { deviceVariables, readDevices } from './devices.ts';

/** null for a service that is not an agent. Never throws. `heading`: comment above the services of its file. */
export function readService(service: Service, heading: string) {
  const { file, key, isOnly, written, root, line, warn, note } = service;
  const folder = posix.dirname(file);
  const { env, all, flags: said, cpu } = readEnvironment(service);
  const command = readCommand(written);
  const { image, context, hasSecretsKey, hasAgent } = readImage(service);
  const envFiles = listOf(written.env_file).flatMap((item) => textOf(isMap(item) ? item.path : item) ?? []);
  const isAgent =
    command.isStart ||
    said.length > 0 ||
    hasAgent ||
    envFiles.some((one) => /token|buildkite|agent/i.test(one)) ||
    (isOnly && /buildkite/i.test(key));
  if (!isAgent) return null;

  const limits = readLimits(service);
  const hostname = textOf(written.hostname);
  const fallback = isOnly ? posix.basename(folder === '.' ? root : folder) : key;
  const isName = hostname !== null && /^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$/.test(hostname);
  const flags = readFlags(said, command.flags, hostname ?? fallback, isName ? hostname : fallback, service);
  if (command.unknown > 0) {
    // A word may be a token, so it is not shown.
    const what = command.unknown === 1 ? 'a word' : `${command.unknown} words`;
    warn(['command'], `${what} of the command are not understood and not carried over`);
  }
  const mounts = readMounts(service, flags.name);
  const folders: Record<string, string> = {};
  for (const [flag, path] of flags.folders) {
    const host = hostFolder(path, mounts.hostOf);
    if (host === null) note(['command'], `${path} (--${flag}-path) is in the image: ${instead(flag, hasSecretsKey)}`);
    else folders[flag] = host;
  }
  // These are mounted by their own keys.
  const byKey = new Set(flags.folders.map(([flag, path]) => `${folders[flag]}:${path.replace(/\/$/, '')}`));
  const devices = readDevices(service, all);
  for (const name of devices.by === 'uuid' ? devices.names : [])
    if (isShort(name)) warn(['environment'], `${name} is only the beginning of a UUID: write all of it (nvidia-smi -L)`);
  if (cpu !== null && limits.cpus === null)
    note(['environment', cpu.variable], `${cpu.variable} follows from "cpus", which also holds its jobs to as many CPUs`);
  if (hostname !== null && hostname !== flags.name)
    note(['hostname'], `jobs see the agent's name as the name of their host, not ${hostname}`);
  const tokenFile = tokenFileOf(envFiles, folder);
  if (tokenFile !== null) {
    const what = `what else is in ${tokenFile} is not carried over, because onejob did not read it`;
    note(['env_file'], `the token goes into a file that only root reads (see the config); ${what}`);
  } else if (!flags.hasToken) note([], 'the source of its token is unknown; the config names a file for it');
  const most = devices.by === 'uuid' || devices.by === 'index' ? 64 : 512;
  const copies = Math.round(composeNumber(written.scale) ?? composeNumber(insideContainer(written.deploy, 'replicas')) ?? 1);
  const asked = Math.min(most, Math.max(1, copies) * flags.spawn);
  if (asked > 1 && devices.by === 'all')
    warn(['deploy'], `${asked} copies of it had all GPUs, and one agent has them now: write the devices of each`);
  else if (asked > 1) note(['deploy'], `${asked} copies become a pool whose agents are called ${flags.name}-1, ${flags.name}-2, …`);

  const keys = filled({
    ...limits,
    queue: flags.queue,
    priority: flags.priority,
    tags: flags.tags.join(','),
    image,
    cpu_env: cpu?.variable ?? null,
    cpus: limits.cpus ?? cpu?.count ?? null,
    env: { ...env, ...flags.variables },
    caches: mounts.caches,
    volumes: mounts.volumes.filter((volume) => !byKey.has(volume)),
    ...folders,
  });
  return {
    /** Relative to the folder that was read. */
    file,
    line: line([]),
    name: flags.name,
    /** null: not written. */
    hostname,
    /** Number of copies: replicas, or `--spawn`. */
    times: devices.by === 'all' ? 1 : asked,
    /** File with its token; null if unknown. */
    tokenFile,
    /** Address of the Agent API; null for Buildkite's own. */
    endpoint: flags.endpoint,
    /** Folder that its image is built from, relative to the folder that was read; null if it is not built. */
    context,
    /** Whether its image has a private key for secrets. */
    hasSecretsKey,
    devices,
    /** Keys of its pool, except `name`, `agents`, `devices` and `service`. */
    keys,
    heading,
  };
}

export type Agent = Readonly<NonNullable<ReturnType<typeof readService>>>;

/** Vendors' tools accept the beginning of a UUID. */
function isShort(uuid: string): boolean {
  return uuid.length < 40 && /^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{0,4}){0,3}(-[0-9a-f]{0,12})?$/i.test(uuid);
}

/** The file that is most likely to contain the token. */
function tokenFileOf(files: readonly string[], folder: string): string | null {
  const file = files.find((one) => /token/i.test(one)) ?? files.find((one) => /buildkite|agent|secret/i.test(one)) ?? files[0];
  return file === undefined ? null : file.startsWith('/') ? file : posix.normalize(posix.join(folder, file));
}

/** The host path of a folder of the container; null if it is not in a volume. */
function hostFolder(path: string, hostOf: ReadonlyMap<string, string>): string | null {
  for (const [container, host] of hostOf) {
    if (path === container) return host;
    if (path.startsWith(`${container}/`)) return posix.join(host, path.slice(container.length));
  }
  return null;
}

function instead(flag: Folder, hasSecretsKey: boolean): string {
  if (flag === 'plugins') return 'to keep them, set "plugins" to a folder of the host';
  const secrets = hasSecretsKey
    ? 'onejob itself decrypts encrypted variables ("secrets" in the config); '
    : 'if they decrypt variables (SECRET_…), set "secrets" in the config, without which onejob refuses such jobs; ';
  return `${secrets}for other hooks, set "hooks" to a folder of the host`;
}

// The command line of `buildkite-agent start`, and its variables. Names of flags and variables:
// `clicommand/agent_start.go` and `clicommand/global.go` of agent v3.137.0.

/** Flags that are kept as variables of the agent. Here and below `!` marks a flag without a value. */
const asVariable = flagsOf(`shell hooks-shell no-pty! no-ssh-keyscan! no-command-eval! no-plugins! no-plugin-validation!
plugins-always-clone-fresh! no-local-hooks! no-git-submodules! allowed-repositories enable-environment-variable-allowlist!
allowed-environment-variables allowed-plugins no-ansi-timestamps! timestamp-lines! strict-single-hooks! redacted-vars
trace-context-encoding tracing-backend tracing-service-name tracing-propagate-traceparent! skip-checkout! checkout-override-mode
git-checkout-flags git-clone-flags git-clone-mirror-flags git-clean-flags git-commit-verification git-fetch-flags
git-sparse-checkout-paths git-sparse-checkout-mode git-mirrors-path git-mirror-checkout-mode git-mirrors-lock-timeout
git-mirrors-skip-update! git-submodule-clone-config git-checkout-timeout git-skip-fetch-existing-commits! checkout-attempts
no-multipart-artifact-upload! experiment verification-failure-behavior additional-hooks-paths`);

/** Flags that onejob makes unnecessary. */
const needless = flagsOf(`disconnect-after-job! disconnect-after-idle-timeout disconnect-after-uptime ping-mode no-color!
health-check-addr log-level log-format debug! reflect-exit-status! no-feature-reporting! sockets-path job-log-path
enable-job-log-tmpfile! write-job-logs-to-stdout! disable-warnings-for disconnect-after-job-timeout no-http2!`);

const others = flagsOf(`job-logs-otlp! tags-from-host! spawn-with-priority! tags-from-ec2-meta-data! tags-from-ec2-tags!
tags-from-ecs-meta-data! tags-from-gcp-labels! fail-on-missing-tags! debug-http! trace-http! metrics-datadog!
metrics-datadog-distributions! debug-signing!`);

/** Flags, and whether they have no value. */
function flagsOf(written: string): ReadonlyMap<string, boolean> {
  return new Map(written.split(/\s+/).map((flag) => [flag.replace('!', ''), flag.endsWith('!')]));
}

/** Flags that are read here, by their variables. */
const flagOf: ReadonlyMap<string, string> = new Map([
  ...`name tags meta-data queue priority token endpoint config spawn ping-mode disconnect-after-job disconnect-after-idle-timeout
disconnect-after-uptime acquire-job tags-from-host`
    .split(/\s+/)
    .map((flag) => [`BUILDKITE_AGENT_${upper(flag)}`, flag] as const),
  ...['hooks-path', 'plugins-path', 'build-path', 'sockets-path'].map((flag) => [`BUILDKITE_${upper(flag)}`, flag] as const),
]);
const listed = new Map([...asVariable, ...needless, ...others]);
const known = new Set([...listed.keys(), ...flagOf.values()]);

/** The variable of the agent for a flag; null if there is none. */
function variableOf(flag: string): string | null {
  if (flag === 'experiment') return 'BUILDKITE_AGENT_EXPERIMENT';
  if (flag === 'verification-failure-behavior') return 'BUILDKITE_AGENT_JOB_VERIFICATION_NO_SIGNATURE_BEHAVIOR';
  return asVariable.has(flag) ? `BUILDKITE_${upper(flag)}` : null;
}

function upper(flag: string): string {
  return flag.toUpperCase().replaceAll('-', '_');
}

type Flag = { readonly name: string; readonly value: string; readonly path: Path };

/**
 * Flags (`--flag=value`, `--flag value`, `--flag`, with one dash or two); whether the command starts an agent; number of words that
 * are neither the program, `start` nor a flag.
 */
function readCommand({ entrypoint, command }: Service['written']) {
  const words = [...shellWords(entrypoint), ...shellWords(command)];
  const before = wordsOf(entrypoint).length;
  const pathOf = (at: number) => (at < before ? ['entrypoint', at] : ['command', ...(Array.isArray(command) ? [at - before] : [])]);
  const flags: Flag[] = [];
  let isStart = false;
  let unknown = 0;
  for (let at = 0; at < words.length; at++) {
    const [word = '', next] = words.slice(at, at + 2);
    const [, written, equals, given = ''] = /^--?([a-z][a-z0-9-]*)(=(.*))?$/s.exec(word) ?? [];
    if (written === undefined) {
      if (word === 'start') isStart = true;
      else if (!/(^|\/)buildkite-agent$/.test(word)) unknown++;
      continue;
    }
    const isAlone = listed.get(written) === true || next === undefined || (next.startsWith('-') && !/^-\d/.test(next));
    const value = equals !== undefined ? given : isAlone ? 'true' : next;
    flags.push({ name: written, value, path: pathOf(at) });
    if (equals === undefined && !isAlone) at++;
  }
  isStart ||= flags.some(({ name }) => known.has(name) && name !== 'config' && name !== 'debug');
  return { flags, isStart, unknown };
}

/** Words of a command, or of a shell script in it that plainly starts an agent. */
function shellWords(written: unknown): readonly string[] {
  const words = wordsOf(written);
  const at = words.findIndex((word, index) => /^-l?c$/.test(word) && /(^|\/)(ba|da|z)?sh$/.test(words[index - 1] ?? ''));
  const script = at < 0 ? undefined : /buildkite-agent\s+start[^;&|]*/.exec(words[at + 1] ?? '')?.[0];
  return script === undefined ? words : wordsOf(script);
}

type Folder = 'hooks' | 'plugins';

/**
 * The meaning of an agent's flags: of its command line, which override those of variables. `tags`: without the queue. `folders`: in
 * the container. `variables`: other flags for the agent. `hostname`: for `%hostname` in a name. `fallback`: the name without a
 * flag.
 */
function readFlags(said: readonly Flag[], command: readonly Flag[], hostname: string, fallback: string, { warn, note }: Service) {
  const flags = [...said.filter(({ name }) => !command.some((flag) => flag.name === name)), ...command];
  const last = (name: string) => flags.findLast((flag) => flag.name === name);
  const tags = flags
    .filter(({ name }) => name === 'tags' || name === 'meta-data')
    .flatMap(({ value, path }) => value.split(',').map((tag) => ({ value: tag.trim(), path })));
  const isQueue = ({ value }: { readonly value: string }) => value.startsWith('queue=');
  const queues = tags.filter(isQueue).map(({ value, path }) => ({ value: value.slice('queue='.length), path }));
  const queue = last('queue') ?? queues[0];
  const second = queues.find(({ value }) => value !== queues[0]?.value);
  if (second !== undefined) warn(second.path, `only the queue "${queue?.value}" is carried over: an agent belongs to one`);
  const token = last('token');
  if (token !== undefined && token.value !== '' && !/^(file|fd):/.test(token.value)) {
    const what = 'put it into the file that the config names, and create a new token if others could read this one';
    warn(token.path, `the token itself is written here: ${what}`);
  }
  const folders = new Map<Folder, string>();
  const variables: Record<string, string> = {};
  for (const { name, value, path } of flags) {
    if (name === 'hooks-path') folders.set('hooks', value);
    else if (name === 'plugins-path') folders.set('plugins', value);
    else if (name === 'build-path') note(path, '--build-path is not carried over: a checkout lives as long as its job');
    else if (name === 'config') warn(path, `--config is not carried over: onejob did not read ${value}`);
    else if (name.startsWith('tags-from')) warn(path, `--${name} is not carried over: list the tags in "tags"`);
    else if (
      !['name', 'tags', 'meta-data', 'queue', 'priority', 'spawn', 'endpoint', 'token'].includes(name) &&
      !needless.has(name)
    ) {
      const variable = variableOf(name);
      if (variable === null || soundsSecret(name) || looksSecret(value)) warn(path, `--${name} is not carried over`);
      else {
        note(path, `--${name} is kept as the variable ${variable}`);
        variables[variable] = value;
      }
    }
  }
  const spawn = last('spawn')?.value ?? '';
  return {
    name: agentName(last('name'), hostname, fallback, warn),
    queue: queueName(queue, warn),
    tags: tags.flatMap((tag) => (tag.value === '' || isQueue(tag) ? [] : [tag.value])),
    priority: priorityOf(last('priority'), warn),
    spawn: /^[1-9]\d?$/.test(spawn) ? Number(spawn) : 1,
    endpoint: last('endpoint')?.value ?? null,
    folders: [...folders],
    hasToken: token !== undefined,
    variables,
  };
}

function queueName(asked: Pick<Flag, 'value' | 'path'> | undefined, warn: Service['warn']): string {
  const written = asked?.value.trim() ?? '';
  // The default of the service (https://buildkite.com/docs/agent/queues).
  if (asked === undefined || written === '') return 'default';
  const queue = written.replaceAll(/[^A-Za-z0-9_.:/@+-]+/g, '-');
  if (queue !== written) warn(asked.path, `the queue "${written}" becomes ${queue}`);
  return queue;
}

/** Fills in placeholders of a name. */
function agentName(flag: Flag | undefined, hostname: string, fallback: string, warn: Service['warn']): string {
  const written = flag?.value ?? fallback;
  const filled = written.replaceAll('%hostname', hostname).replaceAll(/[-_.]?%(spawn|n|random|pid)/g, '');
  const name = nameFrom(filled.replace(/[^A-Za-z0-9_.]+$/, ''), 63, /[^A-Za-z0-9_.-]+/g) || 'agent';
  if (flag !== undefined && name !== written) warn(flag.path, `the name "${written}" becomes ${name}`);
  return name;
}

function priorityOf(flag: Flag | undefined, warn: Service['warn']): number | null {
  const written = flag?.value.trim() ?? '';
  if (flag === undefined || written === '') return null;
  const number = Number(written);
  if (/^-?\d{1,4}$/.test(written) && Math.abs(number) <= 1000) return number;
  warn(flag.path, `the priority "${flag.value}" is not carried over: it is not a whole number from -1000 to 1000`);
  return null;
}

/** Variables with a number of threads; the first that is set becomes `cpu_env`. */
const threads =
  `JULIA_CPU_THREADS OMP_NUM_THREADS JULIA_NUM_THREADS CMAKE_BUILD_PARALLEL_LEVEL MAX_JOBS NUM_CPUS NPROC RAYON_NUM_THREADS GOMAXPROCS
MKL_NUM_THREADS OPENBLAS_NUM_THREADS`.split(/\s+/);

/** `environment` as `flags` of the agent, `all` variables with a value (for devices), the variable for CPUs, and `env` for jobs. */
function readEnvironment({ written, unset, warn }: Service) {
  const env: Record<string, string | number> = {};
  const all = new Map<string, string>();
  const flags: Flag[] = [];
  for (const { key, value, at } of pairsOf(written.environment)) {
    const path = ['environment', at];
    const flag = flagOf.get(key);
    const isOfDevices = deviceVariables.has(key);
    const no = (why: string) => warn(path, `${key} is not carried over: ${why}`);
    if (value === null) {
      if (flag === undefined && !isOfDevices) no('its value comes from the shell that starts Compose');
      continue;
    }
    const shell = unset.get(key);
    if (shell !== undefined && flag === undefined && !isOfDevices) {
      no(`$${shell} in its value comes from the shell that starts Compose`);
      continue;
    }
    all.set(key, value);
    if (value.includes('{name}')) warn(path, `${key}: "{name}" becomes the agent's name in a config`);
    if (flag !== undefined) flags.push({ name: flag === 'meta-data' ? 'tags' : flag, value, path });
    else if (isOfDevices || key === 'NVIDIA_DRIVER_CAPABILITIES' || key === 'NVIDIA_REQUIRE_CUDA') continue;
    else if (!/^[A-Za-z_][A-Za-z0-9_.-]*$/.test(key) || key === '__proto__')
      warn(path, `${JSON.stringify(key)} is not carried over: it is not a valid variable name`);
    // Paths are kept, but an encrypted value may begin with a slash too.
    else if (soundsSecret(key) && value !== '' && (key.startsWith('SECRET_') || !value.startsWith('/')))
      no('its name looks like a secret, and a config must not contain secrets; see "onejob secret"');
    else if (looksSecret(value)) no('its value looks like a secret, and a config must not contain secrets; see "onejob secret"');
    // Digits without quotes are easier to read.
    else env[key] = /^(0|[1-9]\d{0,8})$/.test(value) ? Number(value) : value.includes('\0') ? '' : value;
  }
  const limit = composeNumber(written.cpus);
  const variable = threads.find((name) => /^[1-9]\d{0,2}$/.test(String(env[name] ?? '')));
  const count = Number(env[variable ?? '']);
  if (variable === undefined || (limit !== null && Math.max(1, Math.floor(limit)) !== count)) return { env, all, flags, cpu: null };
  const { [variable]: _, ...rest } = env;
  return { env: rest, all, flags, cpu: { variable, count } };
}
