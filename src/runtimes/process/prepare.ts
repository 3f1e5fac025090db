/** Makes a sandbox: first the intent, then its folders, then the supervisor that starts it. */
import { type ChildProcess, spawn } from 'node:child_process';
import { hash } from 'node:crypto';
import { once } from 'node:events';
import { statSync } from 'node:fs';
import { chmod, chown, lstat, mkdir, open, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, messageOf, OnejobError } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Recipe, SandboxSpec } from '../../ports/runtime.ts';
import { lookAt } from '../../system/file-server.ts';
import { markVariable, ownerVariable } from '../../system/process-identity.ts';
import { isFound } from '../../system/real-path.ts';
import { capsOf, gateNodes, nodesOf, openFilesForDevices, readMigMinors, visibleDevices } from '../devices.ts';
import { gateScript } from '../gate.ts';
import { placedOf } from '../mounts.ts';
import { claimUid } from '../uids.ts';
import { accounts, asUser, bubblewrapArgs } from './bubblewrap.ts';
import { killFile, makeCgroups, supervisorGroup } from './cgroup.ts';
import { type Intent, makeFolder } from './folder.ts';
import type { ProcessHost } from './host.ts';
import { networkFile, networkScript, uplink } from './network.ts';
import { searchPath } from './programs.ts';
import { filterLoader } from './seccomp.ts';
import { supervisorScript } from './supervisor.ts';

/** Of a sandbox made by bubblewrap: the folders of this host that it must have, as JSON. */
export const placedFile = 'placed';

/** Bytes of each output stream that are kept until they are read, the newest. */
const outputLimit = 128 * 1024 * 1024;

/** What sandboxes of this recipe are made from: the recipe, the isolation, and the boot. */
export function processFingerprint(host: ProcessHost, recipe: Recipe): string {
  return hash('sha256', JSON.stringify([recipe, host.mode, host.filter !== null, host.network.own, host.boot])).slice(0, 32);
}

/** Refuses a recipe of which a process would ignore a part. @throws OnejobError E_RECIPE */
export function checkRecipe(host: ProcessHost, recipe: Recipe): void {
  const refuse = (what: string): never => {
    const hint = 'Remove it, or set "runtime: docker" for this pool.';
    throw new OnejobError('E_RECIPE', `A sandbox on the process runtime cannot have ${what}.`, { hint });
  };
  if (!['default', 'host', 'none'].includes(recipe.network)) refuse(`network "${recipe.network}", only "host" or "none"`);
  if (recipe.network === 'none' && host.mode === 'plain') refuse('network "none" without bubblewrap');
  if (recipe.user !== null) refuse(`user "${recipe.user}": every agent has a user of its own`);
  if (recipe.capAdd.length > 0) refuse(`capabilities (${recipe.capAdd.join(', ')})`);
  for (const [name, wanted] of Object.entries(recipe.unsafe)) if (wanted) refuse(`"unsafe.${name}"`);
  if (host.mode === 'plain') {
    const moved = recipe.mounts.find((mount) => mount.host !== mount.container && mount.variable === null);
    if (moved !== undefined) refuse(`${moved.host} at ${moved.container} without bubblewrap`);
  }
  const closed = host.mode === 'bubblewrap' ? recipe.mounts.find((mount) => isReadOnly(mount.container)) : undefined;
  if (closed !== undefined) refuse(`${closed.host} at ${closed.container}, inside a read-only folder of the host`);
}

/** @throws OnejobError E_MOUNT_MISSING, E_MOUNT_AWAY */
export async function checkFolders({ mounts }: Pick<Recipe, 'mounts'>): Promise<void> {
  const looks = await lookAt(mounts.map(({ host }) => host));
  for (const { host, container, cache } of mounts) {
    const look = looks.get(host);
    if (look === undefined || look.exists === true) continue;
    const key = cache === null ? 'volumes' : 'caches';
    if (look.real === null)
      throw new OnejobError('E_MOUNT_AWAY', `Cannot mount ${host} at ${container}: its file server does not answer.`, {
        hint: `Check the server and the mount. If it is gone for good, remove the path from "${key}".`,
        retry: true,
      });
    const message = `Cannot mount ${host} at ${container}: the file or folder does not exist on this host.`;
    throw new OnejobError('E_MOUNT_MISSING', message, { hint: `Create it, or fix the path under "${key}".` });
  }
}

