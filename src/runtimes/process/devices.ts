/**
 * What a process sandbox gets of its devices. Under bubblewrap exactly their nodes are in its /dev; without it every node of
 * the host stays there, and variables ask programs to look at the leased ones only, which holds nobody back.
 */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { codeOf, OnejobError } from '../../errors.ts';
import { capsOf, gateNodes, nodesOf, readMigMinors, visibleDevices } from '../devices.ts';
import type { SandboxSpec } from '../runtime.ts';
import type { Host } from './host.ts';

export interface ProcessGrant {
  /** They win over the owner's. */
  readonly env: Readonly<Record<string, string>>;
  /** Nodes to be mounted: where they lie on the host, and where in the sandbox. */
  readonly nodes: readonly { readonly host: string; readonly inside: string }[];
  /** Groups by number that may open them, beside everybody. */
  readonly groups: readonly number[];
  /** What the gate opens before it runs a script. */
  readonly gate: readonly string[];
}

/** @throws OnejobError E_DEVICES_GRANTED when a node that a leased device needs is not there, or cannot be told. */
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
  // What is not mounted is not there: a job would find no device, and nobody would say why.
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

/**
 * Bubblewrap's options for them. Programs find cards by what the kernel says below /sys; without devices a sandbox has none
 * of that.
 */
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

/** Null when there is no such node. */
function groupOf(path: string): number | null {
  try {
    return statSync(path).gid;
  } catch (error) {
    if (['ENOENT', 'ENOTDIR', 'ENXIO', 'ENODEV'].includes(codeOf(error))) return null;
    throw error;
  }
}
