/** What a host with GPUs has from its config beside its leases: findings, the owner's repair, CPUs near a card, standbys that last. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { card, driver580 } from '../support/gpu-cards.ts';
import { type GpuHost, gpuHost } from '../support/gpu-host.ts';
import { device, finish, hold, outputOf, running } from '../support/gpu-jobs.ts';
import { poolOf, slotOf, standbyOf } from '../support/look.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

/** Puts a tool beside the host's nvidia-smi. */
function tool(host: GpuHost, name: string, body: string): void {
  writeFileSync(join(host.dir, 'tools', name), `#!/bin/sh\n${body}\n`, { mode: 0o755 });
}

/** Another driver, as after a reboot: nothing else changes what the tool lists. */
function exchangeDriver({ dir }: GpuHost, version: string): void {
  for (const file of ['now/all.xml', 'proc/driver/nvidia/version']) {
    const path = join(dir, file);
    writeFileSync(path, readFileSync(path, 'utf8').replaceAll(driver580.version, version));
  }
}

function readOr(path: string): string | null {
  return existsSync(path) ? readFileSync(path, 'utf8') : null;
}

async function home(host: GpuHost, config: Readonly<Record<string, unknown>>) {
  const here = await onejob({ config: '', env: host.env });
  mkdirSync(join(here.dir, 'go'));
  const defaults = { runtime: 'process', stop_grace: '1s', volumes: [`${join(here.dir, 'go')}:/go`] };
  here.configure(JSON.stringify({ defaults, ...config }));
  return here;
}

describe.skipIf(lacks('bubblewrap', 'root'))('a host with GPUs', () => {
  test('doctor says what needs fixing, what pools cannot have, and what to type', async () => {
    using host = gpuHost([card(0, { persistence: false }), card(1)]);
    tool(host, 'nvidia-ctk', 'echo "NVIDIA Container Toolkit CLI version 1.14.3"');
    tool(host, 'nvidia-container-cli', 'echo "NVRM version:   570.133.20"');
    tool(host, 'systemctl', 'echo inactive; exit 3');
    for (const name of ['apt-config', 'mokutil']) tool(host, name, 'exit 1');
    const pools = {
      train: { agents: 2, devices: 1 },
      test: { agents: 1, devices: { model: 'H100' } },
      large: { agents: 1, devices: { memory: '>=140GiB' } },
    };
    await using here = await home(host, { pools });
    const daemon = await here.up();
    await expect.poll(async () => (await poolOf(here, 'train')).paused).toEqual([]);
    const { stdout, code } = await here.cli(['doctor']).ended;
    const words = stdout.replace(/\s+/g, ' ');
    expect(words).toContain(`warning GPUs: Persistence mode is off for ${card(0).uuid}`);
    expect(words).toContain('sudo systemctl enable --now nvidia-persistenced');
    expect(words).toContain('warning container toolkit: It has version 1.14.3; below 1.17.8');
    expect(words).toContain('nvidia-container-cli finds driver 570.133.20, but the loaded driver is 580.105.08');
    expect(words).toContain(
      'error pool test: It asks for devices for one agent, but gets none: 2 devices of this host fit, of which pool train has 2.',
    );
    expect(words).toMatch(/error pool large: No device of this host matches what it asks for; the nearest, NVIDIA H100 80GB HBM3/);
    expect(words.match(/pool test: /g)).toHaveLength(1);
    expect(code).toBe(1);
    // The same when it started.
    expect(daemon.child.stderr + daemon.child.stdout).toMatch(/"what":"pool large"/);
  });

  test('the owner’s command runs for a device in quarantine, and a repaired device is used again at once', async () => {
    using host = gpuHost([card(0)]);
    const done = join(host.dir, 'repair');
    tool(
      host,
      'repair-gpu',
      `echo "$ONEJOB_DEVICE $ONEJOB_PCI $1" >'${done}.asked'; until [ -e '${done}.done' ]; do sleep 0.05; done; echo repaired`,
    );
    await using here = await home(host, { pools: { gpu: { agents: 1, devices: 1 } }, on_quarantine: ['repair-gpu', '--now'] });
    const daemon = await here.up();
    const job = await hold(here, 'gpu');
    await running(here, job);
    host.change(0, { eccErrors: 2 });
    await finish(job);
    const { uuid, pciId } = card(0);
    await expect.poll(async () => (await device(here, uuid))?.state, { timeout: 20_000 }).toBe('quarantined');
    await expect.poll(() => readOr(`${done}.asked`)).toBe(`${uuid} ${pciId} --now\n`);
    host.change(0, { eccErrors: 0 });
    writeFileSync(`${done}.done`, '');
    // By itself it would be looked at after a minute at the earliest.
    await expect.poll(async () => (await device(here, uuid))?.state, { timeout: 20_000 }).toMatch(/free|leased/);
    expect(daemon.child.stderr + daemon.child.stdout).toMatch(/"output":"repaired","event":"repaired"/);
    const again = await hold(here, 'gpu');
    await finish(again);
  });

  test('agents run on the CPUs near their cards, where the pool asks for that', async () => {
    using host = gpuHost([card(0)]);
    writeFileSync(join(host.dir, 'sys/bus/pci/devices', card(0).pciId, 'local_cpulist'), '0\n');
    const devices = { count: 1, numa: true };
    await using here = await home(host, { pools: { near: { agents: 1, devices } } });
    await here.up();
    const { id } = await here.api.submit({ command: ['sh', '-c', 'grep Cpus_allowed_list /proc/self/status'], pool: 'near' });
    await here.api.settled(id);
    expect(await outputOf(here, id)).toMatch(/Cpus_allowed_list:\s+0$/m);
  });

  test('a standby outlives a manager, and not the driver that it was made with', async () => {
    using host = gpuHost([card(0)]);
    await using here = await home(host, { pools: { gpu: { agents: 1, devices: 1 } } });
    const first = await here.up();
    await expect.poll(() => standbyOf(here, 'gpu/1')).not.toBeNull();
    const standby = await standbyOf(here, 'gpu/1');
    await first.kill();
    const second = await here.up();
    await expect.poll(async () => (await poolOf(here, 'gpu')).paused).toEqual([]);
    expect((await slotOf(here, 'gpu/1')).standby).toMatchObject({ state: 'standby', agent: standby });
    await second.kill();
    exchangeDriver(host, '590.48.01');
    await here.up();
    await expect.poll(() => standbyOf(here, 'gpu/1')).not.toBe(standby);
    await expect.poll(() => standbyOf(here, 'gpu/1')).not.toBeNull();
  });
});