/** Whether the path does not exist in a sandbox and cannot be created. */
function isReadOnly(container: string): boolean {
  return /^\/(usr|opt|s?bin|lib\w*|proc|dev|nix|gnu)\//.test(container) && isFound(container) === false;
}

/**
 * Creates and starts a new sandbox. Resolves when its supervisor has started.
 * @throws OnejobError, for example E_DEVICES_GRANTED before anything is created
 */
export async function makeSandbox(host: ProcessHost, spec: SandboxSpec, progress: (line: string) => void): Promise<void> {
  const { recipe, agent, pool, slot } = spec;
  const grant = grantDevices(host, spec);
  const bubblewrap = host.mode === 'bubblewrap';
  const final = join(host.at.agents, agent);
  const uid = host.root ? await claimUid(final) : null;
  const groups = makeCgroups(host.cgroups, agent, recipe);
  for (const line of groups.missing) progress(line);
  // Another user cannot pass through the closed state directory, so without mounts its files are elsewhere.
  const files = bubblewrap || uid === null ? final : join(host.openDir, agent);
  const { owner, mode, boot } = host;
  const made = { boot, fingerprint: processFingerprint(host, recipe), mode, uid, files, cgroups: groups.paths };
  const folder = await makeFolder(host.at, { owner, agent, pool, slot, ...made });
  if (files !== folder) await makeOpen(host.openDir);
  await makeFiles(files, uid, bubblewrap);
  const gate = ['/bin/sh', '-c', gateScript(agent, grant.gate)];
  const job = await confined(host, spec, { uid, folder, files, grant, args: 'args', status: 'status' }, gate);
  const { uplink: own } = job;
  const script = supervisorScript({
    ...job,
    uid,
    network:
      own === null ? null : (inside, failed) => networkScript({ root: host.root, uplink: own, file: networkFile }, inside, failed),
    exitFile: join(host.at.exits, agent),
    outputLimit,
    ownGroup: supervisorGroup(host.cgroups),
    cgroups: groups.paths,
    killFile: killFile(groups.paths),
    beforeCode: [],
    oomScoreAdj: recipe.oomScoreAdj,
  });
  if (bubblewrap && recipe.mounts.length > 0)
    await writeFile(join(folder, placedFile), JSON.stringify(placedOf(spec)), { mode: 0o600 });
  await writeFile(join(folder, 'run.sh'), script, { mode: 0o600 });
  await start(folder, host, agent);
}

/** Where a sandbox keeps its files. */
export interface SandboxPlace extends Pick<Intent, 'uid' | 'files'> {
  readonly folder: string;
  readonly grant: ProcessGrant;
  /** Files of this folder: what bubblewrap is told, and where it reports its status. */
  readonly args: string;
  readonly status: string;
}

/**
 * How to run `program` in a sandbox, for a shell whose current folder is the sandbox's: the command, its folder, and descriptors to
 * open for it. Writes the files that it reads.
 */
export async function confined(host: ProcessHost, spec: SandboxSpec, place: SandboxPlace, program: readonly string[]) {
  const { recipe } = spec;
  const { uid, folder, files, grant, args, status } = place;
  const bubblewrap = host.mode === 'bubblewrap';
  const env = environment(spec, files, bubblewrap, grant);
  // Not for a network that the owner has chosen.
  const own = host.network.own && recipe.network === 'default' ? uplink() : null;
  if (own?.resolvConf != null) await writeFile(join(folder, 'resolv.conf'), own.resolvConf, { mode: 0o644 });
  if (bubblewrap) {
    const names = own?.resolvConf == null ? [] : ['--ro-bind', `${folder}/resolv.conf`, '/etc/resolv.conf'];
    const options = bubblewrapArgs(host, spec, { env, uid, folder, devices: deviceArgs(grant), names });
    const { passwd, group } = accounts(uid);
    await Promise.all([
      writeFile(join(folder, args), options.map((word) => `${word}\0`).join('')),
      writeFile(join(folder, 'passwd'), passwd, { mode: 0o644 }),
      writeFile(join(folder, 'group'), group, { mode: 0o644 }),
    ]);
  }
  const filter = join(folder, 'filter');
  if (host.filter !== null) await writeFile(filter, host.filter);
  const confine = host.filter === null ? [] : filterLoader(process.arch, filter);
  const limits = recipe.ulimits.map(({ name, soft, hard }) => `--${name}=${soft}:${hard}`);
  const isGiven = (limit: string): boolean => recipe.ulimits.some(({ name }) => name === limit);
  if (spec.devices.length > 0 && !isGiven('nofile')) limits.push(`--nofile=${openFilesForDevices()}`);
  const become = [...processLimit(host, recipe), ...(uid === null ? [] : asUser(uid, grant.groups))];
  const variables = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  // An empty environment otherwise, and its own session, so that ending it does not end the supervisor.
  const plain = ['setsid', ...confine, ...become, 'env', '-i', ...variables, ...program];
  return {
    uplink: own,
    command: [
      ...(spec.cpuset === undefined ? [] : ['taskset', '-c', spec.cpuset]),
      ...(limits.length === 0 ? [] : ['prlimit', ...limits, '--']),
      // Bubblewrap reads its options from descriptor 4. As root, `become` changes the user inside.
      ...(bubblewrap ? ['bwrap', '--args', '4', '--', ...become, ...program] : plain),
    ],
    cwd: bubblewrap ? null : join(files, 'work'),
    cores: isGiven('core'),
    open: bubblewrap ? [`4<${args}`, `5>${status}`, ...(host.filter === null ? [] : ['6<filter'])] : [],
  };
}

