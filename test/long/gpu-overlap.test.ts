/**
 * S1 with a real Engine: through 500 jobs that end in every way and 20 `kill -9` of the manager, no two containers that the hook
 * gave the same card to are ever alive at the same time. The hook's log says who was given what, the Engine's events who lived
 * when; nothing of onejob's own is asked.
 */
import { createInterface } from 'node:readline';
import { describe, expect, test } from 'vitest';
import type { JobView } from '../../src/contract/schema.ts';
import { card } from '../support/gpu-cards.ts';
import { gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { ensureImages, images } from '../support/images.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const [jobs, kills] = [500, 20];

interface Ending {
  readonly script: string;
  /** ms */
  readonly timeout: number | null;
  readonly result: JobView['result'];
}

const endings: readonly Ending[] = [
  { script: 'exit 0', timeout: null, result: { kind: 'code', code: 0 } },
  { script: 'sleep 0.3', timeout: null, result: { kind: 'code', code: 0 } },
  { script: 'exit 7', timeout: null, result: { kind: 'code', code: 7 } },
  { script: 'kill -9 $$', timeout: null, result: { kind: 'code', code: 137 } },
  { script: "trap '' TERM; while :; do sleep 0.1; done", timeout: 400, result: { kind: 'timeout' } },
];

interface Life {
  started: number;
  died: number;
}

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'root'))('agents on cards', () => {
  test(`never overlap: ${jobs} endings and ${kills} kills of the manager`, async () => {
    const cards = Array.from({ length: 4 }, (_, n) => card(n));
    await using gpus = await gpuEngine({ cards });
    const { socket, api } = gpus.engine;
    await ensureImages(socket);
    const lives = new Map<string, Life>();
    const filters = encodeURIComponent(JSON.stringify({ type: ['container'], event: ['start', 'die'] }));
    const events = await api.stream('GET', `/events?filters=${filters}`);
    createInterface({ input: events }).on('line', (line) => {
      const { id, status, timeNano } = JSON.parse(line) as { id: string; status: string; timeNano: number };
      const life = lives.get(id) ?? { started: Number.NaN, died: Number.POSITIVE_INFINITY };
      if (status === 'start') life.started = timeNano;
      else life.died = timeNano;
      lives.set(id, life);
    });
    using host = gpuHost(cards);
    // Cards go from slot to slot: each job leases its own.
    const pools = { one: { agents: 6, devices: 1, standby: false }, two: { agents: 2, devices: 2, standby: false } };
    const defaults = { runtime: 'docker', image: images.base, network: 'none', stop_grace: '200ms' };
    await using here = await onejob({
      config: JSON.stringify({ defaults, pools }),
      env: { ...host.env, DOCKER_HOST: `unix://${socket}` },
      engine: socket,
    });
    let daemon = await here.up();
    const all: { readonly id: string; readonly ending: Ending }[] = [];
    for (let kill = 0; kill < kills; kill++) {
      for (let n = 0; n < jobs / kills; n++) {
        const ending = endings[(kill * 7 + n * 3) % endings.length] as Ending;
        const pool = n % 5 === 0 ? 'two' : 'one';
        const { id } = await here.api.submit({ command: ['sh', '-c', ending.script], pool, timeout: ending.timeout });
        all.push({ id, ending });
      }
      // Killed in the middle of them, each time a little later.
      const target = all[kill * 12];
      if (target !== undefined) await here.api.settled(target.id);
      await daemon.kill();
      daemon = await here.up();
    }
    const results = await Promise.all(all.map(async ({ id }) => (await here.api.settled(id)).result));
    expect(results).toEqual(all.map(({ ending }) => ending.result));
    await daemon.stop();
    expect((await here.census()).left).toEqual([]);
    events.destroy();

    const granted = gpus.granted();
    expect(granted.length).toBeGreaterThanOrEqual(jobs);
    for (const { uuid } of cards) {
      const users = granted.filter(({ devices }) => devices.includes(uuid)).map(({ id }) => lives.get(id));
      const times = users.filter((life) => life !== undefined && !Number.isNaN(life.started)) as Life[];
      times.sort((a, b) => a.started - b.started);
      expect(times.length).toBeGreaterThan(jobs / 8);
      expect(times.filter((life, n) => life.died > (times[n + 1]?.started ?? Number.POSITIVE_INFINITY))).toEqual([]);
    }
  });
});
