import { existsSync } from 'node:fs';
import { dirname } from 'node:path';
import { describe, expect, test } from 'vitest';
import { privateEngine } from '../support/dockerd.ts';
import { engineAt } from '../support/engine-http.ts';
import { ensureImages, images } from '../support/images.ts';
import { lacks } from '../support/require.ts';

const sleeper = { Image: images.base, Cmd: ['sh', '-c', 'echo up; exec sleep 300'], HostConfig: { NetworkMode: 'bridge' } };

describe.skipIf(lacks('docker', 'dockerd', 'busybox'))('a private Engine', () => {
  test('keeps containers over a kill with live-restore, and leaves nothing when closed', async () => {
    let dir = '';
    {
      await using engine = await privateEngine({ liveRestore: true });
      dir = dirname(engine.socket);
      await ensureImages(engine.socket);
      const { Id } = (await engine.api.ok('POST', '/containers/create', sleeper)) as { Id: string };
      await engine.api.ok('POST', `/containers/${Id}/start`);
      await engine.kill();
      expect(engine.pid).toBeNull();
      await engine.start();
      const seen = (await engine.api.ok('GET', `/containers/${Id}/json`)) as { State: { Running: boolean } };
      expect(seen.State.Running).toBe(true);
    }
    expect(existsSync(dir)).toBe(false);
    using machine = engineAt();
    const bridge = await machine.call('GET', '/networks/bridge');
    expect(bridge.status).toBe(200);
    expect(existsSync('/sys/class/net/docker0')).toBe(true);
  });

  test('ends its containers when stopped without live-restore', async () => {
    await using engine = await privateEngine();
    await ensureImages(engine.socket);
    const { Id } = (await engine.api.ok('POST', '/containers/create', { ...sleeper, HostConfig: { Init: true } })) as {
      Id: string;
    };
    await engine.api.ok('POST', `/containers/${Id}/start`);
    // Started is not yet there: its init takes signals only once it runs.
    await expect.poll(() => engine.api.ok('GET', `/containers/${Id}/logs?stdout=1`)).toContain('up');
    await engine.stop();
    await engine.start();
    const seen = (await engine.api.ok('GET', `/containers/${Id}/json`)) as { State: { Running: boolean; ExitCode: number } };
    expect(seen.State).toMatchObject({ Running: false, ExitCode: 143 });
  });
});
