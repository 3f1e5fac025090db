/** What a Compose service says of its container: image, volumes, limits and rights, as keys of a pool. */
import { posix } from 'node:path';
import { parseDuration } from '../config/units.ts';
import { isMap } from '../config/values.ts';
import { parseVolume } from '../config/volumes.ts';
import { inside, listOf, nameFrom, numberOf, type Plain, pairsOf, type Service, sizeOf, textOf, textsOf } from './agent.ts';

/** The key `image`, and what the image shows of the agent. */
export function readImage({ file: compose, written: { image: finished, build }, read, remark, warn }: Service): {
  readonly image: Plain | null;
  /** Folder that it is built from; null when it is not built. */
  readonly context: string | null;
  readonly hasSecretsKey: boolean;
  /** Whether a Buildkite agent, or hooks of one, are put into it. */
  readonly hasAgent: boolean;
} {
  if (build === undefined || build === null) {
    const image = textOf(finished) || null;
    return { image, hasSecretsKey: false, hasAgent: image !== null && /buildkite/i.test(image), context: null };
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
    const what =
      argument === null
        ? 'what its image is built on is not known either: "base" is a guess, ubuntu:24.04'
        : `"base" is ${argument}`;
    warn(['build'], `${file} was not found, so its packages are not known; ${what}`);
    const image = { base: argument ?? 'ubuntu:24.04', packages: ['git', 'curl'] };
    return { image, hasSecretsKey: false, hasAgent: false, context };
  }
  const { from, packages } = readDockerfile(text, args, (line, instruction) => {
    const plain = instruction.replaceAll(/\s+/g, ' ');
    const message = `${plain.length > 100 ? `${plain.slice(0, 99)}…` : plain}: not carried over`;
    if (inline === null) remark({ file, line, level: 'warning', message });
    else warn(['build', 'dockerfile_inline'], `"dockerfile_inline": ${message}`);
  });
  const base = from ?? argument;
  if (base === null)
    warn(['build'], `what ${file} builds on depends on something that is not known: "base" is a guess, ubuntu:24.04`);
  return {
    // What the agent needs of an image: bash comes with every base, git does not.
    image: { base: base ?? 'ubuntu:24.04', packages: packages.includes('git') ? packages : ['git', ...packages] },
    hasSecretsKey: /\b\S*private\.key\b/.test(text),
    hasAgent: /buildkite-agent/i.test(text),
    context,
  };
}

/** Only served to install the agent from its own repository, or comes with what onejob mounts. */
const notNeeded = new Set(['buildkite-agent', 'apt-transport-https', 'tini', 'dumb-init']);

/** Instructions that change nothing of what is in the image. */
const needless = ['ENTRYPOINT', 'CMD', 'LABEL', 'MAINTAINER', 'STOPSIGNAL', 'SHELL', 'EXPOSE', 'HEALTHCHECK'];

/**
 * What a Dockerfile builds on, null when that cannot be known, and which packages it installs. `args`: of the Compose file; they win
 * over those of the Dockerfile. `left`: is told what else it does.
 */
