/**
 * The devices of this runtime's sandboxes. It asks the Engine for exactly the leased devices, and checks that exactly those
 * arrived before the sandbox counts as made.
 */
import { stat } from 'node:fs/promises';
import { sleep } from '../../core/clock.ts';
import { endpointUrl } from '../../engine/endpoint.ts';
import type { Engine } from '../../engine/engine.ts';
import { isPodman } from '../../engine/probe.ts';
import { messageOf, OnejobError } from '../../errors.ts';
import { nodesOf, openFilesForDevices } from '../devices.ts';
import type { GrantWay, SandboxSpec } from '../runtime.ts';
import { judge } from './evidence.ts';
import { chooseGrant, type Grant, grantOf, noGrant, passedNodes, type Way } from './grants.ts';
import { look, lookAtHost, type Sight } from './witness.ts';

export interface DeviceOptions {
  /** How to ask the Engine for NVIDIA devices if the recipe does not say. Default `auto`: as the Engine reports that it can. */
  readonly grant?: GrantWay;
}

export type Devices = ReturnType<typeof createDevices>;

/** ms during which an Engine may report a process that has ended. */
const patience = 2_000;

export function createDevices(engine: Engine, { grant: setting = 'auto' }: DeviceOptions) {
  const { endpoint } = engine;
  const local = endpoint.kind === 'unix';
  const refused = new Set<Way>();
  /** Why onejob cannot inspect the devices of containers here. */
  let blind: string | null = null;

  const see = async ({ agent }: SandboxSpec, id: string, signal: AbortSignal): Promise<Sight> => {
    const until = engine.clock.now() + patience;
    for (;;) {
      const container = await engine.inspect(id, signal);
      if (container === null || !container.State.Running) return { kind: 'gone' };
      const sight = await look(container.State.Pid, agent, signal, { clock: engine.clock });
      if (sight.kind !== 'gone') return sight;
      if (engine.clock.now() > until) {
        return { kind: 'unseen', why: `process ${container.State.Pid}, which the Engine reports, is not on this host` };
      }
      await sleep(engine.clock, 20, signal);
      signal.throwIfAborted();
    }
  };

  return {
    /** What to ask the Engine for. @throws OnejobError E_DEVICES_REFUSED if that is unknown or impossible */
    async grant(spec: SandboxSpec, signal: AbortSignal): Promise<Grant> {
      const { devices } = spec;
      if (devices.length === 0) return noGrant;
      if (!local)
        throw notGrantable(spec, `the Engine at ${endpointUrl(endpoint)} is not on this host`, 'Use an Engine of this host.');
      const hidden = devices.find(({ vendor, minor }) => vendor !== 'nvidia' && minor === null);
      if (hidden !== undefined) {
        const why = `onejob does not know which node below /dev/dri belongs to ${hidden.uuid}`;
        throw notGrantable(spec, why, 'See "onejob gpus".', true);
      }
      const uuids = devices.filter(({ vendor }) => vendor === 'nvidia').map(({ uuid }) => uuid);
      const [info, version] = await Promise.all([engine.info(signal), engine.version(signal)]);
      // Podman's default is bounded, and it drops that limit when another one is sent.
      const openFiles = isPodman(version) ? null : openFilesForDevices();
      const wanted = spec.recipe.grant;
      const parts = { capabilities: [...new Set(wanted.capabilities)], groups: await nodeGroups(passedNodes(devices)), openFiles };
      if (uuids.length === 0) return grantOf(devices, { ...parts, way: null });
      const choice = chooseGrant(info, version, { setting: wanted.way === 'auto' ? setting : wanted.way, uuids, refused });
      if (choice.way === null) throw notGrantable(spec, choice.why, choice.hint);
      return grantOf(devices, { ...parts, way: choice.way });
    },

    /** Whether to ask an Engine in another way after this refusal. `grant` does so from then on. */
    retreat(refusal: unknown): boolean {
      if (!(refusal instanceof OnejobError) || refusal.code !== 'E_DEVICES_REFUSED' || setting !== 'auto') return false;
      // No Engine reports whether it found a hook on its PATH. A failure for one device says nothing about the others.
      if (!/could not select device driver/.test(messageOf(refusal.cause)) || refused.has('request')) return false;
      refused.add('request');
      return true;
    },

    /**
     * Compares a started container with its lease. A container that has ended or cannot be inspected passes.
     * @throws OnejobError E_DEVICES_GRANTED if it holds anything else
     */
    async verify(spec: SandboxSpec, id: string, progress: (line: string) => void, signal: AbortSignal): Promise<void> {
      const { devices } = spec;
      if (!local || (devices.length === 0 && blind !== null)) return;
      const sight = await see(spec, id, signal);
      if (sight.kind === 'unseen') {
        blind = sight.why;
        if (devices.length > 0) progress(`onejob does not check which devices it got, because ${sight.why}.`);
      }
      if (sight.kind !== 'seen') return;
      const host = await lookAtHost(devices);
      const wrong = judge(spec, sight.evidence, host);
      if (wrong.length === 0) return;
      const wanted = nodesOf(devices, host.migMinors).needed;
      const has = sight.evidence.nodes.map(({ name }) => name).filter((name) => /nvidia|^dri|^kfd/.test(name));
      throw mismatch(spec, paths(wanted), paths(has), wrong);
    },
  };
}

/** Groups of the nodes that do not belong to root. The Engine reports a missing node itself. */
async function nodeGroups(nodes: readonly string[]): Promise<number[]> {
  const found = await Promise.all(nodes.map(async (path) => (await stat(path).catch(() => null))?.gid ?? 0));
  return [...new Set(found)].filter((gid) => gid !== 0);
}

function notGrantable({ name, pool, devices }: SandboxSpec, why: string, hint: string, retry = false): OnejobError {
  const names = devices.map(({ uuid }) => uuid).join(', ');
  return new OnejobError('E_DEVICES_REFUSED', `Cannot start agent ${name}: ${names} cannot be granted, because ${why}.`, {
    hint: `${hint} Or write "devices: 0" in pools.${pool}.`,
    retry,
  });
}

function mismatch({ name, devices }: SandboxSpec, wanted: string, has: string, wrong: readonly string[]): OnejobError {
  const leased = devices.length === 0 ? 'no device' : `${devices.map(({ uuid }) => uuid).join(', ')} (${wanted})`;
  const message = `Cannot start agent ${name}: it was leased ${leased}, and its container has ${has}: ${wrong.join(', ')}.`;
  return new OnejobError('E_DEVICES_GRANTED', message, {
    hint: 'Nothing ran, and onejob removed the container. Type "onejob doctor" to check the Engine and its container toolkit.',
    retry: true,
  });
}

function paths(names: readonly string[]): string {
  return names.length === 0 ? 'none' : names.map((name) => `/dev/${name}`).join(', ');
}
