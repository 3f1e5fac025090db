/**
 * Images for the engines of agents: a volume that all of them read and only a container of ours writes. An engine uses an image in it
 * at once, without a copy. It works because all engines have the same ids.
 */
import { pipeline } from 'node:stream/promises';
import type { Progress } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import { upgrade } from '../engine/call.ts';
import type { Engine } from '../engine/engine.ts';
import { attachPath } from './attach.ts';
import { labels } from './create.ts';
import { inEngine } from './engine-program.ts';
import { engineHost } from './own-engine.ts';

const podman = `podman --root ${inEngine.images} --runroot /run/engine/fill`;

/**
 * Loads what comes from standard input under a name, unless it is there. A load that was interrupted is repeated by the next one. It has
 * its name only once it is on disk: Podman syncs no layer, and after a power cut every agent would get half an image.
 */
export const fill = `name=$0
${podman} image exists "$name" && exit
said=$(${podman} load -q) || exit
sync -f ${inEngine.images} 2>/dev/null || sync || exit
${podman} tag "\${said##*: }" "$name"`;

export class ImageStore {
  readonly #engine: Engine;
  readonly #owner: string;
  readonly volume: string;
  /** Ids of images that are in it. */
  readonly #there = new Set<string>();
  /** One writer at a time. */
  #last: Promise<unknown> = Promise.resolve();

  constructor(engine: Engine, owner: string) {
    this.#engine = engine;
    this.#owner = owner;
    this.volume = `onejob-${owner}-images`;
  }

  /** Puts an image of the Engine into it, if it is missing. Its name there. `maker`: id of the image of the engines. */
  async ensure(id: string, maker: string, progress: Progress, signal: AbortSignal): Promise<string> {
    const name = `localhost/onejob:${id.replace(/^sha256:/, '')}`;
    const work = this.#last.then(async () => {
      signal.throwIfAborted();
      if (this.#there.has(id)) return;
      progress('making its image ready for the engines of agents');
      await this.#fill(id, name, maker, signal);
      this.#there.add(id);
    });
    this.#last = work.catch(() => {});
    await work;
    return name;
  }

  /** To be called if somebody has removed the volume: the images are put there again. */
  forget(): void {
    this.#there.clear();
  }

  /** Removes what a manager that was killed has left of this. */
  async sweep(): Promise<void> {
    await this.#engine.remove(this.volume);
  }

  async #fill(id: string, name: string, maker: string, signal: AbortSignal): Promise<void> {
    const engine = this.#engine;
    const own = { [labels.owner]: this.#owner };
    await this.sweep();
    const mount = { Type: 'volume', Source: this.volume, Target: inEngine.images, VolumeOptions: { Labels: own } };
    const filler = await engine.create(this.volume, {
      Image: maker,
      User: inEngine.user,
      Entrypoint: ['sh', '-c', fill, name],
      Env: ['HOME=/home/engine', 'XDG_RUNTIME_DIR=/run/engine', 'PODMAN_IGNORE_CGROUPSV1_WARNING=1'],
      Labels: own,
      OpenStdin: true,
      StdinOnce: true,
      HostConfig: { ...engineHost, NetworkMode: 'none', Mounts: [mount] },
    });
    await using opened = new AsyncDisposableStack();
    opened.defer(async () => void (await engine.remove(filler)));
    const socket = await upgrade(engine.endpoint, attachPath(filler), signal);
    // The Engine closes it neither at the end of its container nor with its removal, and while it is open, the process cannot end.
    opened.defer(() => void socket.destroy());
    socket.resume();
    await engine.start(filler);
    const over = new AbortController();
    const ended = engine.ended(filler, signal).finally(() => over.abort());
    ended.catch(() => {});
    const image = await engine.saveImage(id, signal);
    // If the image is there already, it ends early, and the Engine takes no more input without saying so.
    if (image !== null) await pipeline(image, socket, { signal: over.signal }).catch(() => {});
    await ended;
    const code = (await engine.inspect(filler, signal))?.State.ExitCode ?? null;
    if (code === 0) return;
    const why = image === null ? 'it is no longer on the Engine' : `its program ended with exit code ${code}`;
    throw new OnejobError('E_ENGINE_FAILED', `Cannot make image ${id} ready for the engines of agents: ${why}.`, { retry: true });
  }
}
