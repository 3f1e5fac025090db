/**
 * Inspects the devices of a container's first process. That works only as root and if the Engine's processes are on this host.
 * Otherwise the answer is "unknown", never right or wrong.
 */
import { lstat, readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { systemClock } from '../../clock.ts';
import { type Clock, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { codeOf } from '../../errors.ts';
import { readMigMinors } from '../devices.ts';
import type { LeasedDevice } from '../runtime.ts';
import type { DeviceNode, Evidence, HostDevices } from './evidence.ts';

export type Sight =
  | { readonly kind: 'seen'; readonly evidence: Evidence }
  /** It has ended; its exit says how. */
  | { readonly kind: 'gone' }
  /** `why` completes "…, because". */
  | { readonly kind: 'unseen'; readonly why: string };

export interface LookOptions {
  /** Default `/proc`. */
  readonly proc?: string;
  /** ms that the Engine's own process may take to become the container's. Default 2 s. */
  readonly patience?: number;
  readonly clock?: Clock;
}

/**
 * Inspects process `pid` once it is the gate of `agent`, whose command line contains the agent id. It may be another process if
 * the Engine runs in a virtual machine or another pid namespace.
 */
export async function look(pid: number, agent: AgentId, signal: AbortSignal, options: LookOptions = {}): Promise<Sight> {
  const { proc = '/proc', patience = 2_000, clock = systemClock } = options;
  const at = join(proc, String(pid));
  const until = clock.now() + patience;
  try {
    // An Engine reports a start when its helper is about to become the first process of the container. No event says when it has
    // (runc: a moment later).
    while (!(await readFile(join(at, 'cmdline'), 'latin1')).includes(agent)) {
      if (clock.now() > until) return unseen(`process ${pid} of this host is not the one that the Engine reports`);
      await sleep(clock, 2, signal);
      signal.throwIfAborted();
    }
    const nodes = await nodesIn(join(at, 'root/dev'));
    // Empty once the process has ended. It is read last, so if it is not empty, the nodes were complete.
    const environ = await readFile(join(at, 'environ'), 'latin1');
    return environ === '' ? { kind: 'gone' } : { kind: 'seen', evidence: { visible: visibleIn(environ), nodes } };
  } catch (error) {
    signal.throwIfAborted();
    const code = codeOf(error);
    if (code === 'ENOENT' || code === 'ESRCH') return { kind: 'gone' };
    if (code === 'EACCES' || code === 'EPERM') return unseen("only root may inspect an Engine's processes");
    return unseen(`process ${pid} cannot be inspected (${error instanceof Error ? error.message : error})`);
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

function visibleIn(environ: string): string[] {
  const name = 'NVIDIA_VISIBLE_DEVICES=';
  return environ.split('\0').flatMap((entry) => (entry.startsWith(name) ? entry.slice(name.length) : []));
}

/** Folders of /dev that hold nodes of GPUs. */
const folders = ['', 'dri', 'nvidia-caps'];

async function nodesIn(dev: string): Promise<DeviceNode[]> {
  const found = await Promise.all(
    folders.map(async (folder) => {
      const path = join(dev, folder);
      // A link that a job put in place of a folder would lead to files of this host.
      const isFolder = (await lstat(path).catch(absent))?.isDirectory() ?? false;
      const names = isFolder ? await readdir(path) : [];
      return Promise.all(names.map((name) => nodeAt(path, join(folder, name))));
    }),
  );
  return found.flat().filter((node) => node !== null);
}

async function nodeAt(folder: string, name: string): Promise<DeviceNode | null> {
  const found = await lstat(join(folder, name.split('/').at(-1) ?? name)).catch(absent);
  if (found === null || !found.isCharacterDevice()) return null;
  // As the C library's major() and minor() compute them.
  const major = Math.floor(found.rdev / 2 ** 8) & 0xfff;
  const minor = (found.rdev & 0xff) | (Math.floor(found.rdev / 2 ** 12) & 0xfff00);
  return { name, major, minor };
}

/** For a node that is gone; if the process is gone, the next read shows it. */
function absent(error: unknown): null {
  if (codeOf(error) === 'ENOENT') return null;
  throw error;
}

function unseen(why: string): Sight {
  return { kind: 'unseen', why };
}
