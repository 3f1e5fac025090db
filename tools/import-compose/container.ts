/** Image, volumes, limits and rights of a Compose service, as keys of a pool. */
import { posix } from 'node:path';
import { parseDuration } from '../../src/base/units.ts';
import { parseVolume } from '../../src/schema/volumes.ts';
import {
  composeNumber,
  composeSize,
  insideContainer,
  isMap,
  isTrue,
  listOf,
  nameFrom,
  type Plain,
  type PlainMap,
  pairsOf,
  type Service,
  textOf,
  textsOf,
} from './agent.ts';

/** The key `image`; the folder it is built from, or null; whether it contains a private key for secrets, or a Buildkite agent. */
export function readImage({ file: compose, written: { image: finished, build }, read, remark, warn }: Service) {
  if (build === undefined || build === null) {
    const image = textOf(finished);
    return { image, context: null, hasSecretsKey: false, hasAgent: /buildkite/i.test(image ?? '') };
  }
  const written = isMap(build) ? build : { context: build };
  const context = posix.join(posix.dirname(compose), textOf(written.context) ?? '.');
  const args = new Map(pairsOf(written.args).flatMap(({ key, value }) => (value === null ? [] : [[key, value] as const])));
  const [, argument = null] =
    [...args].find(([key]) => /^base(_?image)?$/i.test(key)) ?? [...args].find(([key]) => /base|image|from/i.test(key)) ?? [];
  const file = posix.join(context, textOf(written.dockerfile) ?? 'Dockerfile');
  const inline = textOf(written.dockerfile_inline);
  const text = inline ?? read(file);
  if (text === null) {
    const guess = 'the base of its image is not known either: "base" is a guess, ubuntu:24.04';
    const what = argument === null ? guess : `"base" is ${argument}`;
    warn(['build'], `${file} was not found, so its packages are not known; ${what}`);
    const image = { base: argument ?? 'ubuntu:24.04', packages: ['git', 'curl'] };
    return { image, context, hasSecretsKey: false, hasAgent: false };
  }
  const { from, packages } = readDockerfile(text, args, (line, instruction) => {
    const plain = instruction.replaceAll(/\s+/g, ' ');
    const message = `${plain.length > 100 ? `${plain.slice(0, 99)}…` : plain}: not carried over`;
    if (inline === null) remark({ file, line, level: 'warning', message });
    else warn(['build', 'dockerfile_inline'], `"dockerfile_inline": ${message}`);
  });
  const base = from ?? argument;
  if (base === null) warn(['build'], `the base image of ${file} depends on something unknown: "base" is a guess, ubuntu:24.04`);
  return {
    // The agent needs bash, which every base has, and git.
    image: { base: base ?? 'ubuntu:24.04', packages: packages.includes('git') ? packages : ['git', ...packages] },
    context,
    hasSecretsKey: /\b\S*private\.key\b/.test(text),
    hasAgent: /buildkite-agent/i.test(text),
  };
}

/** Packages that only served to install the agent, or that onejob brings. */
const notNeeded = new Set(['buildkite-agent', 'apt-transport-https', 'tini', 'dumb-init']);

/** Instructions that do not change the content of the image. */
const needless = ['ENTRYPOINT', 'CMD', 'LABEL', 'MAINTAINER', 'STOPSIGNAL', 'SHELL', 'EXPOSE', 'HEALTHCHECK'];

/**
 * The base of a Dockerfile, null if unknown, and the packages that it installs. `args`: of the Compose file; they override those of
 * the Dockerfile. `left`: gets every other instruction.
 */
