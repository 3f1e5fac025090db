/**
 * S1, S4, S5 and S7 on cards: through 500 jobs that end in every way and 20 `kill -9` of the manager no card is ever used by two
 * jobs at a time. The proof is the jobs' own: each takes the kernel's lock on a file per card and holds it with its last process.
 */
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { JobView } from '../../src/api/schema.ts';
import type { Boundary } from '../../src/pools/executors.ts';
import { card } from '../support/gpu-cards.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { gpuHome } from '../support/gpu-jobs.ts';
import type { Home } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

/** Takes each of its cards for as long as it or anything of it lives, and says so; nobody else's user may close the files. */
const begin = `umask 0
fd=3
for card in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do
  eval "exec $fd>>/log/$card"
  flock -n $fd || echo "$card $ONEJOB_JOB_ID" >>/log/overlap
  echo "start $card $ONEJOB_JOB_ID" >>/log/all
  fd=$((fd + 1))
done`;
const end = `for card in $(echo "$CUDA_VISIBLE_DEVICES" | tr , ' '); do echo "end $card $ONEJOB_JOB_ID" >>/log/all; done`;
const forever = 'while :; do sleep 0.05; done';

interface Ending {
  readonly script: string;
  /** ms */
  readonly timeout?: number;
  readonly isCancelled?: boolean;
  readonly result: JobView['result'];
}

const endings: readonly Ending[] = [
  { script: end, result: { kind: 'code', code: 0 } },
  { script: `sleep 0.1; ${end}`, result: { kind: 'code', code: 0 } },
  { script: `${end}; exit 7`, result: { kind: 'code', code: 7 } },
  { script: 'kill -9 $$', result: { kind: 'code', code: 137 } },
  { script: `setsid sh -c "trap '' TERM HUP; ${forever}" & ${end}`, result: { kind: 'code', code: 0 } },
  { script: `trap '${end}; exit 0' TERM; ${forever}`, timeout: 3_000, result: { kind: 'timeout' } },
  { script: `trap '' TERM; ${forever}`, timeout: 3_000, result: { kind: 'timeout' } },
  { script: `trap '${end}; exit 0' TERM; ${forever}`, isCancelled: true, result: { kind: 'cancelled' } },
];

