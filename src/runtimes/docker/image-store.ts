/**
 * Images for the engines of agents: volumes that all of them read and only a container of ours writes. An engine uses an image in it
 * at once, without a copy. On disk they belong to one user, whose ids engines have, or see in place of their own (`own-ids.ts`); untrusted
 * jobs have volumes of their own.
 *
 * Podman reads one volume as its additional store. Docker has no such thing. So another volume has the folder of a Docker Engine that
 * was filled with the images of a pool, and a `seed`: what the engine of a job begins with. In that, the files of each layer are a
 * link to the volume. A set of images that changes gets a volume of its own, so nobody writes where engines read.
 */
import { hash } from 'node:crypto';
import { once } from 'node:events';
import { pipeline } from 'node:stream/promises';
import type { Progress } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Engine } from '../engine/engine.ts';
import { diskFull, isDiskFull } from '../engine/failures.ts';
import { attachPath } from './attach.ts';
import { labels } from './create.ts';
import { type EngineUser, engineUsers, inEngine } from './engine-program.ts';
import { lastWords } from './logs.ts';
import { engineHost } from './own-engine.ts';
import { fillDocker, fillPodman } from './store-programs.ts';

export interface ReadyImage {
  readonly id: string;
  /** What jobs call it. */
  readonly name: string;
}

/** Of volumes for jobs: their user. */
const readyLabel = 'onejob.ready';

/** Of the containers that fill volumes. */
const fillerLabel = 'onejob.filler';

export class ImageStore {
  readonly #engine: Engine;
  readonly #owner: string;
  readonly user: EngineUser;
  readonly volume: string;
  /** Ids of images that are in it, and volumes that have all that they should. */
  readonly #there = new Set<string>();
  /** By pool, the volume that its jobs read. */
  readonly #used = new Map<string, string>();
  /** By agent that is being prepared, the volume that it is about to read, although its pool may have another one by now. */
  readonly #held = new Map<AgentId, string>();
  /** Some may have volumes that no pool uses any more. */
  #hasOld = false;
  /** By volume, its last writer: one at a time. */
  readonly #last = new Map<string, Promise<unknown>>();

  constructor(engine: Engine, owner: string, user: EngineUser) {
    this.#engine = engine;
    this.#owner = owner;
    this.user = user;
    this.volume = `onejob-${owner}-${user === engineUsers.trusted ? '' : `${user.name}-`}images`;
  }

