/** `image: auto` with a real Engine, whose images have the names that would be published, and a host whose cards do not exist. */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { card, driver580 } from '../support/gpu-cards.ts';
import { gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { gpuHost } from '../support/gpu-host.ts';
import { call, ensureImages, images } from '../support/images.ts';
import { poolOf, standbyOf } from '../support/look.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const plain = 'ubuntu:24.04';
const recent = 'nvidia/cuda:13.0.3-devel-ubuntu24.04';
const older = 'nvidia/cuda:12.4.1-devel-ubuntu22.04';

describe.skipIf(lacks('dockerd', 'root'))('image: auto', () => {
  test('pools have the image that suits driver and cards, and another when these are others', async () => {
    const first = card(0);
    await using gpus = await gpuEngine({ cards: [first] });
    const { socket } = gpus.engine;
    await ensureImages(socket);
    const tag = async (name: string): Promise<void> => {
      const [repo = '', version = ''] = name.split(':');
      const { status } = await call(socket, 'POST', `/images/${images.base}/tag?${new URLSearchParams({ repo, tag: version })}`);
      expect(status).toBe(201);
    };
    await tag(plain);
    await tag(recent);
    using host = gpuHost([first]);
    const pools = {
      cpu: { agents: 1 },
      gpu: { agents: 'per-device', devices: 1 },
      none: { agents: 1, devices: { model: 'A100' } },
    };
    await using here = await onejob({
      config: JSON.stringify({ defaults: { runtime: 'docker', image: 'auto', network: 'none', stop_grace: '1s' }, pools }),
      env: { ...host.env, DOCKER_HOST: `unix://${socket}` },
      engine: socket,
    });
    await here.up();
    await expect.poll(() => standbyOf(here, 'cpu/1')).not.toBeNull();
    await expect.poll(() => standbyOf(here, 'gpu/1').catch(() => null)).not.toBeNull();
    const { id } = await here.api.submit({ command: ['sh', '-c', 'echo $NVIDIA_VISIBLE_DEVICES; ls /dev/nvidia0'], pool: 'gpu' });
    expect((await here.api.settled(id)).result).toEqual({ kind: 'code', code: 0 });
    const doctor = (await here.cli(['doctor']).ended).stdout.replace(/\s+/g, ' ');
    expect(doctor).toContain(`ok pool cpu: Its image is ${plain} (image: auto).`);
    expect(doctor).toContain(`ok pool gpu: Its image is ${recent} (image: auto).`);
    expect(doctor).toContain('error pool none: Cannot choose an image for it: no device of this host matches what it asks for.');

    // An older driver has an older image, which is not there yet: the pool says so and starts once it is.
    await expect.poll(() => standbyOf(here, 'gpu/1')).not.toBeNull();
    const standby = await standbyOf(here, 'gpu/1');
    for (const file of ['now/all.xml', 'proc/driver/nvidia/version']) {
      const path = join(host.dir, file);
      const text = readFileSync(path, 'utf8').replaceAll(driver580.version, '550.54.14');
      writeFileSync(path, text.replace('<cuda_version>13.0<', '<cuda_version>12.4<'));
    }
    await expect
      .poll(async () => (await poolOf(here, 'gpu')).backoff?.reason, { timeout: 40_000 })
      .toContain(`Cannot pull image "${older}"`);
    expect(await standbyOf(here, 'gpu/1')).not.toBe(standby);
    await tag(older);
    await expect.poll(() => standbyOf(here, 'gpu/1'), { timeout: 40_000 }).not.toBeNull();
    const again = await here.api.submit({ command: ['true'], pool: 'gpu' });
    expect((await here.api.settled(again.id)).result).toEqual({ kind: 'code', code: 0 });
    expect(gpus.granted().every(({ devices }) => devices.join() === first.uuid || devices.join() === 'void')).toBe(true);
  });
});
