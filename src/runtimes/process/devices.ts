/**
 * The devices of a process sandbox. With bubblewrap exactly their nodes are in its /dev. Without it every node of the host stays
 * there, and variables ask programs to use only the leased ones, which restricts nobody.
 */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { codeOf, OnejobError } from '../../errors.ts';
import { capsOf, gateNodes, nodesOf, readMigMinors, visibleDevices } from '../devices.ts';
import type { SandboxSpec } from '../runtime.ts';
import type { Host } from './host.ts';

export interface ProcessGrant {
  /** They override the owner's. */
  readonly env: Readonly<Record<string, string>>;
  /** Nodes to mount: their path on the host, and in the sandbox. */
  readonly nodes: readonly { readonly host: string; readonly inside: string }[];
  /** Ids of groups that may open them. */
  readonly groups: readonly number[];
  /** Nodes that the gate opens before it runs a script. */
  readonly gate: readonly string[];
}

/** @throws OnejobError E_DEVICES_GRANTED if a node of a leased device is missing or unknown */
export function grantDevices({ mode, deviceDir }: Host, { name, devices }: Pick<SandboxSpec, 'name' | 'devices'>): ProcessGrant {
  const alone = mode === 'bubblewrap';
  const minors = alone ? readMigMinors(deviceDir) : null;
  const { needed, useful } = nodesOf(devices, minors);
  const found = [...needed, ...useful].map((node) => ({ node, group: groupOf(join(deviceDir, node)) }));
  const refuse = (why: string): never => {
    const uuids = devices.map(({ uuid }) => uuid).join(', ');
    const message = `Cannot start agent ${name}: it was leased ${uuids}, and ${why}.`;
    throw new OnejobError('E_DEVICES_GRANTED', message, {
      hint: 'Type "onejob gpus" and "nvidia-smi" to check them.',
      retry: true,
    });
  };
  const missing = found.find(({ node, group }) => group === null && needed.includes(node));
  if (missing !== undefined) refuse(`there is no ${join(deviceDir, missing.node)} on this host`);
  // An unmounted node does not exist in the sandbox: a job would find no device, without an explanation.
  const hidden = alone && devices.find((device) => device.minor === null || (minors !== null && capsOf(device, minors) === null));
  if (hidden) refuse(`onejob does not know which nodes of ${deviceDir} belong to ${hidden.uuid}`);
  const there = found.filter(({ group }) => group !== null);
  return {
    env: visibleDevices(devices, alone),
    nodes: alone ? there.map(({ node }) => ({ host: join(deviceDir, node), inside: `/dev/${node}` })) : [],
    groups: [...new Set(there.flatMap(({ group }) => group ?? []))].filter((group) => group !== 0),
    gate: gateNodes(devices).map((path) => (alone ? path : path.replace('/dev', deviceDir))),
  };
}

/** Bubblewrap's options for them. Programs find cards through /sys, which a sandbox without devices does not have. */
export function deviceArgs({ nodes }: ProcessGrant): string[] {
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
