/**
 * The devices of this runtime's sandboxes. It asks the Engine for exactly the leased devices, and checks that exactly those
 * arrived before the sandbox counts as made: it inspects the devices of a container's first process. That works only as root and
 * if the Engine's processes are on this host. Otherwise the answer is "unknown", never right or wrong.
 */
import { lstat, readdir, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, hasCode, messageOf, OnejobError } from '../../base/errors.ts';
import { sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import type { GrantWay, LeasedDevice, SandboxSpec } from '../../ports/runtime.ts';
import { systemClock } from '../../system/system-clock.ts';
import { nodesOf, openFilesForDevices, readMigMinors } from '../devices.ts';
import { endpointUrl } from '../engine/endpoint.ts';
import type { Engine } from '../engine/engine.ts';
import { type DeviceNode, type Evidence, type HostDevices, judgeEvidence } from './evidence.ts';
import { chooseGrant, type Grant, type GrantMethod, grantOf, noGrant, passedNodes } from './grants.ts';

/** ms during which an Engine may report a process that has ended, or one that is still to become the container's. */
const patience = 2_000;

export class Devices {
  readonly #engine: Engine;
  readonly #setting: GrantWay;
  readonly #isLocal: boolean;
  readonly #refused = new Set<GrantMethod>();
  /** Why onejob cannot inspect the devices of containers here, by their OCI runtime: some start a kernel or a machine of their own. */
  readonly #blind = new Map<string, string>();

  /** `setting`: how to ask for NVIDIA devices if the recipe does not say. With `auto`, as the Engine reports that it can. */
  constructor(engine: Engine, setting: GrantWay = 'auto') {
    this.#engine = engine;
    this.#setting = setting;
    this.#isLocal = engine.endpoint.kind === 'unix';
  }

  /** What to ask the Engine for. @throws OnejobError E_DEVICES_REFUSED if that is unknown or impossible */
  async grant(spec: SandboxSpec, signal: AbortSignal): Promise<Grant> {
    const { devices } = spec;
    if (devices.length === 0) return noGrant;
    if (!this.#isLocal) {
      const why = `the Engine at ${endpointUrl(this.#engine.endpoint)} is not on this host`;
      throw notGrantable(spec, why, 'Use an Engine of this host.');
    }
    const hidden = devices.find(({ vendor, minor }) => vendor !== 'nvidia' && minor === null);
    if (hidden !== undefined) {
      const why = `onejob does not know which node below /dev/dri belongs to ${hidden.uuid}`;
      throw notGrantable(spec, why, 'See "onejob gpus".', true);
    }
    const uuids = devices.filter(({ vendor }) => vendor === 'nvidia').map(({ uuid }) => uuid);
    const [info, version] = await Promise.all([this.#engine.info(signal), this.#engine.version(signal)]);
    // Podman's default is bounded, and it drops that limit when another one is sent.
    const openFiles = version.podman ? null : openFilesForDevices();
    const wanted = spec.recipe.grant;
    const parts = { capabilities: [...new Set(wanted.capabilities)], groups: await nodeGroups(passedNodes(devices)), openFiles };
    if (uuids.length === 0) return grantOf(devices, { ...parts, way: null });
    const setting = wanted.way === 'auto' ? this.#setting : wanted.way;
    const choice = chooseGrant(info, version, { setting, uuids, refused: this.#refused });
    if (choice.way === null) throw notGrantable(spec, choice.why, choice.hint);
    const { ociRuntime } = spec.recipe;
    if (choice.way === 'runtime' && ociRuntime !== undefined) {
      const why = `${choice.why}, and its runtime "nvidia" would take the place of ${ociRuntime}`;
      throw notGrantable(spec, why, 'Turn on CDI in this Engine, or write "grant: request".');
    }
    return grantOf(devices, { ...parts, way: choice.way });
  }

  /** Whether to ask an Engine in another way after this refusal. `grant` does so from then on. */
  retreat(refusal: unknown): boolean {
    if (!hasCode(refusal, 'E_DEVICES_REFUSED') || this.#setting !== 'auto') return false;
    // No Engine reports whether it found a hook on its PATH. A failure for one device says nothing about the others.
    if (!/could not select device driver/.test(messageOf(refusal.cause)) || this.#refused.has('request')) return false;
    this.#refused.add('request');
    return true;
  }

  /**
   * Compares a started container with its lease. A container that has ended or cannot be inspected passes.
   * @throws OnejobError E_DEVICES_GRANTED if it holds anything else
   */
  async verify(spec: SandboxSpec, id: string, progress: (line: string) => void, signal: AbortSignal): Promise<void> {
    const { devices, recipe } = spec;
    const kind = recipe.ociRuntime ?? '';
    if (!this.#isLocal || (devices.length === 0 && this.#blind.has(kind))) return;
    const sight = await this.#see(spec, id, signal);
    if (sight.kind === 'unseen') {
      this.#blind.set(kind, sight.why);
      if (devices.length > 0) progress(`onejob does not check which devices it got, because ${sight.why}.`);
    }
    if (sight.kind !== 'seen') return;
    const host = await lookAtHost(devices);
    const wrong = judgeEvidence(spec, sight.evidence, host);
    if (wrong.length === 0) return;
    const wanted = nodesOf(devices, host.migMinors).needed;
    const has = sight.evidence.nodes.map(({ name }) => name).filter((name) => /nvidia|^dri|^kfd/.test(name));
    throw mismatch(spec, paths(wanted), paths(has), wrong);
  }

  async #see({ agent }: SandboxSpec, id: string, signal: AbortSignal): Promise<Sight> {
    const { clock } = this.#engine;
    const until = clock.now() + patience;
    for (;;) {
      const container = await this.#engine.inspect(id, signal);
      if (container === null || !container.State.Running) return { kind: 'gone' };
      const sight = await look(container.State.Pid, agent, signal, { clock });
      if (sight.kind !== 'gone') return sight;
      if (clock.now() > until) return unseen(`process ${container.State.Pid}, which the Engine reports, is not on this host`);
      await sleep(clock, 20, signal);
      signal.throwIfAborted();
    }
  }
}

/** Groups of the nodes that do not belong to root. The Engine reports a missing node itself. */
async function nodeGroups(nodes: readonly string[]): Promise<number[]> {
  const gids = await Promise.all(nodes.map(async (path) => (await stat(path).catch(() => null))?.gid ?? 0));
  return [...new Set(gids)].filter((gid) => gid !== 0);
}

export function notGrantable({ name, pool, devices }: SandboxSpec, why: string, hint: string, retry = false): OnejobError {
  const names = devices.map(({ uuid }) => uuid).join(', ');
  return new OnejobError('E_DEVICES_REFUSED', `Cannot start agent ${name}: ${names} cannot be granted, because ${why}.`, {
    hint: `${hint} Or write "devices: 0" in pools.${pool}.`,
    retry,
  });
}

function mismatch({ name, devices }: SandboxSpec, wanted: string, has: string, wrong: readonly string[]): OnejobError {
  const leased = devices.length === 0 ? 'no device' : `${devices.map(({ uuid }) => uuid).join(', ')} (${wanted})`;
  const message = `Cannot start agent ${name}: it was leased ${leased}, and its container has ${has}: ${wrong.join(', ')}.`;
  const hint = 'Nothing ran, and onejob removed the container. Type "onejob doctor" to check the Engine and its container toolkit.';
  return new OnejobError('E_DEVICES_GRANTED', message, { hint, retry: true });
}

function paths(names: readonly string[]): string {
  return names.length === 0 ? 'none' : names.map((name) => `/dev/${name}`).join(', ');
}

type Sight =
  | { readonly kind: 'seen'; readonly evidence: Evidence }
  /** It has ended; its exit says how. */
  | { readonly kind: 'gone' }
  /** `why` completes "…, because". */
  | { readonly kind: 'unseen'; readonly why: string };

/**
 * Inspects process `pid` once it is the gate of `agent`, whose command line contains the agent id. It may be another process if
 * the Engine runs in a virtual machine or another pid namespace. `most`: ms that the Engine's own process may take to become it.
 */
export async function look(
  pid: number,
  agent: AgentId,
  signal: AbortSignal,
  { proc = '/proc', most = patience, clock = systemClock } = {},
): Promise<Sight> {
  const at = join(proc, String(pid));
  const until = clock.now() + most;
  try {
    // At the reported start the Engine's helper is about to become the container's first process. No event says when it has.
    while (!(await readFile(join(at, 'cmdline'), 'latin1')).includes(agent)) {
      if (clock.now() > until) return unseen(`process ${pid} of this host is not the one that the Engine reports`);
      await sleep(clock, 2, signal);
      signal.throwIfAborted();
    }
    const nodes = await nodesIn(join(at, 'root/dev'));
    // Empty once the process has ended. It is read last, so if it is not empty, the nodes were complete.
    const environ = await readFile(join(at, 'environ'), 'latin1');
    if (environ === '') return { kind: 'gone' };
    const name = 'NVIDIA_VISIBLE_DEVICES=';
    const visible = environ.split('\0').flatMap((entry) => (entry.startsWith(name) ? entry.slice(name.length) : []));
    return { kind: 'seen', evidence: { visible, nodes } };
  } catch (error) {
    signal.throwIfAborted();
    const code = codeOf(error);
    if (code === 'ENOENT' || code === 'ESRCH') return { kind: 'gone' };
    if (code === 'EACCES' || code === 'EPERM') return unseen("only root may inspect an Engine's processes");
    return unseen(`process ${pid} cannot be inspected (${messageOf(error)})`);
  }
}

/** What the host knows about its nodes now. Never throws. */
export async function lookAtHost(devices: readonly LeasedDevice[]): Promise<HostDevices> {
  const pciIds = [...new Set(devices.flatMap(({ pciId }) => pciId ?? []))];
  const drm = await Promise.all(
    pciIds.map(async (id) => {
      const names = await readdir(`/sys/bus/pci/devices/${id}/drm`).catch((): string[] => []);
      return [id, names.map((name) => `dri/${name}`)] as const;
    }),
  );
  return { migMinors: readMigMinors('/dev'), drm: new Map(drm) };
}

/** Folders of /dev that hold nodes of GPUs. */
const folders = ['', 'dri', 'nvidia-caps'];

async function nodesIn(dev: string): Promise<DeviceNode[]> {
  const nodes = await Promise.all(
    folders.map(async (folder) => {
      const path = join(dev, folder);
      // A link that a job put in place of a folder would lead to files of this host.
      const isFolder = (await lstat(path).catch(absent))?.isDirectory() ?? false;
      const names = isFolder ? await readdir(path) : [];
      return Promise.all(names.map((name) => nodeAt(dev, join(folder, name))));
    }),
  );
  return nodes.flat().filter((node) => node !== null);
}

async function nodeAt(dev: string, name: string): Promise<DeviceNode | null> {
  const entry = await lstat(join(dev, name)).catch(absent);
  if (entry === null || !entry.isCharacterDevice()) return null;
  return { name, ...numbersOf(entry.rdev) };
}

/** As the C library's major() and minor() compute them. */
export function numbersOf(rdev: number): { readonly major: number; readonly minor: number } {
  return { major: Math.floor(rdev / 2 ** 8) & 0xfff, minor: (rdev & 0xff) | (Math.floor(rdev / 2 ** 12) & 0xfff00) };
}

/** For a node that is gone; if the process is gone, the next read shows it. */
function absent(error: unknown): null {
  if (codeOf(error) === 'ENOENT') return null;
  throw error;
}

function unseen(why: string): Sight {
  return { kind: 'unseen', why };
}
