/** Machines of a cloud that are played here: they join, work and drain as a real one does (test/long/cloud-boot.test.ts). */
import { createHash } from 'node:crypto';
import { setTimeout as after } from 'node:timers/promises';
import { parse } from 'yaml';
import { hasCode } from '../../src/base/errors.ts';
import { createJoinClient } from '../../src/machines/join/client.ts';
import { newSecret, type StageName } from '../../src/machines/join/protocol.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import type { Machines } from './cloud-standins.ts';

export interface Played {
  /** At the cloud. */
  readonly id: string;
  readonly run: string;
  readonly url: string;
  readonly token: string;
  readonly package: { readonly url: string; readonly sha256: string };
  /** The config that it got. */
  config: string;
  readonly stages: StageName[];
}

export interface Play {
  /** Whether its jobs run. */
  readonly isBusy?: () => boolean;
  /** Why its set-up fails; null: it does not. */
  readonly fails?: () => string | null;
  /** What it waits for when it has told `booted`, or instead of joining. */
  readonly beforeJoin?: (machine: Played) => Promise<void>;
  /** What happens before it tells `drained`. */
  readonly beforeDrained?: (machine: Played) => void;
}

/** ms between two reports. */
const beat = 50;

export function playMachines({ isBusy = () => false, fails = () => null, beforeJoin, beforeDrained }: Play = {}) {
  const played: Played[] = [];
  /** What was wrong with machines that the cloud had not ended. */
  const broken: unknown[] = [];
  const alive = new Set<string>();
  /** What those were told that their controller did not expect. */
  const unexpected = new Map<string, unknown>();

  async function play(machine: Played): Promise<void> {
    const { id, run, url, token } = machine;
    const signal = AbortSignal.timeout(240_000);
    const client = createJoinClient({ url, run, clock: systemClock, fetch });
    const tell = async (stage: StageName, secret: string, text = '') => {
      await patiently(() => client.stage(stage, text, secret, signal));
      machine.stages.push(stage);
    };
    /** As a machine does while its controller is away. */
    async function patiently<T>(call: () => Promise<T>): Promise<T | undefined> {
      while (alive.has(id))
        try {
          return await call();
        } catch (error) {
          if (!(error instanceof Error && 'code' in error && error.code === 'E_CLOUD_UNREACHABLE')) throw error;
          await after(beat);
        }
      return undefined;
    }
    await tell('booted', token);
    const why = fails();
    if (why !== null) return tell('failed', token, why);
    await beforeJoin?.(machine);
    await patiently(() => fetchPackage(machine));
    const credential = newSecret();
    const answer = await patiently(() => client.join({ token, credential, version: '0.1.0' }, signal));
    machine.config = answer?.config ?? '';
    await tell('joined', credential);
    for (let idleSince = Date.now(); alive.has(id); await after(beat)) {
      if (isBusy()) idleSince = Date.now();
      const said = { busy: isBusy() ? 1 : 0, agents: 1, waiting: null, idleFor: Date.now() - idleSince, problem: null };
      const order = await patiently(() => client.beat(said, credential, signal));
      if (order === undefined || order === 'stay' || isBusy()) continue;
      beforeDrained?.(machine);
      await tell('drained', credential);
      return;
    }
  }

  const machines: Machines = {
    boot(id, text) {
      alive.add(id);
      const files = (parse(text) as { write_files: { path: string; content: string }[] }).write_files;
      const of = (name: string) => files.find(({ path }) => path.endsWith(name))?.content ?? '';
      const { run, url, token } = JSON.parse(of('machine.json'));
      const setting = (name: string) => new RegExp(`^${name}='(.*)'$`, 'm').exec(of('settings'))?.[1] ?? '';
      const archive = { url: setting('package'), sha256: setting('sum') };
      const machine: Played = { id, run, url, token, package: archive, config: '', stages: [] };
      played.push(machine);
      play(machine).catch((error: unknown) => {
        if (!alive.has(id)) return;
        broken.push(error);
        if (hasCode(error, 'E_CLOUD_DENIED')) unexpected.set(id, error);
      });
    },
    end(id) {
      alive.delete(id);
      // Its controller expected it no more, and was about to end it.
      const at = unexpected.has(id) ? broken.indexOf(unexpected.get(id)) : -1;
      if (at >= 0) broken.splice(at, 1);
    },
  };
  return { machines, played, alive, broken };
}

/** As the boot script does it. */
async function fetchPackage({ package: { url, sha256 }, token }: Played): Promise<void> {
  let answer: Response;
  try {
    answer = await fetch(url, { headers: { authorization: `Bearer ${token}` } });
  } catch (cause) {
    throw Object.assign(new Error(`Nothing answers at ${url}.`, { cause }), { code: 'E_CLOUD_UNREACHABLE' });
  }
  const found = createHash('sha256')
    .update(Buffer.from(await answer.arrayBuffer()))
    .digest('hex');
  if (answer.status !== 200 || found !== sha256) throw new Error(`${url} answered ${answer.status}, with the checksum ${found}.`);
}
