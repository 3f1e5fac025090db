/**
 * A door: one port of the host's loopback, also on the loopback of a sandbox that has a network of its own. It is a second pasta in that
 * network, which passes on connections to this port only. It belongs to the sandbox and is removed with it, not with the manager.
 */
import { join } from 'node:path';
import { OnejobError } from '../../base/errors.ts';
import { quoted } from '../../base/quoted.ts';
import { sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { isAlive, readOr } from '../../system/process-identity.ts';
import { supervisorGroup } from './cgroup.ts';
import { identityIn } from './folder.ts';
import type { ProcessHost } from './host.ts';
import { childOf, networkFile, pasta, uplink } from './network.ts';
import { startDetached } from './prepare.ts';

const doorFile = (port: number): string => `door.${port}`;
/** ms that a door may take to open. */
const patience = 5_000;

/** Opens a port of the host in the sandbox. Idempotent. @throws OnejobError E_SANDBOX_LOST, E_NO_DOOR (retry) */
export async function openDoor(host: ProcessHost, agent: AgentId, port: number, signal: AbortSignal): Promise<void> {
  const folder = join(host.at.agents, agent);
  const known = identityIn(folder, doorFile(port));
  if (known !== null && isAlive(known)) return;
  const carrier = identityIn(folder, networkFile);
  const first = carrier === null || !isAlive(carrier) ? null : childOf(carrier.pid);
  if (first === null) throw new OnejobError('E_SANDBOX_LOST', `Agent ${agent} no longer has a network on this host.`);
  const space = (name: string): string => `/proc/${first}/ns/${name}`;
  const inside = ['-I', `door${port}`, '--userns', space('user'), '--netns', space('net')];
  const group = supervisorGroup(host.cgroups);
  const script = [
    // The identity comes first: without it a new manager would not know that this runs.
    `IFS= read -r s </proc/self/stat; printf '%s\\n' "$s" >${doorFile(port)} || exit`,
    ...(group === null ? [] : [`{ echo 0 >${quoted(`${group}/cgroup.procs`)}; } 2>/dev/null`]),
    `exec ${pasta(host.root, [...uplink().options, '-T', String(port), ...inside])} 2>${doorFile(port)}.log`,
  ];
  const child = await startDetached(host, folder, agent, ['-c', script.join('\n')]);
  const until = host.clock.now() + patience;
  // No event reports that a port of another network is open.
  while (!isOpen(first, port)) {
    signal.throwIfAborted();
    if (child.exitCode !== null || child.signalCode !== null || host.clock.now() > until) throw closed(folder, agent, port);
    await sleep(host.clock, 5);
  }
}

/** Whether something listens at the port of IPv4 in the network of a process: proc_net(5), state 0A. */
function isOpen(pid: number, port: number): boolean {
  const hex = port.toString(16).toUpperCase().padStart(4, '0');
  return new RegExp(`^ *\\d+: \\w{8}:${hex} \\w+:\\w+ 0A `, 'm').test(readOr(`/proc/${pid}/net/tcp`, ''));
}

function closed(folder: string, agent: AgentId, port: number): OnejobError {
  const lastLine =
    readOr(join(folder, `${doorFile(port)}.log`), '')
      .trim()
      .split('\n')
      .at(-1) ?? '';
  const why = lastLine === '' ? 'it does not listen there' : lastLine;
  return new OnejobError('E_NO_DOOR', `Agent ${agent} cannot reach port ${port} of this host: pasta failed (${why}).`, {
    hint: 'onejob tries again.',
    retry: true,
  });
}
