/**
 * The container in which an agent has an engine of its own: nothing in it has more rights than a user of this host that owns nothing.
 * It carries the labels of the agent, and the limits that hold for the sandbox and all containers of its job together.
 */
import type { Recipe, SandboxSpec } from '../../ports/runtime.ts';
import { openFilesForDevices } from '../devices.ts';
import type { ContainerAnswer } from '../engine/engine.ts';
import { engineAppArmor } from './apparmor.ts';
import { cardMounts } from './cards-inside.ts';
import { type CreateContext, hostName, sandboxLabels, ulimitsOf, workspacePath } from './create.ts';
import type { Bind, Cards } from './engine-cards.ts';
import { type EngineUser, engineProgram, engineUsers, inEngine } from './engine-program.ts';
import { engineSeccomp } from './engine-rights.ts';
import { type Grant, noGrant } from './grants.ts';
import type { Owner } from './workspace.ts';

/** What each container with a rootless engine is made with, on this host as it is now. */
export const engineHost = () => ({
  // Its child ends everything with it.
  Init: true,
  RestartPolicy: { Name: 'no' },
  // GitHub's runner starts no containers where /proc/1/cgroup names a group of Docker's (`ContainerOperationProvider.cs`).
  CgroupnsMode: 'private',
  LogConfig: { Type: 'local', Config: { 'max-size': '1m', 'max-file': '2' } },
  CapDrop: ['ALL'],
  // What newuidmap and newgidmap have as file capabilities. They need more only if they are setuid.
  CapAdd: ['SETUID', 'SETGID'],
  SecurityOpt: [`seccomp=${engineSeccomp()}`, engineAppArmor()],
  // The kernel mounts a new /proc only where an old one is fully visible.
  MaskedPaths: [],
  ReadonlyPaths: [],
});

/** What the engines themselves need in addition to the job. */
const need = { memory: 256 * 2 ** 20, pids: 512 };

export const userLabel = 'onejob.user';
/** The first of the ids of its users on the host. Engines of older versions have no such label. */
const firstLabel = 'onejob.ids';

/** The user of the image of engines that a recipe wants. */
export const userFor = ({ containers }: Pick<Recipe, 'containers'>): EngineUser =>
  containers?.untrusted ? engineUsers.untrusted : engineUsers.trusted;

/** A user of the sandbox in such a container, as this host knows it. */
export function outside({ uid, gid }: Owner, { Config }: Pick<ContainerAnswer, 'Config'>): Owner {
  const isUntrusted = Config.Labels?.[userLabel] === engineUsers.untrusted.name;
  const first = Number(Config.Labels?.[firstLabel] ?? engineUsers[isUntrusted ? 'untrusted' : 'trusted'].first);
  return { uid: first + uid, gid: first + gid };
}

interface EngineContext extends Pick<CreateContext, 'owner' | 'boot' | 'engineStart' | 'imageId' | 'network'> {
  /** Folder of this host for the socket. */
  readonly folder: string;
  readonly user: EngineUser;
  /** Volume with images. */
  readonly store: string;
  /** Volume with images for jobs; null without. */
  readonly ready: string | null;
  readonly cards: Cards;
  /** Nodes of AMD's and Intel's cards. */
  readonly others: Grant['host'];
}

/** The body of `POST /containers/create`. */
export function engineBody(spec: SandboxSpec, context: EngineContext) {
  const { recipe } = spec;
  const mirrors = (recipe.containers?.mirrors ?? []).map((mirror) => `--registry-mirror ${mirror}`);
  const { name: user, first } = context.user;
  const all = { ...sandboxLabels(spec, context), [userLabel]: user, [firstLabel]: String(first) };
  const volume = (Target: string) => ({ Type: 'volume', Target, VolumeOptions: { Labels: all } });
  const node = ({ from, to }: Bind) => ({ PathOnHost: from, PathInContainer: to, CgroupPermissions: 'rw' });
  const devices = [...context.cards.nodes.map(node), ...(context.others.Devices ?? [])];
  return {
    Image: context.imageId,
    User: '0',
    Entrypoint: ['perl', '-e', engineProgram],
    Cmd: [spec.agent, ...devices.map(({ PathInContainer }) => PathInContainer)],
    // It asks the Engine for no card: that one's tools would mount into its /proc.
    Env: Object.entries({ ...noGrant.env, MIRRORS: mirrors.join(' '), ENGINE_USER: user, ENGINE_FIRST: first }).map(
      ([name, value]) => `${name}=${value}`,
    ),
    WorkingDir: '/',
    Hostname: hostName(spec.name),
    Labels: all,
    HostConfig: {
      ...engineHost(),
      NetworkMode: context.network,
      Mounts: [
        ...[workspacePath, '/tmp', inEngine.storage].map(volume),
        { Type: 'volume', Source: context.store, Target: inEngine.images, ReadOnly: true },
        ...(context.ready === null ? [] : [{ Type: 'volume', Source: context.ready, Target: inEngine.ready, ReadOnly: true }]),
        { Type: 'bind', Source: context.folder, Target: inEngine.folder },
        ...cardMounts(context.folder, context.cards),
        // Not read-only, and without what is mounted below: containers of the job with all rights then get one, too.
        { Type: 'bind', Source: '/sys', Target: '/sys', BindOptions: { NonRecursive: true } },
        ...recipe.mounts.map(({ host, container, readOnly }, at) => ({
          Type: 'bind',
          Source: spec.places?.[at] ?? host,
          Target: container,
          ReadOnly: readOnly,
        })),
      ],
      Tmpfs: { '/sys/fs/cgroup': '' },
      Devices: [node({ from: '/dev/net/tun', to: '/dev/net/tun' }), ...devices],
      ...(spec.cpuset !== undefined && { CpusetCpus: spec.cpuset }),
      ...(recipe.cpus !== null && { NanoCpus: Math.round(recipe.cpus * 1e9) }),
      ...(recipe.memory !== null && { Memory: recipe.memory + need.memory, MemorySwap: recipe.memory + need.memory }),
      PidsLimit: recipe.pids === null ? -1 : recipe.pids + need.pids,
      Ulimits: ulimitsOf(recipe, devices.length === 0 ? null : openFilesForDevices()),
      // The sandbox is to be ended before it.
      OomScoreAdj: 0,
    },
  };
}

/** The sandbox as the agent's engine makes it: limits and networks are those of the engine, and its folders have the same paths there. */
export function specInside(spec: SandboxSpec, imageId: string): SandboxSpec {
  const { containers: _, ...recipe } = spec.recipe;
  const { places: __, cpuset: ___, ...rest } = spec;
  const same = (path: string, container = path) => ({ host: path, container, readOnly: false, variable: null, cache: null });
  const hasTmp = recipe.readOnly || Object.hasOwn(recipe.tmpfs, '/tmp');
  return {
    ...rest,
    recipe: {
      ...recipe,
      imageId,
      pull: 'never',
      network: 'host',
      // Podman knows the cards by CDI alone.
      grant: { ...recipe.grant, way: 'auto' },
      cpus: null,
      memory: null,
      pids: null,
      mounts: [
        ...recipe.mounts.map((mount) => ({ ...mount, host: mount.container })),
        same(inEngine.docker, '/var/run/docker.sock'),
        ...(hasTmp ? [] : [same('/tmp')]),
      ],
    },
  };
}
