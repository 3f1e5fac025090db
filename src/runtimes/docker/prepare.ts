/**
 * Making a sandbox: its container, a workspace that is its user's, and only then its start. What a former try has left is
 * taken up. One that nobody waits for any more, or that got other devices than its own, is removed before this ends.
 */
import { OnejobError } from '../../errors.ts';
import type { SandboxSpec } from '../runtime.ts';
import type { Containers } from './containers.ts';
import { containerName, createBody, type LogLimits } from './create.ts';
import type { Devices } from './devices.ts';
import { endpointUrl } from './endpoint.ts';
import type { Engine } from './engine.ts';
import { statusOf } from './failures.ts';
import { fingerprintOf } from './fingerprint.ts';
import type { Image, Images } from './image.ts';
import type { Networks } from './networks.ts';
import { elsewhere, refusal } from './refusal.ts';
import { giveWorkspace } from './workspace.ts';

export interface PrepareParts {
  readonly engine: Engine;
  /** Id of this installation. */
  readonly owner: string;
  readonly bootId: string | null;
  readonly log: LogLimits;
  readonly containers: Containers;
  readonly images: Images;
  readonly networks: Networks;
  readonly devices: Devices;
  readonly isPodman: (signal: AbortSignal) => Promise<boolean>;
}

type Progress = (line: string) => void;
export type Prepare = (spec: SandboxSpec, progress: Progress, signal: AbortSignal) => Promise<{ readonly fingerprint: string }>;

export function createPrepare(parts: PrepareParts): Prepare {
  const { engine, owner, bootId, log, containers, images, networks, devices, isPodman } = parts;
  const { endpoint } = engine;

  /** The container of this spec, made if it is not there. */
  const make = async (spec: SandboxSpec, image: Image, signal: AbortSignal): Promise<string> => {
    const [mount] = spec.recipe.mounts;
    if (mount !== undefined && endpoint.kind !== 'unix') throw elsewhere(spec, mount.host, endpointUrl(endpoint));
    const network = await networks.resolve(spec.recipe.network);
    const podman = await isPodman(signal);
    const grant = await devices.grant(spec, signal);
    try {
      const body = createBody(spec, { owner, bootId, imageId: image.id, network, podman, log, grant });
      return await engine.create(containerName(spec), body);
    } catch (error) {
      // Podman says 500 for a name that is taken.
      if (statusOf(error) === 409 || statusOf(error) === 500) {
        const there = await containers.find(spec.agent, signal);
        if (there !== null) return there;
      }
      throw refusal(error, spec, endpoint);
    }
  };

  const start = async (spec: SandboxSpec, image: Image, progress: Progress, signal: AbortSignal): Promise<void> => {
    const id = await make(spec, image, signal);
    containers.note(spec.agent, id);
    // A request that is cut off may still be carried out, so it was not; now nothing must stay behind.
    if (signal.aborted) {
      await containers.remove(spec.agent);
      signal.throwIfAborted();
    }
    const user = spec.recipe.user ?? image.user;
    const files = await containers.filesOf(spec.agent, { id, image: image.id, user }, signal);
    if (files.uid !== 0 || files.gid !== 0) await giveWorkspace(engine, id, files, signal);
    try {
      await engine.start(id);
    } catch (error) {
      throw refusal(error, spec, endpoint);
    }
    try {
      await devices.verify(spec, id, progress, signal);
    } catch (error) {
      // Its gate waits, with devices that are not its own: nobody may come to release it.
      if (error instanceof OnejobError && error.code === 'E_DEVICES_GRANTED') await containers.remove(spec.agent);
      throw error;
    }
  };

  return async (spec, progress, signal) => {
    let image = await images.get(spec.recipe, progress, signal);
    try {
      await start(spec, image, progress, signal);
    } catch (error) {
      // Something that was believed to be there is gone, or is not there: look again, once.
      const isGone = error instanceof OnejobError && ['E_IMAGE_NOT_FOUND', 'E_NETWORK_NOT_FOUND'].includes(error.code);
      if (!isGone && !devices.retreat(error)) throw error;
      signal.throwIfAborted();
      await containers.remove(spec.agent);
      if (spec.recipe.image !== null) images.forget(spec.recipe.image);
      networks.forget();
      image = await images.get(spec.recipe, progress, signal);
      await start(spec, image, progress, signal);
    }
    return { fingerprint: fingerprintOf(spec.recipe, image, bootId) };
  };
}