/** A limit without a control group. Linux counts by user, and since 5.14 by user namespace, so the job needs its own. */
function processLimit({ processLimit }: ProcessHost, { pids, ulimits }: Recipe): readonly string[] {
  if (processLimit !== 'rlimit' || pids === null || ulimits.some(({ name }) => name === 'nproc')) return [];
  return ['prlimit', `--nproc=${pids}`, '--'];
}

async function start(folder: string, host: ProcessHost, agent: AgentId): Promise<void> {
  const { at, clock } = host;
  const child = await startDetached(host, folder, agent, ['./run.sh', agent]);
  // Touching the file reports a death without an exit code to those who watch the exits.
  child.once('exit', () => {
    const now = clock.wall() / 1_000;
    utimes(join(at.exits, agent), now, now).catch(() => {});
  });
}

/** Starts a shell in the agent's folder that outlives the manager. @throws OnejobError E_SPAWN (retry) */
export async function startDetached(
  { inherited, owner }: Pick<ProcessHost, 'inherited' | 'owner'>,
  folder: string,
  agent: AgentId,
  args: readonly string[],
): Promise<ChildProcess> {
  await using nothing = await open('/dev/null', 'r+');
  // Node would pass on the descriptors that the manager inherited, so /dev/null covers them.
  const stdio = Array.from({ length: Math.max(2, ...inherited) + 1 }, (_, fd) => (inherited.includes(fd) ? nothing.fd : 'ignore'));
  // Its own session, and none of our descriptors: it must outlive us. The owner finds what hides its folder, as pasta does.
  const env = { PATH: searchPath, [markVariable]: agent, [ownerVariable]: owner };
  const child = spawn('/bin/sh', args, { cwd: folder, detached: true, stdio, env });
  child.unref();
  await once(child, 'spawn').catch((cause: unknown) => {
    const message = `Cannot start agent ${agent}: failed to start /bin/sh (${messageOf(cause)}).`;
    throw new OnejobError('E_SPAWN', message, { retry: true, cause, hint: 'Check for a limit on processes or memory.' });
  });
  return child;
}

/** Creates the folder that others may pass through but not list. @throws OnejobError if somebody else created it */
async function makeOpen(path: string): Promise<void> {
  await mkdir(path, { mode: 0o711, recursive: true }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error;
  });
  const folder = await lstat(path);
  // Independent of the umask.
  if (folder.isDirectory() && folder.uid === process.getuid?.()) return chmod(path, 0o711);
  const hint = 'Remove it.';
  throw new OnejobError('E_SPAWN', `Cannot keep agents' files in ${path}: it is not a folder that belongs to this user.`, { hint });
}

async function makeFiles(files: string, uid: number | null, mounted: boolean): Promise<void> {
  await mkdir(files, { recursive: true, mode: 0o700 });
  // With bubblewrap the parent folder is closed to all, and bubblewrap may not pass through a closed folder of the job.
  const make = async (name: string): Promise<void> => {
    const path = join(files, name);
    await mkdir(path, { recursive: true });
    await chmod(path, mounted ? (name === 'tmp' ? 0o1777 : 0o755) : 0o700);
    if (uid !== null) await chown(path, uid, uid);
  };
  await Promise.all(['work', 'home', 'tmp'].map(make));
  if (uid === null || mounted) return;
  // Only its group may pass through, and it does not belong to the job, so no job can open its files to others.
  await chown(files, 0, uid);
  await chmod(files, 0o710);
}

