/**
 * The files of jobs in the folder that the Engine of the config finds too. Jobs, and containers that they left, can change anything there
 * at any time: so nothing is removed with more rights than they have, or a link put there in time would make root remove other files.
 */
import { opendir } from 'node:fs/promises';
import { join } from 'node:path';
import { codeOf, messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Clock, deadline, sleep } from '../../core/clock.ts';
import type { AgentId } from '../../core/slot.ts';
import { run } from '../../system/run.ts';
import type { Registrations } from '../early/registrations.ts';
import type { SlotFacts } from '../parts.ts';
import type { GithubServiceConfig } from './config.ts';
import { whoControls } from './engine-owner.ts';

interface Parts {
  readonly docker: NonNullable<GithubServiceConfig['docker']>;
  readonly agentNames: Registrations['agentNames'];
  readonly slots: Pick<SlotFacts, 'poolOf'>;
  readonly clock: Clock;
  readonly log: Pick<Log, 'warn'>;
}

/** ms: between two sweeps, of one removal, and how long the end of the daemon waits for removals. */
const [hour, longest, patience] = [3_600_000, 300_000, 5_000];
/** Folders per sweep, since jobs can make any number. */
const most = 100;
/** Has no rights that others lack. */
const nobody = 65_534;

/** The agent's own folder. Two installations may share `folder`, so its name has the mark of this one. */
export function sharedFolder({ docker: { folder }, agentNames }: Pick<Parts, 'docker' | 'agentNames'>, agent: AgentId): string {
  return join(folder, agentNames.agentName('job', agent));
}

export function createSharedFiles(parts: Parts) {
  const { docker, agentNames, slots, clock, log } = parts;
  const underWay = new Map<string, Promise<string | null>>();
  const stopping = new AbortController();

  /** Why it was not removed; null when nothing is there any more. Never rejects. */
  function remove(path: string): Promise<string | null> {
    const same = underWay.get(path);
    if (same !== undefined) return same;
    const removal = removeAsOwner(path, docker.socket, stopping.signal)
      .catch((error: unknown) => messageOf(error))
      .finally(() => underWay.delete(path));
    underWay.set(path, removal);
    return removal;
  }

  /** Removes what agents left that are in no slot any more. */
  async function sweep(signal: AbortSignal): Promise<void> {
    const left: { path: string; reason: string }[] = [];
    for (const name of await namesLeft()) {
      if (signal.aborted) return;
      const path = join(docker.folder, name);
      const reason = await remove(path);
      if (reason !== null) left.push({ path, reason });
    }
    if (left[0] !== undefined && !signal.aborted)
      log.warn('failed to remove the files of jobs', { folders: left.length, ...left[0] });
  }

  async function namesLeft(): Promise<readonly string[]> {
    const found: string[] = [];
    try {
      for await (const { name } of await opendir(docker.folder)) {
        const agent = agentNames.agentOf(name);
        if (agent !== null && slots.poolOf(agent) === null) found.push(name);
        if (found.length === most) break;
      }
    } catch (error) {
      if (codeOf(error) !== 'ENOENT')
        log.warn('failed to look for files of jobs', { path: docker.folder, reason: messageOf(error) });
    }
    return found;
  }

  return {
    /** In the background: the slot, and its devices, do not wait for it. What fails is left to the sweep. */
    remove(agent: AgentId): void {
      const path = sharedFolder(parts, agent);
      void remove(path).then((reason) => {
        if (reason !== null && !stopping.signal.aborted) log.warn('failed to remove the files of a job', { agent, path, reason });
      });
    },
    /** Sweeps at once, and then every hour. Never rejects. */
    async watch(signal: AbortSignal): Promise<void> {
      const either = AbortSignal.any([signal, stopping.signal]);
      while (!either.aborted) {
        await sweep(either);
        await sleep(clock, hour, either);
      }
    },
    /** Waits a few seconds for removals; the next sweep continues. */
    async close(): Promise<void> {
      const all = Promise.all(underWay.values());
      using limit = deadline(clock, patience);
      const over = new Promise((resolve) => limit.signal.addEventListener('abort', resolve, { once: true }));
      await Promise.race([all, over]);
      stopping.abort();
    },
  };
}

async function removeAsOwner(path: string, socket: string, signal: AbortSignal): Promise<string | null> {
  const isRoot = process.getuid?.() === 0;
  const uid = whoControls(socket);
  if (isRoot && uid === null) return `${socket} is not there, so onejob does not know with whose rights to remove them`;
  // Node drops all other groups (libuv, `uv__process_child_init`). A process of that user can read the environment.
  const as = isRoot && uid !== null && uid !== 0 ? { uid, gid: nobody } : {};
  // What it says could be of any length.
  const script = 'exec rm -rf --one-file-system -- "$1" >/dev/null 2>&1';
  const options = { ...as, cwd: '/', env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' }, timeout: longest, signal };
  const { code, error } = await run('/bin/sh', ['-c', script, 'sh', path], options);
  if (error === null) return null;
  return `rm ${code === null ? 'took too long' : `ended with ${code}`}${uid === null || !isRoot ? '' : `, as user ${uid}`}`;
}
