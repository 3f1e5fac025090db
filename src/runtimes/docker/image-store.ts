/**
 * Images for the engines of agents: volumes that all of them read and only a container of ours writes. An engine uses an image in it
 * at once, without a copy. It works because all engines have the same ids.
 *
 * Podman reads one volume as its additional store. Docker has no such thing. So another volume has the folder of a Docker Engine that
 * was filled with the images of a pool, and a `seed`: what the engine of a job begins with. In that, the files of each layer are a
 * link to the volume. A set of images that changes gets a volume of its own, so nobody writes where engines read.
 */
import { hash } from 'node:crypto';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import type { Progress } from '../../base/abortable.ts';
import { OnejobError } from '../../base/errors.ts';
import type { Engine } from '../engine/engine.ts';
import { diskFull, isDiskFull } from '../engine/failures.ts';
import { attachPath } from './attach.ts';
import { labels } from './create.ts';
import { inEngine } from './engine-program.ts';
import { engineHost } from './own-engine.ts';

const podman = `podman --root ${inEngine.images} --runroot /run/engine/fill`;

/**
 * Loads what comes from standard input under a name, unless it is there: it says a word if it wants it. A load that was interrupted is
 * repeated by the next one. It has its name only once it is on disk: Podman syncs no layer, and after a power cut every agent would get half an image.
 */
export const fillPodman = `name=$0
${podman} image exists "$name" && exit
echo wanted
said=$(${podman} load -q) || exit
sync -f ${inEngine.images} 2>/dev/null || sync || exit
${podman} tag "\${said##*: }" "$name"`;

/** The same for a Docker Engine: `$0` is the number of the image in its volume, `$1` its name. */
const fillDocker = `set -e; cd ${inEngine.images}; [ ! -e "has/$0" ] || exit 0
echo wanted
export DOCKER_HOST=unix:///run/engine/fill.sock
rootlesskit --state-dir=/run/engine/rootlesskit --net=host --copy-up=/run sh -c '
rm -f /run/docker /run/containerd /run/xtables.lock
exec dockerd -H $DOCKER_HOST --log-level error --data-root ${inEngine.images}/docker --exec-root /run/engine/docker \
  --pidfile /run/engine/docker.pid --storage-driver overlay2 --bridge none --iptables=false --ip6tables=false' &
until docker image ls -q >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done
said=$(docker load -q)
docker tag "\${said##*: }" "$1"
kill "$(cat /run/engine/docker.pid)"; wait $! || :
rm -rf new seed; mkdir -m 710 new new/overlay2; cp -a docker/image new
cd docker/overlay2; cp -a --parents l */[cl]* ../../new/overlay2
for files in */diff; do
  mkdir "../../new/overlay2/\${files%diff}work"; ln -s "${inEngine.ready}/docker/overlay2/$files" "../../new/overlay2/$files"
done
cd ../..; mv new seed; sync -f . 2>/dev/null || sync
mkdir -p has; : >"has/$0"`;

export interface ReadyImage {
  readonly id: string;
  /** What jobs call it. */
  readonly name: string;
}

/** Of volumes for jobs. */
const readyLabel = 'onejob.ready';

export class ImageStore {
  readonly #engine: Engine;
  readonly #owner: string;
  readonly volume: string;
  /** Ids of images that are in it, and volumes that have all that they should. */
  readonly #there = new Set<string>();
  /** By pool, the volume that its jobs read. */
  readonly #used = new Map<string, string>();
  /** Some may have volumes that no pool uses any more. */
  #hasOld = false;
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
    await this.#once(id, signal, async () => {
      progress('making its image ready for the engines of agents');
      await this.#fill(id, this.volume, [fillPodman, name], maker, signal);
    });
    return name;
  }

  /** A volume with images of the Engine for the jobs of a pool. It is filled if it is new, and then those that are no longer used go. */
  async ready(
    pool: string,
    images: readonly ReadyImage[],
    maker: string,
    progress: Progress,
    signal: AbortSignal,
  ): Promise<string> {
    const engine = this.#engine;
    const volume = `${this.volume}-${hash('sha256', JSON.stringify([maker, images])).slice(0, 12)}`;
    this.#used.set(pool, volume);
    const isNew = !(await engine.hasVolume(volume, signal));
    // Somebody has removed it.
    if (isNew) this.#there.delete(volume);
    await this.#once(volume, signal, async () => {
      for (const [at, { id, name }] of images.entries()) {
        progress(`making image ${name} ready for its jobs`);
        await this.#fill(id, volume, [fillDocker, String(at), name], maker, signal);
      }
    });
    this.#hasOld ||= isNew;
    if (!this.#hasOld) return volume;
    const used = new Set(this.#used.values());
    // That of a pool which has had no agent since the start may be among them, and is made again.
    for (const old of await engine.danglingVolumes([`${labels.owner}=${this.#owner}`, readyLabel], signal))
      if (!used.has(old)) await engine.removeVolume(old).catch(() => {});
    return volume;
  }

  /** To be called if somebody has removed the volume: the images are put there again. */
  forget(): void {
    this.#there.clear();
  }

  /** Removes what a manager that was killed has left of this. */
  async sweep(): Promise<void> {
    await this.#engine.remove(this.volume);
  }

  /** Does the work, after that of others, unless it was done. */
  async #once(key: string, signal: AbortSignal, fill: () => Promise<void>): Promise<void> {
    const work = this.#last.then(async () => {
      signal.throwIfAborted();
      if (this.#there.has(key)) return;
      await fill();
      this.#there.add(key);
    });
    this.#last = work.catch(() => {});
    await work;
  }

  async #fill(id: string, volume: string, command: readonly string[], maker: string, signal: AbortSignal): Promise<void> {
    const engine = this.#engine;
    const own = { [labels.owner]: this.#owner };
    const Labels = volume === this.volume ? own : { ...own, [readyLabel]: '' };
    await this.sweep();
    const mount = { Type: 'volume', Source: volume, Target: inEngine.images, VolumeOptions: { Labels } };
    const filler = await engine.create(this.volume, {
      Image: maker,
      User: inEngine.user,
      Entrypoint: ['sh', '-c', ...command],
      Env: ['HOME=/home/engine', 'XDG_RUNTIME_DIR=/run/engine', 'PODMAN_IGNORE_CGROUPSV1_WARNING=1'],
      Labels: own,
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
    if (code === 0) return;
    const said = isWanted && image === null ? 'it is no longer on the Engine' : await lastWords(engine, filler, signal);
    const doing = `make image ${id} ready for the engines of agents`;
    if (isDiskFull(said)) throw diskFull(doing, said, null);
    throw new OnejobError('E_ENGINE_FAILED', `Cannot ${doing}: ${said || `its program ended with exit code ${code}`}.`, {
      retry: true,
    });
  }
}

/** The last line that a container which has ended wrote; empty without one. */
async function lastWords(engine: Engine, id: string, signal: AbortSignal): Promise<string> {
  const log = await engine.logs(id, '0.000000000', signal).catch(() => null);
  const lines = log === null ? [] : (await text(log)).trim().split('\n');
  // Before each the Engine writes a few bytes and the time.
  return (lines.at(-1) ?? '').replace(/^.*?\d{4}-\S+Z /, '').slice(0, 300);
}
