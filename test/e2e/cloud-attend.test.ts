/** What a machine of a cloud does to its daemon: the real daemon, with a controller and a cloud that are acted out. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { createClient } from '../../src/api/client.ts';
import { attend } from '../../src/machines/join/attend.ts';
import type { Memory } from '../../src/machines/join/attend-state.ts';
import { localDaemon } from '../../src/machines/join/local-daemon.ts';
import { newSecret, type Order, type StageName } from '../../src/machines/join/protocol.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const config = 'pools: { default: { agents: 2, runtime: process } }\n';
const quiet = { info() {}, warn() {}, error() {} };

/** Attends to the daemon of `home` until it is drained. `order`: of the controller. `notice`: ms until the cloud takes the machine. */
async function attended(home: Home, { order = 'stay', notice }: { order?: Order; notice?: number }): Promise<StageName[]> {
  const client = createClient({ socket: home.socket, version: 'test' });
  const over = new AbortController();
  const stages: StageName[] = [];
  let memory: Memory | null = null;
  await attend(
    {
      machine: { guestEnds: false, away: 60 },
      credential: newSecret(),
      beat: 200,
      clock: systemClock,
      log: quiet,
      client: {
        async stage(stage) {
          stages.push(stage);
          if (stage === 'drained') over.abort();
        },
        beat: async () => order,
      },
      daemon: localDaemon(client, { clock: systemClock, log: quiet }),
      tunnel: null,
      interruptions:
        notice === undefined ? null : { every: 1_000, look: async () => (stages.includes('joined') ? Date.now() + notice : null) },
      memory: {
        read: () => memory,
        write(value) {
          memory = value;
        },
      },
      async powerOff() {},
    },
    over.signal,
  );
  client.close();
  return stages;
}

const verdicts = async (home: Home) => {
  const { stdout } = await home.cli(['jobs', '--all', '--json']).ended;
  const jobs = JSON.parse(stdout) as { state: string; verdict: { kind: string } | null; result: unknown }[];
  return jobs.map(({ state, verdict, result }) => ({ state, kind: verdict?.kind, result }));
};

describe.skipIf(lacks('bubblewrap'))('a machine of a cloud', () => {
  test('that the cloud takes back counts its job as lost to the infrastructure', async () => {
    await using home = await onejob({ config });
    const daemon = await home.up();
    const job = home.run('--no-workspace', '--', 'sh', '-c', 'echo begun; sleep 600');
    await job.says(/begun/);
    // Ends 12 s before.
    expect(await attended(home, { notice: 13_000 })).toEqual(['joined', 'preempted', 'drained']);
    expect(await daemon.child.ended).toMatchObject({ code: 0 });
    expect((await job.ended).code).not.toBe(0);
    expect(await verdicts(home)).toEqual([
      {
        state: 'done',
        kind: 'infrastructure',
        result: { kind: 'lost', reason: 'the cloud ended the machine while the job ran' },
      },
    ]);
  });

  test('that drains lets its job end, and takes no other', async () => {
    await using home = await onejob({ config: '' });
    home.configure(config.replace('process', `process, volumes: ["${home.cwd}:/flags"]`));
    const daemon = await home.up();
    const job = home.run('--no-workspace', '--', 'sh', '-c', 'echo begun; until [ -e /flags/go ]; do sleep 0.05; done; exit 7');
    await job.says(/begun/);
    const over = attended(home, { order: 'drain' });
    await expect.poll(async () => (await home.api.status()).pools[0]?.draining).toBe(true);
    expect((await home.run('--detach', '--no-workspace', '--', 'true').ended).code).toBe(0);
    writeFileSync(join(home.cwd, 'go'), '');
    expect(await job.ended).toMatchObject({ code: 7, stdout: 'begun\n' });
    expect(await over).toEqual(['joined', 'drained']);
    expect(await daemon.child.ended).toMatchObject({ code: 0 });
    expect((await verdicts(home)).map(({ state }) => state)).toEqual(['done', 'queued']);
  });
});