  /** Puts an image of the Engine into it, if it is missing. Its name there. `maker`: id of the image of the engines. */
  async ensure(id: string, maker: string, progress: Progress, signal: AbortSignal): Promise<string> {
    const name = `localhost/onejob:${id.replace(/^sha256:/, '')}`;
    await this.#once(id, this.volume, signal, async () => {
      progress('making its image ready for the engines of agents');
      await this.#fill(id, this.volume, [fillPodman, name], maker, signal);
    });
    return name;
  }

  /**
   * A volume with images of the Engine for the jobs of a pool. It is filled if it is new, and then those that are no longer used go. This
   * one stays until `letGo`, as Docker would make a missing one anew, and empty.
   */
  async ready(
    agent: AgentId,
    pool: string,
    images: readonly ReadyImage[],
    maker: string,
    progress: Progress,
    signal: AbortSignal,
  ): Promise<string> {
    const engine = this.#engine;
    const volume = `${this.volume}-${hash('sha256', JSON.stringify([maker, images])).slice(0, 12)}`;
    this.#held.set(agent, volume);
    const isNew = !(await engine.hasVolume(volume, [readyLabel], signal));
    if (isNew) {
      // Somebody has removed it. Docker may have made it anew for an agent, and without labels nobody would find it later.
      this.#there.delete(volume);
      await engine.removeVolume(volume);
    }
    await this.#once(volume, volume, signal, async () => {
      for (const [at, { id, name }] of images.entries()) {
        progress(`making image ${name} ready for its jobs`);
        const isLast = at === images.length - 1;
        if (!(await this.#fill(id, volume, [fillDocker, String(at), name, isLast ? 'last' : ''], maker, signal))) return;
      }
    });
    // Only now, since until then others of the pool may read the one before.
    this.#used.set(pool, volume);
    this.#hasOld ||= isNew;
    if (!this.#hasOld) return volume;
    const used = new Set([...this.#used.values(), ...this.#held.values()]);
    // That of a pool which has had no agent since the start may be among them, and is made again.
    for (const old of await engine.danglingVolumes([`${labels.owner}=${this.#owner}`, `${readyLabel}=${this.user.name}`], signal))
      if (!used.has(old)) await engine.removeVolume(old).catch(() => {});
    return volume;
  }

  /** To be called once an agent has its container, or gets none. */
  letGo(agent: AgentId): void {
    this.#held.delete(agent);
  }

  /** To be called if somebody may have removed volumes: all images, or those of an agent, are looked for and put there again. */
  forget(agent?: { readonly agent: AgentId; readonly imageId: string }): void {
    if (agent === undefined) this.#there.clear();
    else for (const key of [agent.imageId, this.#held.get(agent.agent)]) if (key !== undefined) this.#there.delete(key);
  }

  /** Removes what a manager that was killed has left of this. */
  async sweep(): Promise<void> {
    const fillers = await this.#engine.containers([`${labels.owner}=${this.#owner}`, fillerLabel]);
    for (const { Id } of fillers) await this.#engine.remove(Id);
  }

  /** Does the work, after that of others on the same volume, unless it was done. */
  async #once(key: string, volume: string, signal: AbortSignal, fill: () => Promise<void>): Promise<void> {
    if (this.#there.has(key)) return;
    const work = (this.#last.get(volume) ?? Promise.resolve()).then(async () => {
      signal.throwIfAborted();
      if (this.#there.has(key)) return;
      await fill();
      this.#there.add(key);
    });
    this.#last.set(
      volume,
      work.catch(() => {}),
    );
    await work;
  }

  /** False if all was there. */
  async #fill(id: string, volume: string, command: readonly string[], maker: string, signal: AbortSignal): Promise<boolean> {
    const engine = this.#engine;
    const own = { [labels.owner]: this.#owner };
    const Labels = volume === this.volume ? own : { ...own, [readyLabel]: this.user.name };
    await engine.remove(volume);
    const mount = { Type: 'volume', Source: volume, Target: inEngine.images, VolumeOptions: { Labels } };
    const filler = await engine.create(volume, {
      Image: maker,
      User: this.user.name,
      Entrypoint: ['sh', '-c', ...command],
      Env: [`HOME=/home/${this.user.name}`, `XDG_RUNTIME_DIR=/run/${this.user.name}`, 'PODMAN_IGNORE_CGROUPSV1_WARNING=1'],
      Labels: { ...own, [fillerLabel]: '' },
      OpenStdin: true,
      StdinOnce: true,
      HostConfig: { ...engineHost(), NetworkMode: 'none', Mounts: [mount] },
    });
    await using opened = new AsyncDisposableStack();
    opened.defer(async () => void (await engine.remove(filler)));
    const path = `${attachPath(filler)}&stdout=1`;
    const socket = await engine.upgrade(path, 'make an image ready for the engines of agents', signal);
    // The Engine closes it neither at the end of its container nor with its removal, and while it is open, the process cannot end.
    opened.defer(() => void socket.destroy());
    const wanted = once(socket, 'data');
    wanted.catch(() => {});
    socket.resume();
    await engine.start(filler);
    const over = new AbortController();
    const ended = engine.ended(filler, signal).finally(() => over.abort());
    ended.catch(() => {});
    // An Engine that is asked for an image may write all of it to its disk first.
    const hasEnded = ended.then(() => false);
    const isWanted = await Promise.race([wanted.then(() => true).catch(() => hasEnded), hasEnded]);
    const image = isWanted ? await engine.saveImage(id, signal) : null;
    // If the program ends early, the Engine takes no more input without saying so.
    if (image !== null) await pipeline(image, socket, { signal: over.signal }).catch(() => {});
    await ended;
    const code = (await engine.inspect(filler, signal))?.State.ExitCode ?? null;
    if (code === 0) return isWanted;
    const said = isWanted && image === null ? 'it is no longer on the Engine' : await lastWords(engine, filler, signal);
    const doing = `make image ${id} ready for the engines of agents`;
    if (isDiskFull(said)) throw diskFull(doing, said, null);
    throw new OnejobError('E_ENGINE_FAILED', `Cannot ${doing}: ${said || `its program ended with exit code ${code}`}.`, {
      retry: true,
    });
  }
}
