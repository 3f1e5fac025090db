/** The way from a sandbox to what listens on this host, with real containers. */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createDockerRuntime, type DockerRuntime } from '../../src/runtimes/docker/docker.ts';
import { frame, readyMarker } from '../../src/runtimes/gate.ts';
import { anOwner, recipe, settings } from '../kit/docker-runtime.ts';
import { follow, specOf, watch } from '../kit/runtime-contract/contract.ts';
import { engineAt } from '../support/engine-http.ts';
import { ensureImages } from '../support/images.ts';
import { engineIptables } from '../support/iptables.ts';
import { lacks } from '../support/require.ts';

const never = () => new AbortController().signal;
const quiet = () => {};

/** Listens at this address only, and says where. */
async function listener(host: string, port = 0) {
  const server = createServer((socket) => socket.end('here is the host\n'));
  server.listen(port, host);
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  const address = server.address();
  return typeof address === 'object' ? (address?.port ?? 0) : 0;
}

describe.skipIf(lacks('docker', 'busybox', 'root'))('a door to the host', { timeout: 60_000 }, () => {
  const { owner, make, leftovers } = anOwner();
  const named = `${owner}-named`;
  let runtime: DockerRuntime;
  let events: ReturnType<typeof watch>;

  beforeAll(async () => {
    await ensureImages();
    runtime = await make();
    events = watch(runtime);
    await events.connected();
  });
  afterAll(async () => {
    for (const { agent } of await runtime.list(never())) await runtime.remove(agent);
    await runtime.sweep(never());
    await events.stop();
    runtime.close();
    expect(await leftovers()).toEqual([]);
    expect(firewall()).not.toContain(owner);
  });

  /** What a sandbox on the network reads from each of these places; `-` for nothing. */
  const reads = async (network: string, places: readonly string[]) => {
    const spec = specOf({ ...recipe, network });
    await runtime.prepare(spec, quiet, never());
    const log = follow(runtime, spec.agent);
    await log.until(readyMarker(spec.agent));
    const script = places.map((place) => `nc -w 5 ${place} </dev/null 2>/dev/null | grep . || echo -`).join('\n');
    await runtime.release(spec.agent, frame(spec.agent, script), never());
    await events.exit(spec.agent);
    await log.ended;
    await runtime.remove(spec.agent);
    return log.text().split('\n').slice(2, -1);
  };
  const here = 'here is the host';

  test('on the default network is the gateway of its bridge, before any sandbox is on it', async () => {
    const address = await runtime.hostAddress('default', 1, never());
    expect(await runtime.hostAddress('default', 2, never())).toBe(address);
    const port = await listener(address);
    expect(await reads('default', [`${address} ${port}`])).toEqual([here]);
  });

  test('on the network internet is this one port, however often the rules are written, until all is swept', async () => {
    const address = await runtime.hostAddress('internet', 1, never());
    const [port, other] = [await listener(address), await listener(address)];
    expect(await reads('internet', [`${address} ${port}`])).toEqual(['-']);
    await Promise.all([runtime.hostAddress('internet', port, never()), runtime.hostAddress('internet', port, never())]);
    const wanted = [`${address} ${port}`, `${address} ${other}`];
    expect(await reads('internet', wanted)).toEqual([here, '-']);
    execFileSync('sh', ['-c', `${engineIptables()} -w -F onejob-${owner}-in`]);
    expect(await reads('internet', wanted)).toEqual([here, '-']);
    // Another manager knows of no door; somebody still listens at one of them, and nobody at the first.
    const later = await make();
    const spec = specOf({ ...recipe, network: 'internet' });
    await later.prepare(spec, quiet, never());
    await later.remove(spec.agent);
    later.close();
    expect(firewall().match(/--dport \d+ -j RETURN/g)).toContain(`--dport ${port} -j RETURN`);
    expect(firewall()).not.toContain('--dport 1 -j RETURN');
    await runtime.sweep(never());
    expect(firewall()).not.toContain(owner);
    // The bridge is another one now, and may have another address.
    const again = await runtime.hostAddress('internet', 1, never());
    const [one, two] = [await listener(again), await listener(again)];
    await runtime.hostAddress('internet', one, never());
    expect(await reads('internet', [`${again} ${one}`, `${again} ${two}`])).toEqual([here, '-']);
  });

  test('on a network of somebody else is its gateway, also when only a subnet was given for it', async () => {
    using engine = engineAt();
    const IPAM = { Config: [{ Subnet: '10.213.78.0/24' }] };
    await engine.ok('POST', '/networks/create', { Name: named, Driver: 'bridge', IPAM });
    try {
      const address = await runtime.hostAddress(named, 1, never());
      expect(address).toBe('10.213.78.1');
      expect(await reads(named, [`${address} ${await listener(address)}`])).toEqual([here]);
    } finally {
      await engine.call('DELETE', `/networks/${named}`);
    }
    await expect(runtime.hostAddress(named, 1, never())).rejects.toMatchObject({ code: 'E_NO_DOOR' });
  });

  test('of a bridge that somebody removed is that of the one made anew', async () => {
    await runtime.hostAddress('default', 1, never());
    using engine = engineAt();
    await engine.ok('DELETE', `/networks/onejob-${owner}`);
    const address = await runtime.hostAddress('default', 1, never());
    expect(await reads('default', [`${address} ${await listener(address)}`])).toEqual([here]);
  });

  test('on the network host is the loopback', async () => {
    const port = await listener('127.0.0.1');
    expect(await reads('host', [`${await runtime.hostAddress('host', port, never())} ${port}`])).toEqual([here]);
  });

  test('is refused where it is missing, with what to write instead', async () => {
    await expect(runtime.hostAddress('none', 1, never())).rejects.toMatchObject({
      code: 'E_NO_DOOR',
      message: expect.stringContaining('network "none"'),
      hint: expect.stringContaining('network: default'),
    });
    const remote = await createDockerRuntime({ owner, environment: { ...settings(), host: 'tcp://192.0.2.9:2376' } });
    const asking = remote.hostAddress('default', 1, never());
    await expect(asking).rejects.toMatchObject({ code: 'E_NO_DOOR', message: expect.stringContaining('tcp://192.0.2.9:2376') });
    remote.close();
  });
});

function firewall(): string {
  const flavour = engineIptables();
  return [`${flavour}-save`, `${flavour.replace('iptables', 'ip6tables')}-save`]
    .map((tool) => execFileSync(tool, ['-t', 'filter'], { stdio: 'pipe' }))
    .join('\n');
}
