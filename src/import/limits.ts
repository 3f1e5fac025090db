/** Limits and rights of a Compose service as keys of a pool, and which keys of Compose mean nothing here. */
import { parseDuration } from '../config/units.ts';
import type { Plain } from './agent.ts';
import { isMap, listOf, numberOf, pairsOf, sizeOf, textOf } from './plain.ts';

type Say = (level: 'warning' | 'note', path: readonly (string | number)[], message: string) => void;

/** Understood elsewhere, or what onejob does anyway. */
const quiet = new Set(
  `build image extends environment env_file command entrypoint volumes devices gpus runtime hostname container_name restart init tty
stdin_open deploy cpus mem_limit shm_size ulimits cap_add security_opt privileged pid tmpfs read_only user network_mode oom_score_adj
stop_grace_period pull_policy scale profiles labels annotations logging stop_signal attach memswap_limit mem_swappiness develop expose
mem_reservation networks group_add pids_limit`.split(/\s+/),
);

const others: Readonly<Record<string, string>> = {
  depends_on: 'an agent waits for no other service',
  healthcheck: 'onejob watches agents itself',
  ports: 'nothing of an agent can be reached from outside',
  cpuset: 'CPUs are limited by number ("cpus"); "numa: true" in "devices" keeps agents near their cards',
  cap_drop: 'beyond NET_RAW and MKNOD, which agents never have',
  group_add: 'write "user" with a group',
  secrets: 'secrets reach jobs through "onejob secret"',
  ipc: 'write "shm_size" for shared memory',
};

export function readLimits(service: Readonly<Record<string, unknown>>, say: Say): Record<string, Plain> {
  const keys: Record<string, Plain> = {};
  const deploy = isMap(service.deploy) && isMap(service.deploy.resources) ? service.deploy.resources.limits : undefined;
  const limits = isMap(deploy) ? deploy : {};
  const cpus = numberOf(service.cpus ?? limits.cpus);
  if (cpus !== null && cpus > 0) keys.cpus = cpus;
  const pids = numberOf(service.pids_limit ?? limits.pids);
  // Compose's words for no limit are 0 and -1.
  if (pids !== null) keys.pids = pids > 0 && pids <= 4_194_304 ? Math.max(32, Math.floor(pids)) : 'none';
  for (const [key, value, path] of [
    ['memory', service.mem_limit ?? limits.memory, 'mem_limit'],
    ['shm_size', service.shm_size, 'shm_size'],
  ] as const) {
    const size = sizeOf(value);
    if (size !== null) keys[key] = size;
    else if (value !== undefined) say('warning', [path], `"${path}" is not carried over: ${JSON.stringify(value)} is no size`);
  }
  if (isMap(service.ulimits)) keys.ulimits = ulimits(service.ulimits, say);
  const tmpfs = listOf(service.tmpfs).flatMap((item) => textOf(item) ?? []);
  if (tmpfs.length > 0) keys.tmpfs = Object.fromEntries(tmpfs.map((line) => [line.split(':')[0] ?? '', line.split(':')[1] ?? '']));
  if (service.read_only === true) keys.read_only = true;
  const user = textOf(service.user);
  if (user !== null && user !== 'root' && user !== '0' && user !== '0:0') keys.user = user;
  const oom = numberOf(service.oom_score_adj);
  if (oom !== null) keys.oom_score_adj = oom;
  const grace = textOf(service.stop_grace_period);
  if (grace !== null && parseDuration(grace).ok) keys.stop_grace = grace;
  if (service.pull_policy === 'always' || service.pull_policy === 'never') keys.pull = service.pull_policy;
  const unsafe = rights(service, keys, say);
  if (Object.keys(unsafe).length > 0) keys.unsafe = unsafe;
  network(service, keys, say);
  return keys;
}

