/**
 * Images for the engines of agents: volumes that all of them read and only a container of ours writes. An engine uses an image in it
 * at once, without a copy. It works because its engines have the same ids, so those of untrusted jobs have volumes of their own.
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
import type { AgentId } from '../../core/slot.ts';
import type { Engine } from '../engine/engine.ts';
import { diskFull, isDiskFull } from '../engine/failures.ts';
import { attachPath } from './attach.ts';
import { labels } from './create.ts';
import { type EngineUser, engineUsers, inEngine } from './engine-program.ts';
import { engineHost } from './own-engine.ts';

const podman = `podman --root ${inEngine.images} --runroot $XDG_RUNTIME_DIR/fill`;

/**
 * Loads what comes from standard input under a name, unless it is there: it says a word if it wants it. A load that was interrupted is
 * repeated by the next one. It has its name only once it is on disk: Podman syncs no layer, and after a power cut every agent would get half an image.
 *
 * Podman skips layers that it knows, so it must forget those that such a load left: `filling` is what it knew before. Then it makes them anew.
 */
export const fillPodman = `name=$0
${podman} image exists "$name" && exit
echo wanted
cd ${inEngine.images} || exit
known='overlay-layers/layers.json overlay-images/images.json'
[ ! -e filling ] || for file in $known; do
  if [ -e "filling/$file" ]; then cp -a "filling/$file" before && mv before "$file"; else rm -f "$file"; fi || exit
done
rm -rf new && mkdir new || exit
for file in $known; do [ ! -e "$file" ] || cp -a --parents "$file" new || exit; done
sync -f . 2>/dev/null || sync || exit
rm -rf filling && mv new filling || exit
sync -f . 2>/dev/null || sync || exit
said=$(${podman} load -q) || exit
sync -f ${inEngine.images} 2>/dev/null || sync || exit
rm -rf filling
sync -f . 2>/dev/null || sync || exit
${podman} tag "\${said##*: }" "$name"`;

/**
 * The same for a Docker Engine: `$0` is the number of the image in its volume, `$1` its name, and `$2` not empty for the last one. It
 * syncs no layer either. So a volume in which not all images are on disk is emptied, and the first image begins it anew.
 */
export const fillDocker = `set -e; cd ${inEngine.images}; [ ! -e complete ] || exit 0
if [ "$0" = 0 ]; then
  rm -rf new seed
  # Only root of the namespace may remove what users of images own.
  [ ! -e docker ] || rootlesskit --state-dir=$XDG_RUNTIME_DIR/emptying rm -rf ${inEngine.images}/docker
elif [ ! -e seed ]; then
  echo 'somebody has removed the volume meanwhile' >&2; exit 1
fi
echo wanted
export DOCKER_HOST=unix://$XDG_RUNTIME_DIR/fill.sock
rootlesskit --state-dir=$XDG_RUNTIME_DIR/rootlesskit --net=host --copy-up=/run sh -c '
rm -f /run/docker /run/containerd /run/xtables.lock
exec dockerd -H $DOCKER_HOST --log-level error --data-root ${inEngine.images}/docker --exec-root $XDG_RUNTIME_DIR/docker \
  --pidfile $XDG_RUNTIME_DIR/docker.pid --storage-driver overlay2 --bridge none --iptables=false --ip6tables=false' &
until docker image ls -q >/dev/null 2>&1; do kill -0 $!; sleep 0.1; done
said=$(docker load -q)
docker tag "\${said##*: }" "$1"
kill "$(cat $XDG_RUNTIME_DIR/docker.pid)"; wait $! || :
rm -rf new seed; mkdir -m 710 new new/overlay2; cp -a docker/image new
cd docker/overlay2; cp -a --parents l */[cl]* ../../new/overlay2
for files in */diff; do
  mkdir "../../new/overlay2/\${files%diff}work"; ln -s "${inEngine.ready}/docker/overlay2/$files" "../../new/overlay2/$files"
done
cd ../..; mv new seed; sync -f . 2>/dev/null || sync
[ ! "$2" ] || : >complete`;

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

/** The last line that a container which has ended wrote; empty without one. */
async function lastWords(engine: Engine, id: string, signal: AbortSignal): Promise<string> {
  const log = await engine.logs(id, '0.000000000', signal).catch(() => null);
  const lines = log === null ? [] : (await text(log)).trim().split('\n');
  // Before each the Engine writes a few bytes and the time.
  return (lines.at(-1) ?? '').replace(/^.*?\d{4}-\S+Z /, '').slice(0, 300);
}