function readDockerfile(text: string, args: ReadonlyMap<string, string>, left: (line: number, text: string) => void) {
  const variables = new Map<string, string>();
  const stages = new Map<string, string | null>();
  const packages = new Set<string>();
  let base: string | null = null;
  for (const { line, word, rest } of instructions(text)) {
    if (word === 'ARG') {
      const [, name = '', , value] = /^([A-Za-z_]\w*)(=(.*))?$/s.exec(rest) ?? [];
      const given = args.get(name) ?? value?.trim().replace(/^(["'])(.*)\1$/s, '$2');
      if (given !== undefined) variables.set(name, given);
    } else if (word === 'FROM') {
      const [, from = '', alias] = /^(?:--\S+\s+)*(\S+)(?:\s+as\s+(\S+))?/i.exec(rest) ?? [];
      const image = from.replaceAll(
        /\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))/g,
        (whole, braced?: string, other?: string, plain?: string) => variables.get(braced ?? plain ?? '') ?? other ?? whole,
      );
      base = stages.get(image.toLowerCase()) ?? (image === '' || image.includes('$') ? null : image);
      if (alias !== undefined) stages.set(alias.toLowerCase(), base);
      packages.clear();
    } else if (word === 'RUN') {
      const { found, isAll } = installed(rest);
      for (const one of found) packages.add(one);
      if (!isAll && !/buildkite/i.test(rest)) left(line, `RUN ${rest}`);
    } else if (!needless.includes(word) && !/private\.key|buildkite/i.test(rest)) left(line, `${word} ${rest}`);
  }
  return { from: base, packages: [...packages].filter((one) => !notNeeded.has(one)) };
}

/** Joins continued lines, and skips comments. */
function instructions(text: string): { line: number; word: string; rest: string }[] {
  const found: { line: number; word: string; rest: string }[] = [];
  let before = '';
  let line = 0;
  for (const [at, raw] of text.split(/\r?\n/).entries()) {
    if (/^\s*#/.test(raw) || (before === '' && raw.trim() === '')) continue;
    const part = raw.replace(/\\\s*$/, ' ');
    if (before === '') line = at + 1;
    before += part;
    if (part !== raw) continue;
    const [, word = '', rest = ''] = /^\s*(\w+)\s*(.*)$/s.exec(before) ?? [];
    found.push({ line, word: word.toUpperCase(), rest: rest.trim() });
    before = '';
  }
  return found;
}

/** Packages that a `RUN` installs, and whether it does nothing else. */
function installed(command: string): { found: string[]; isAll: boolean } {
  const found: string[] = [];
  let isAll = true;
  for (const part of command.split(/&&|;|\|\||\n/)) {
    const words = part.split(/\s+/).filter((word) => !/^[A-Z_]+=/.test(word) && word !== 'sudo' && word !== '');
    const [tool = '', ...rest] = words;
    if (/^(apt-get|apt|dnf|yum|microdnf|apk|zypper)$/.test(tool)) {
      const at = rest.findIndex((word) => word === 'install' || word === 'add');
      const names = at < 0 ? [] : rest.slice(at + 1).filter((word) => !word.startsWith('-'));
      const good = names.filter((name) => /^[a-z0-9][a-z0-9+.:=~_-]*$/i.test(name));
      if (good.length < names.length) isAll = false;
      found.push(...good);
    } else if (tool !== '' && !/^(rm|true|:|set|echo)$/.test(tool)) isAll = false;
  }
  return { found, isAll };
}

/** The keys `caches` and `volumes`, and host paths by container path. `name`: of the agent, `{name}` in host paths. */
export function readMounts({ file, root, written, volumes: named, warn, note }: Service, name: string) {
  const caches: string[] = [];
  const volumes: string[] = [];
  const hostOf = new Map<string, string>();
  for (const [at, item] of listOf(written.volumes).entries()) {
    const path = ['volumes', at];
    const mount = mountOf(item);
    if (mount === null) {
      const what = JSON.stringify(isMap(item) ? (item.type ?? item) : item);
      warn(path, `this volume is not carried over: ${what} is not a folder of the host`);
      continue;
    }
    const { source, target, readOnly, lost } = mount;
    for (const what of lost) warn(path, `${what} ${source} is not carried over`);
    const bound = bindOf(insideContainer(named, source, 'driver_opts'));
    const isNamed = bound === null && !/^[./~]/.test(source);
    const isRelative = bound === null && !source.startsWith('/');
    if (/\/(docker|podman|containerd)\.sock$/.test(source))
      warn(path, `${source} is not carried over: with the Engine's socket, a job is root on the host`);
    else if (isNamed && readOnly) {
      const what = 'the Engine keeps its content; use a folder of the host';
      warn(path, `the volume "${source}" is not carried over: ${what}`);
    } else if (isNamed) {
      caches.push(`${nameFrom(source, 32, /[^A-Za-z0-9_-]/g) || 'cache'}:${target}`);
      note(path, `the volume "${source}" becomes a cache that onejob keeps; it starts empty`);
    } else if (source.startsWith('~')) {
      const what = 'the home directory depends on the user who starts it; write the whole path in "caches" or "volumes"';
      warn(path, `${source} is not carried over: ${what}`);
    } else {
      const host = bound ?? (isRelative ? posix.resolve(root, posix.dirname(file), source) : source);
      if (isRelative)
        note(path, `${source} is relative to this folder, so it became ${host}: check that this is right on its host`);
      const general = withName(host, name);
      const isHome = /^\/(root|home\/[^/]+)\/?$/.test(target);
      const isCache = !readOnly && (isHome || general !== host);
      const line = `${general}:${target}${isCache || readOnly ? '' : ':rw'}`;
      const parsed = parseVolume(line, isCache ? 'cache' : 'volume');
      if (parsed.ok) {
        hostOf.set(posix.normalize(target).replace(/\/$/, ''), host);
        (isCache ? caches : volumes).push(line);
      } else warn(path, `this volume is not carried over: ${parsed.why}`);
    }
  }
  return { caches, volumes, hostOf };
}

/** Replaces the agent's name in a path, but not as a part of a longer name, by `{name}`. */
function withName(path: string, name: string): string {
  const quoted = name.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
  return path.replaceAll(new RegExp(`(?<![A-Za-z0-9.])${quoted}(?![A-Za-z0-9]|\\.[0-9])`, 'g'), '{name}');
}

/** A volume in its short or long form; null if it is not a folder or has no source. */
function mountOf(item: unknown) {
  // A drive letter of Windows would be cut at its colon.
  const [from, to, ...options] = (textOf(item) ?? '').split(':');
  const isReadOnly = options.some((option) => option.split(',').includes('ro'));
  const long: Record<string, unknown> = isMap(item) ? item : { source: from, target: to, read_only: isReadOnly };
  const [source, target] = [textOf(long.source ?? long.src), textOf(long.target ?? long.dst ?? long.destination)];
  if (!source || !target?.startsWith('/') || !/^(bind|volume)$/.test(String(long.type ?? 'bind'))) return null;
  return { source, target, readOnly: isTrue(long.read_only ?? long.readonly), lost: lostOf(long, options.join(',').split(',')) };
}

/** Names of options of a mount that there are none for here. */
function lostOf(long: Readonly<Record<string, unknown>>, options: readonly string[]): string[] {
  const short = options.filter((option) => !['', 'ro', 'rw'].includes(option)).map((option) => `the mount option "${option}" of`);
  const keys = ['bind', 'volume', 'consistency'].filter((key) => {
    const found = long[key];
    // Folders of the host are made in any case.
    const names = isMap(found) ? Object.keys(found).filter((name) => name !== 'create_host_path') : [];
    return names.length > 0 || textOf(found) !== null;
  });
  return [...short, ...keys.map((key) => `"${key}" of the volume`)];
}

/** The folder that a volume is bound to; null if the Engine keeps it. */
function bindOf(options: unknown): string | null {
  const device = textOf(insideContainer(options, 'device'));
  return device?.startsWith('/') && /bind/.test(textOf(insideContainer(options, 'o')) ?? '') ? device : null;
}

/** Keys that are read elsewhere, or that onejob handles anyway. */
const quiet = new Set(
  `build image extends environment env_file command entrypoint volumes devices gpus runtime hostname container_name restart init tty
stdin_open deploy cpus mem_limit shm_size ulimits cap_add security_opt privileged pid tmpfs read_only user network_mode oom_score_adj
stop_grace_period pull_policy scale profiles labels annotations logging stop_signal attach develop expose networks group_add pids_limit`.split(
    /\s+/,
  ),
);

/** Why other keys are not carried over. */
const reasons: ReadonlyMap<string, string> = new Map([
  ['depends_on', 'an agent does not wait for other services'],
  ['healthcheck', 'onejob monitors agents itself'],
  ['ports', 'agents have no ports that can be reached from outside'],
  ['cpuset', 'CPUs are limited by number ("cpus"); "numa: true" in "devices" keeps agents near their cards'],
  ['cap_drop', 'beyond NET_RAW, MKNOD and AUDIT_WRITE, which agents never have'],
  ['secrets', 'secrets reach jobs through "onejob secret"'],
  ['memswap_limit', '"memory" is the limit, and agents have no swap'],
  ['mem_reservation', '"memory" is a limit, and nothing is reserved'],
  ['ipc', 'write "shm_size" for shared memory'],
]);

/** Fewer processes than an agent and a small job need. */
const leastPids = 32;

/** Limits and rights, null for what is not limited. Reports keys that are not carried over. */
export function readLimits({ written, warn, note }: Service) {
  for (const [key, value] of Object.entries(written)) {
    if (quiet.has(key) || key.startsWith('x-') || value === null || value === undefined) continue;
    warn([key], `"${key}" is not carried over: ${reasons.get(key) ?? 'there is no such key here'}`);
  }
  if (pairsOf(written.labels).length > 0) note(['labels'], 'labels are not carried over: containers get the labels of onejob');
  if (listOf(written.profiles).length > 0) note(['profiles'], 'it is carried over regardless of its profiles');
  if (listOf(written.group_add).length > 0)
    note(['group_add'], 'onejob sets the groups of GPU nodes; other groups are not carried over');
  const added = textsOf(written.cap_add).map((name) => name.toUpperCase().replace(/^CAP_/, ''));
  if (added.includes('ALL')) warn(['cap_add'], '"cap_add: ALL" is not carried over; use unsafe: { privileged: true } instead');
  const own = "agents get a bridge of onejob's own";
  const mode = textOf(written.network_mode);
  if (mode !== null && !['host', 'bridge', 'default'].includes(mode))
    warn(['network_mode'], `"network_mode: ${mode}" is not carried over: ${own}`);
  const networks = isMap(written.networks) ? Object.keys(written.networks) : listOf(written.networks);
  if (networks.some((name) => name !== 'default'))
    warn(['networks'], `networks are not carried over: ${own}; set "network" to use another`);

  const limits = insideContainer(written.deploy, 'resources', 'limits');
  const size = (key: string, value: unknown): string | null => {
    const found = composeSize(value);
    if (found === null && value !== undefined) warn([key], `"${key}" is not carried over: ${JSON.stringify(value)} is not a size`);
    return found;
  };
  const number = (key: string, value: unknown): number | null => {
    const found = composeNumber(value);
    if (found === null && value !== undefined && value !== null)
      warn([key], `"${key}" is not carried over: ${JSON.stringify(value)} is not a number`);
    return found;
  };
  const reserved = insideContainer(written.deploy, 'resources', 'reservations');
  if (insideContainer(reserved, 'cpus') !== undefined || insideContainer(reserved, 'memory') !== undefined)
    warn(
      ['deploy'],
      'reservations of CPUs and memory are not carried over: "cpus" and "memory" are limits, and nothing is reserved',
    );
  const cpus = number('cpus', written.cpus ?? insideContainer(limits, 'cpus')) ?? 0;
  const pids = number('pids_limit', written.pids_limit ?? insideContainer(limits, 'pids'));
  if (pids !== null && pids > 0 && pids < leastPids)
    warn(['pids_limit'], `"pids_limit: ${pids}" becomes ${leastPids}, the least that an agent needs`);
  const user = textOf(written.user) ?? 'root';
  const grace = textOf(written.stop_grace_period) ?? '';
  const duration = parseDuration(grace);
  if (grace !== '' && !duration.ok) warn(['stop_grace_period'], `"stop_grace_period" is not carried over: ${duration.why}`);
  return {
    cpus: cpus > 0 ? cpus : null,
    // Compose's words for no limit are 0 and -1.
    pids: pids === null ? null : pids > 0 && pids <= 4_194_304 ? Math.max(leastPids, Math.floor(pids)) : 'none',
    memory: size('mem_limit', written.mem_limit ?? insideContainer(limits, 'memory')),
    shm_size: size('shm_size', written.shm_size),
    ulimits: isMap(written.ulimits) ? ulimits(written.ulimits, warn) : null,
    tmpfs: Object.fromEntries(textsOf(written.tmpfs).map((line) => [line.split(':')[0] ?? '', line.split(':')[1] ?? ''])),
    read_only: isTrue(written.read_only) ? true : null,
    user: ['root', '0', '0:0'].includes(user) ? null : user,
    oom_score_adj: composeNumber(written.oom_score_adj),
    stop_grace: duration.ok ? grace : null,
    pull: ['always', 'never'].find((policy) => policy === written.pull_policy) ?? null,
    cap_add: added.filter((name) => /^[A-Z_]{3,32}$/.test(name) && name !== 'ALL'),
    unsafe: unsafe({ written, warn, note }),
    network: mode === 'host' ? mode : null,
  };
}

function ulimits(written: Readonly<Record<string, unknown>>, warn: Service['warn']): Record<string, Plain> {
  const one = (value: unknown) => (composeNumber(value) === -1 ? 'unlimited' : composeNumber(value));
  const found: Record<string, Plain> = {};
  for (const [name, value] of Object.entries(written)) {
    const [soft, hard] = isMap(value) ? [one(value.soft), one(value.hard)] : [one(value), one(value)];
    if (soft === null || hard === null) warn(['ulimits', name], `the limit "${name}" is not carried over: it is not a number`);
    else found[name] = soft === hard ? soft : { soft, hard };
  }
  return found;
}

/** Rights that weaken the sandbox. */
function unsafe({ written, warn, note }: Pick<Service, 'written' | 'warn' | 'note'>): PlainMap {
  const kept: Record<string, Plain> = {};
  if (isTrue(written.privileged)) kept.privileged = true;
  if (written.pid === 'host') kept.pid_host = true;
  else if (written.pid !== undefined) warn(['pid'], `"pid: ${String(written.pid)}" is not carried over`);
  for (const [at, item] of listOf(written.security_opt).entries()) {
    const option = textOf(item) ?? '';
    if (/^seccomp[:=]unconfined$/.test(option)) kept.seccomp_unconfined = true;
    else if (!/^no-new-privileges([:=]true)?$/.test(option))
      warn(['security_opt', at], `the security option "${option}" is not carried over`);
  }
  const names = Object.keys(kept).map((one) => `"${one}"`);
  const key = kept.privileged === true ? 'privileged' : kept.pid_host === true ? 'pid' : 'security_opt';
  const how = 'is kept, spelled out in "unsafe": it lets a job see or change things outside its sandbox; try without it';
  if (names.length > 0) note([key], `${names.join(', ')} ${how}`);
  return kept;
}