function ulimits(written: Readonly<Record<string, unknown>>, say: Say): Record<string, Plain> {
  const one = (value: unknown) => (numberOf(value) === -1 ? 'unlimited' : numberOf(value));
  const found: Record<string, Plain> = {};
  for (const [name, value] of Object.entries(written)) {
    const [soft, hard] = isMap(value) ? [one(value.soft), one(value.hard)] : [one(value), one(value)];
    if (soft === null || hard === null)
      say('warning', ['ulimits', name], `the limit "${name}" is not carried over: it is no number`);
    else found[name] = soft === hard ? soft : { soft, hard };
  }
  return found;
}

function rights(service: Readonly<Record<string, unknown>>, keys: Record<string, Plain>, say: Say): Record<string, Plain> {
  const unsafe: Record<string, Plain> = {};
  if (service.privileged === true) unsafe.privileged = true;
  if (service.pid === 'host') unsafe.pid_host = true;
  else if (service.pid !== undefined) say('warning', ['pid'], `"pid: ${String(service.pid)}" is not carried over`);
  const added = listOf(service.cap_add).flatMap((item) => textOf(item) ?? []);
  if (added.some((name) => /^(CAP_)?ALL$/i.test(name)))
    say('warning', ['cap_add'], '"cap_add: ALL" is not carried over; unsafe: { privileged: true } says so openly');
  const named = added.filter((name) => /^(CAP_)?[A-Z_]{3,32}$/i.test(name) && !/^(CAP_)?ALL$/i.test(name));
  if (named.length > 0) keys.cap_add = named.map((name) => name.toUpperCase().replace(/^CAP_/, ''));
  for (const [at, item] of listOf(service.security_opt).entries()) {
    const option = textOf(item) ?? '';
    if (/^seccomp[:=]unconfined$/.test(option)) unsafe.seccomp_unconfined = true;
    else if (!/^no-new-privileges([:=]true)?$/.test(option))
      say('warning', ['security_opt', at], `the security option "${option}" is not carried over`);
  }
  if (Object.keys(unsafe).length > 0) {
    const key = unsafe.privileged === true ? 'privileged' : unsafe.pid_host === true ? 'pid' : 'security_opt';
    const how = 'is kept, spelled out in "unsafe": it lets a job see or change what is not its own; try without it';
    say(
      'note',
      [key],
      `${Object.keys(unsafe)
        .map((one) => `"${one}"`)
        .join(', ')} ${how}`,
    );
  }
  return unsafe;
}

function network(service: Readonly<Record<string, unknown>>, keys: Record<string, Plain>, say: Say): void {
  const mode = textOf(service.network_mode);
  if (mode === 'host') keys.network = 'host';
  else if (mode !== null && mode !== 'bridge' && mode !== 'default')
    say('warning', ['network_mode'], `"network_mode: ${mode}" is not carried over: agents get a bridge of onejob's own`);
  const networks = isMap(service.networks) ? Object.keys(service.networks) : listOf(service.networks);
  if (networks.some((name) => name !== 'default'))
    say(
      'warning',
      ['networks'],
      `networks are not carried over: agents get a bridge of onejob's own; "network" takes the name of another`,
    );
}

/** Says what of a service means something and is not carried over. */
export function sayLeft(service: Readonly<Record<string, unknown>>, say: Say): void {
  for (const [key, value] of Object.entries(service)) {
    if (quiet.has(key) || key.startsWith('x-') || value === null || value === undefined) continue;
    const why = Object.hasOwn(others, key) ? others[key] : undefined;
    say('warning', [key], `"${key}" is not carried over${why === undefined ? ': there is no such key here' : `: ${why}`}`);
  }
  if (pairsOf(service.labels).length > 0) say('note', ['labels'], 'labels are not carried over: containers have those of onejob');
  if (listOf(service.profiles).length > 0) say('note', ['profiles'], 'it is carried over whatever profile it needs');
  if (listOf(service.group_add).length > 0)
    say('note', ['group_add'], 'groups of GPU nodes are given by onejob; others are not carried over');
}