/** The same numbers for the same seed. */
function random(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

function logFolder(here: Home): string {
  const folder = join(here.dir, 'log');
  mkdirSync(folder, { recursive: true });
  chmodSync(folder, 0o777);
  return folder;
}

/** What the jobs have written, and that no card was ever in two hands. */
function checkLog(folder: string): Map<string, string[]> {
  expect(existsSync(join(folder, 'overlap')) ? readFileSync(join(folder, 'overlap'), 'utf8') : '').toBe('');
  const lines = readFileSync(join(folder, 'all'), 'utf8').split('\n').slice(0, -1);
  const cardsOf = new Map<string, string[]>();
  const usedBy = new Map<string, string>();
  const ends = new Set(lines.filter((line) => line.startsWith('end ')));
  for (const line of lines) {
    const [what = '', uuid = '', job = ''] = line.split(' ');
    const user = usedBy.get(uuid);
    if (what === 'end') usedBy.delete(uuid);
    else {
      // One that was killed says no end; the kernel has let go of its lock.
      if (user !== undefined && ends.has(`end ${uuid} ${user}`))
        throw new Error(`${uuid} went from ${user} to ${job} before its end`);
      usedBy.set(uuid, job);
      cardsOf.set(job, [...(cardsOf.get(job) ?? []), uuid]);
    }
  }
  return cardsOf;
}

interface Layout {
  readonly name: string;
  readonly cards: number;
  readonly pools: Readonly<Record<'one' | 'two', object>>;
}

const layouts: readonly Layout[] = [
  { name: 'each slot with cards of its own', cards: 12, pools: { one: { agents: 8, devices: 1 }, two: { agents: 2, devices: 2 } } },
  {
    name: 'two pools that lease the same cards for each job',
    cards: 8,
    pools: { one: { agents: 8, devices: 1, standby: false }, two: { agents: 4, devices: 2, standby: false } },
  },
];

describe.skipIf(lacks('bubblewrap', 'root'))('no card is ever used by two jobs', () => {
  test.each(layouts)('through 250 endings and 10 kills: $name', async ({ cards, pools }) => {
    using host = gpuHost(Array.from({ length: cards }, (_, n) => card(n)));
    await using here = await gpuHome(host, {});
    const folder = logFolder(here);
    const defaults = { runtime: 'process', stop_grace: '300ms', volumes: [`${folder}:/log:rw`] };
    here.configure(JSON.stringify({ defaults, pools }));
    const pick = random(cards);
    const jobs: { readonly id: string; readonly pool: string; readonly ending: Ending }[] = [];
    let daemon = await here.up();
    for (let kill = 0; kill < 10; kill++) {
      for (let n = 0; n < 25; n++) {
        const ending = endings[pick(endings.length)] ?? { script: end, result: null };
        const pool = pick(4) === 0 ? 'two' : 'one';
        const command = ['sh', '-c', `${begin}\n${ending.script}`];
        const { id } = await here.api.submit({ command, pool, timeout: ending.timeout ?? null });
        jobs.push({ id, pool, ending });
      }
      await new Promise((resolve) => setTimeout(resolve, pick(1_500)));
      for (const { id, ending } of jobs) {
        if (ending.isCancelled && (await here.api.job(id)).state === 'running') await here.api.cancel(id);
      }
      await daemon.kill();
      daemon = await here.up();
    }
    const settled = await Promise.all(
      jobs.map(async ({ id, ending }) => {
        if (ending.isCancelled) {
          await expect.poll(async () => (await here.api.job(id)).state, { timeout: 240_000 }).not.toBe('queued');
          await expect.poll(async () => (await here.api.job(id)).state, { timeout: 60_000 }).toMatch(/running|settling|done/);
          await here.api.cancel(id);
        }
        return here.api.settled(id);
      }),
    );
    expect(settled.map(({ result }) => result)).toEqual(jobs.map(({ ending }) => ending.result));
    // Each began once, with as many cards as its pool gives. One that is told to end at once may not come to say so, or of one only.
    const cardsOf = checkLog(folder);
    const counts = jobs.map(({ id }) => new Set(cardsOf.get(id)).size);
    const wanted = jobs.map(({ pool }) => (pool === 'two' ? 2 : 1));
    const wrong = jobs.filter((job, at) => {
      const [count = 0, full = 0] = [counts[at], wanted[at]];
      return count !== full && !(job.ending.isCancelled && count < full);
    });
    expect(wrong).toEqual([]);
    expect([...cardsOf.values()].flat().length).toBe(counts.reduce((sum, count) => sum + count, 0));
    expect((await here.api.devices()).map(({ state }) => state)).not.toContain('quarantined');
    await daemon.stop();
    expect((await here.census()).left).toEqual([]);
    expect(readdirSync(join(host.dir, 'locks'))).toEqual([]);
  });

  const boundaries: Boundary[] = ['prove.intent', 'prove.effect', 'prove.record'];
  test.each(boundaries)('killed at %s: the next manager proves it, and the next job has the card', async (boundary) => {
    using host = gpuHost([card(0)]);
    await using here = await gpuHome(host, { gpu: { agents: 1, devices: 1 } });
    const doomed = here.cli(['up'], { env: { ONEJOB_CRASH_AT: boundary } });
    await doomed.says(/onejob is up/);
    const run = here.run('--no-workspace', '--', 'sh', '-c', 'echo $CUDA_VISIBLE_DEVICES');
    expect((await doomed.ended).signal).toBe('SIGKILL');
    const daemon = await here.up();
    expect(await run.ended).toMatchObject({ code: 0, stdout: `${card(0).uuid}\n` });
    const again = await here.run('--no-workspace', '--', 'sh', '-c', 'echo $CUDA_VISIBLE_DEVICES').ended;
    expect(again).toMatchObject({ code: 0, stdout: `${card(0).uuid}\n` });
    const verdicts = async () => new Set((await here.api.proofs({ device: null, limit: 10 })).map(({ verdict }) => verdict));
    await expect.poll(verdicts).toEqual(new Set(['clean']));
    await daemon.stop();
    expect((await here.census()).left).toEqual([]);
  });
});