function environment(spec: SandboxSpec, files: string, mounted: boolean, grant: ProcessGrant): Record<string, string> {
  const { recipe } = spec;
  const base = mounted
    ? { HOME: '/home/job' }
    : { HOME: join(files, 'home'), TMPDIR: join(files, 'tmp'), [markVariable]: spec.agent };
  const variables = recipe.mounts.flatMap(({ variable, container, host }) =>
    variable === null ? [] : [[variable, mounted ? container : host] as const],
  );
  return { PATH: searchPath, USER: 'job', ...base, ...Object.fromEntries(variables), ...recipe.env, ...grant.env };
}

/** The parts of a sandbox that depend on its devices. */
interface ProcessGrant {
  /** Variables that override the owner's. */
  readonly env: Readonly<Record<string, string>>;
  /** Nodes to mount: their path on the host, and in the sandbox. */
  readonly nodes: readonly { readonly host: string; readonly inside: string }[];
  /** Ids of groups that may open them. */
  readonly groups: readonly number[];
  /** Nodes that the gate opens before it runs a script. */
  readonly gate: readonly string[];
}

/**
 * The devices of a sandbox. With bubblewrap exactly their nodes are in its /dev. Without it every node of the host stays there, and
 * variables ask programs to use only the leased ones, which restricts nobody.
 * @throws OnejobError E_DEVICES_GRANTED if a node of a leased device is missing or unknown
 */
export function grantDevices(
  { mode, deviceDir }: ProcessHost,
  { name, devices }: Pick<SandboxSpec, 'name' | 'devices'>,
): ProcessGrant {
  const alone = mode === 'bubblewrap';
  const minors = alone ? readMigMinors(deviceDir) : null;
  const { needed, useful } = nodesOf(devices, minors);
  const candidates = [...needed, ...useful].map((node) => ({ node, group: groupOf(join(deviceDir, node)) }));
  const refuse = (why: string): never => {
    const uuids = devices.map(({ uuid }) => uuid).join(', ');
    const message = `Cannot start agent ${name}: it was leased ${uuids}, and ${why}.`;
    const hint = 'Type "onejob gpus" and "nvidia-smi" to check them.';
    throw new OnejobError('E_DEVICES_GRANTED', message, { hint, retry: true });
  };
  const missing = candidates.find(({ node, group }) => group === null && needed.includes(node));
  if (missing !== undefined) refuse(`there is no ${join(deviceDir, missing.node)} on this host`);
  // An unmounted node does not exist in the sandbox: a job would find no device, without an explanation.
  const hidden = alone && devices.find((device) => device.minor === null || (minors !== null && capsOf(device, minors) === null));
  if (hidden) refuse(`onejob does not know which nodes of ${deviceDir} belong to ${hidden.uuid}`);
  const there = candidates.filter(({ group }) => group !== null);
  return {
    env: visibleDevices(devices, alone),
    nodes: alone ? there.map(({ node }) => ({ host: join(deviceDir, node), inside: `/dev/${node}` })) : [],
    groups: [...new Set(there.flatMap(({ group }) => group ?? []))].filter((group) => group !== 0),
    gate: gateNodes(devices).map((path) => (alone ? path : path.replace('/dev', deviceDir))),
  };
}

/** Bubblewrap's options for them. Programs find cards through /sys, which a sandbox without devices does not have. */
export function deviceArgs({ nodes }: Pick<ProcessGrant, 'nodes'>): string[] {
  if (nodes.length === 0) return [];
  const folders = new Set(nodes.map(({ inside }) => inside.slice(0, inside.lastIndexOf('/'))));
  folders.delete('/dev');
  const kernel = ['bus', 'class', 'dev', 'devices'].flatMap((name) => ['--ro-bind-try', `/sys/${name}`, `/sys/${name}`]);
  return [
    ...[...folders].flatMap((folder) => ['--dir', folder]),
    ...nodes.flatMap(({ host, inside }) => ['--dev-bind', host, inside]),
    ...['--dir', '/sys', ...kernel],
  ];
}

/** null if there is no such node. */
function groupOf(path: string): number | null {
  try {
    return statSync(path).gid;
  } catch (error) {
    if (['ENOENT', 'ENOTDIR', 'ENXIO', 'ENODEV'].includes(codeOf(error))) return null;
    throw error;
  }
}