function readDockerfile(
  text: string,
  args: ReadonlyMap<string, string>,
  left: (line: number, text: string) => void,
): { readonly from: string | null; readonly packages: readonly string[] } {
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

/** With lines that a backslash continues, and without comments. */
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

/**
 * The keys `caches` and `volumes`, and host paths by container path, for what others name by its container path. `name`: of the agent,
 * which becomes `{name}` in host paths.
 */
export function readMounts({ file, root, written, volumes: named, warn, note }: Service, name: string) {
  const caches: string[] = [];
  const volumes: string[] = [];
  const hostOf = new Map<string, string>();
  for (const [at, item] of listOf(written.volumes).entries()) {
    const path = ['volumes', at];
    const mount = isMap(item) ? longForm(item) : shortForm(textOf(item) ?? '');
    if (mount === null) {
      const what = JSON.stringify(isMap(item) ? (item.type ?? item) : item);
      warn(path, `this volume is not carried over: ${what} is no folder of the host`);
      continue;
    }
    const { source, target, readOnly } = mount;
    const bound = bindOf(inside(named, source, 'driver_opts'));
    if (/\/(docker|podman|containerd)\.sock$/.test(source)) {
      warn(path, `${source} is not carried over: with the Engine's socket a job is root of the host`);
      continue;
    }
    if (bound === null && !/^[./~]/.test(source)) {
      if (readOnly) {
        const what = 'what is in it is with the Engine; write a folder of the host';
        warn(path, `the volume "${source}" is not carried over: ${what}`);
      } else {
        caches.push(`${nameFrom(source, 32, /[^A-Za-z0-9_-]/g) || 'cache'}:${target}`);
        note(path, `the volume "${source}" becomes a cache that onejob keeps, which begins empty`);
      }
      continue;
    }
    if (source.startsWith('~')) {
      const what = 'whose home that is depends on who starts it; write the whole path into "caches" or "volumes"';
      warn(path, `${source} is not carried over: ${what}`);
      continue;
    }
    const isRelative = bound === null && !source.startsWith('/');
    const host = bound ?? (isRelative ? posix.resolve(root, posix.dirname(file), source) : source);
    if (isRelative) note(path, `${source} is meant from this folder, so it became ${host}: see that it is so on its host`);
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
  return { caches, volumes, hostOf };
}

/** The agent's name in a path, whole and not as a part of a longer one, as `{name}`. */
function withName(path: string, name: string): string {
  const quoted = name.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
  return path.replaceAll(new RegExp(`(?<![A-Za-z0-9.])${quoted}(?![A-Za-z0-9]|\\.[0-9])`, 'g'), '{name}');
}

interface Mount {
  readonly source: string;
  readonly target: string;
  readonly readOnly: boolean;
}

function shortForm(text: string): Mount | null {
  const [source = '', target = '', ...options] = text.split(':');
  // A drive letter of Windows would be cut at its colon.
  if (source === '' || !target.startsWith('/')) return null;
  return { source, target, readOnly: options.some((option) => option.split(',').includes('ro')) };
}

function longForm({ type, source: src, target: dst, read_only: isReadOnly, ...item }: Record<string, unknown>): Mount | null {
  const [source, target] = [textOf(src ?? item.src), textOf(dst ?? item.dst ?? item.destination)];
  if (source === null || !target?.startsWith('/') || ![undefined, 'bind', 'volume'].some((one) => one === type)) return null;
  return { source, target, readOnly: isReadOnly === true || item.readonly === true };
}

/** The folder that a volume of the file is bound to; null when the Engine keeps it. */
function bindOf(options: unknown): string | null {
  const device = textOf(inside(options, 'device'));
  return device?.startsWith('/') && /bind/.test(textOf(inside(options, 'o')) ?? '') ? device : null;
}

/** Understood elsewhere, or what onejob does anyway. */
const quiet = new Set(
  `build image extends environment env_file command entrypoint volumes devices gpus runtime hostname container_name restart init tty
stdin_open deploy cpus mem_limit shm_size ulimits cap_add security_opt privileged pid tmpfs read_only user network_mode oom_score_adj
stop_grace_period pull_policy scale profiles labels annotations logging stop_signal attach memswap_limit mem_swappiness develop expose
mem_reservation networks group_add pids_limit`.split(/\s+/),
);

/** Why other keys are not carried over. */
const reasons: ReadonlyMap<string, string> = new Map([
  ['depends_on', 'an agent waits for no other service'],
  ['healthcheck', 'onejob watches agents itself'],
  ['ports', 'nothing of an agent can be reached from outside'],
  ['cpuset', 'CPUs are limited by number ("cpus"); "numa: true" in "devices" keeps agents near their cards'],
  ['cap_drop', 'beyond NET_RAW and MKNOD, which agents never have'],
  ['secrets', 'secrets reach jobs through "onejob secret"'],
  ['ipc', 'write "shm_size" for shared memory'],
]);

/** Limits and rights; says what of a service means something and is not carried over. */
export function readLimits(service: Service): Record<string, Plain> {
  const { written, warn, note } = service;
  for (const [key, value] of Object.entries(written)) {
    if (quiet.has(key) || key.startsWith('x-') || value === null || value === undefined) continue;
    warn([key], `"${key}" is not carried over: ${reasons.get(key) ?? 'there is no such key here'}`);
  }
  if (pairsOf(written.labels).length > 0) note(['labels'], 'labels are not carried over: containers have those of onejob');
  if (listOf(written.profiles).length > 0) note(['profiles'], 'it is carried over whatever profile it needs');
  if (listOf(written.group_add).length > 0)
    note(['group_add'], 'groups of GPU nodes are given by onejob; others are not carried over');

  const keys: Record<string, Plain> = {};
  const limits = inside(written.deploy, 'resources', 'limits');
  const cpus = numberOf(written.cpus ?? inside(limits, 'cpus'));
  if (cpus !== null && cpus > 0) keys.cpus = cpus;
  const pids = numberOf(written.pids_limit ?? inside(limits, 'pids'));
  // Compose's words for no limit are 0 and -1.
  if (pids !== null) keys.pids = pids > 0 && pids <= 4_194_304 ? Math.max(32, Math.floor(pids)) : 'none';
  for (const [key, value, path] of [
    ['memory', written.mem_limit ?? inside(limits, 'memory'), 'mem_limit'],
    ['shm_size', written.shm_size, 'shm_size'],
  ] as const) {
    const size = sizeOf(value);
    if (size !== null) keys[key] = size;
    else if (value !== undefined) warn([path], `"${path}" is not carried over: ${JSON.stringify(value)} is no size`);
  }
  if (isMap(written.ulimits)) keys.ulimits = ulimits(written.ulimits, warn);
  const tmpfs = textsOf(written.tmpfs).map((line) => line.split(':'));
  if (tmpfs.length > 0) keys.tmpfs = Object.fromEntries(tmpfs.map(([path = '', options = '']) => [path, options]));
  if (written.read_only === true) keys.read_only = true;
  const user = textOf(written.user);
  if (user !== null && !['root', '0', '0:0'].includes(user)) keys.user = user;
  const oom = numberOf(written.oom_score_adj);
  if (oom !== null) keys.oom_score_adj = oom;
  const grace = textOf(written.stop_grace_period);
  if (grace !== null && parseDuration(grace).ok) keys.stop_grace = grace;
  if (written.pull_policy === 'always' || written.pull_policy === 'never') keys.pull = written.pull_policy;
  return { ...keys, ...rights(service), ...network(service) };
}

function ulimits(written: Readonly<Record<string, unknown>>, warn: Service['warn']): Record<string, Plain> {
  const one = (value: unknown) => (numberOf(value) === -1 ? 'unlimited' : numberOf(value));
  const found: Record<string, Plain> = {};
  for (const [name, value] of Object.entries(written)) {
    const [soft, hard] = isMap(value) ? [one(value.soft), one(value.hard)] : [one(value), one(value)];
    if (soft === null || hard === null) warn(['ulimits', name], `the limit "${name}" is not carried over: it is no number`);
    else found[name] = soft === hard ? soft : { soft, hard };
  }
  return found;
}

function rights({ written, warn, note }: Service): Record<string, Plain> {
  const unsafe: Record<string, Plain> = {};
  if (written.privileged === true) unsafe.privileged = true;
  if (written.pid === 'host') unsafe.pid_host = true;
  else if (written.pid !== undefined) warn(['pid'], `"pid: ${String(written.pid)}" is not carried over`);
  const added = textsOf(written.cap_add).map((name) => name.toUpperCase().replace(/^CAP_/, ''));
  if (added.includes('ALL')) warn(['cap_add'], '"cap_add: ALL" is not carried over; unsafe: { privileged: true } says so openly');
  const named = added.filter((name) => /^[A-Z_]{3,32}$/.test(name) && name !== 'ALL');
  for (const [at, item] of listOf(written.security_opt).entries()) {
    const option = textOf(item) ?? '';
    if (/^seccomp[:=]unconfined$/.test(option)) unsafe.seccomp_unconfined = true;
    else if (!/^no-new-privileges([:=]true)?$/.test(option))
      warn(['security_opt', at], `the security option "${option}" is not carried over`);
  }
  const kept = Object.keys(unsafe).map((one) => `"${one}"`);
  if (kept.length > 0) {
    const key = unsafe.privileged === true ? 'privileged' : unsafe.pid_host === true ? 'pid' : 'security_opt';
    const how = 'is kept, spelled out in "unsafe": it lets a job see or change what is not its own; try without it';
    note([key], `${kept.join(', ')} ${how}`);
  }
  return { ...(named.length > 0 ? { cap_add: named } : {}), ...(kept.length > 0 ? { unsafe } : {}) };
}

function network({ written, warn }: Service): Record<string, Plain> {
  const own = "agents get a bridge of onejob's own";
  const mode = textOf(written.network_mode);
  if (mode !== null && !['host', 'bridge', 'default'].includes(mode))
    warn(['network_mode'], `"network_mode: ${mode}" is not carried over: ${own}`);
  const networks = isMap(written.networks) ? Object.keys(written.networks) : listOf(written.networks);
  if (networks.some((name) => name !== 'default'))
    warn(['networks'], `networks are not carried over: ${own}; "network" takes the name of another`);
  return mode === 'host' ? { network: 'host' } : {};
}
