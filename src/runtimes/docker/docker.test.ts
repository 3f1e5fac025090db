/** Tests for Docker alone: images that conflict with the gate, invalid recipes, limits, cleaning up. */
import { randomBytes } from 'node:crypto';
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { anOwner, recipe } from '../../../test/kit/docker-runtime.ts';
import { follow, specOf, watch } from '../../../test/kit/runtime-contract/contract.ts';
import { engineAt } from '../../../test/support/engine-http.ts';
import { ensureImages, images } from '../../../test/support/images.ts';
import { lacks } from '../../../test/support/require.ts';
import { messageOf } from '../../base/errors.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { frame, MarkerFilter, readyMarker, releasedMarker } from '../gate.ts';
import type { DockerRuntime } from './docker.ts';

const never = () => new AbortController().signal;
const quiet = () => {};

describe.skipIf(lacks('docker', 'busybox'))('docker', { timeout: 60_000 }, () => {
  const { owner, make, leftovers } = anOwner();
  let runtime: DockerRuntime;
  let events: ReturnType<typeof watch>;
  let folder: string;

  beforeAll(async () => {
    await ensureImages();
    folder = await mkdtemp(join(tmpdir(), 'onejob-docker-'));
    runtime = await make();
    events = watch(runtime);
    await events.connected();
  });
  afterAll(async () => {
    for (const { agent } of await runtime.list(never())) await runtime.remove(agent);
    await runtime.sweep(never());
    await events.stop();
    runtime.close();
    await rm(folder, { recursive: true, force: true });
    expect(await leftovers()).toEqual([]);
  });

  const run = async (changes: Partial<Recipe>, script: string, name = 'dock.1') => {
    const spec = specOf({ ...recipe, ...changes }, { name });
    await runtime.prepare(spec, quiet, never());
    const log = follow(runtime, spec.agent);
    await log.until(readyMarker(spec.agent));
    await runtime.release(spec.agent, frame(spec.agent, script), never());
    const exit = await events.exit(spec.agent);
    await log.ended;
    const filter = new MarkerFilter(spec.agent);
    const kept = log.chunks.map(({ stream, bytes }) => (stream === 'stdout' ? filter.push(bytes) : bytes));
    return { exit, output: Buffer.concat(kept).toString(), agent: spec.agent };
  };
  const refused = (changes: Partial<Recipe>) => {
    const spec = specOf({ ...recipe, ...changes });
    return expect(runtime.prepare(spec, quiet, never()).finally(() => runtime.remove(spec.agent))).rejects;
  };

  test('an entrypoint and a command of the image do not run', async () => {
    const { exit, output } = await run({ image: images.entrypoint }, 'echo mine; exit 5');
    expect([exit, output]).toEqual([{ kind: 'code', code: 5 }, 'mine\n']);
  });

  test('an image with its own user owns the workspace', async () => {
    const { output } = await run({ image: images.user }, 'id -u; touch x && stat -c "%u:%g" . x');
    expect(output).toBe('1000\n1000:1000\n1000:1000\n');
  });

  test('a folder that became a link after it was checked is not given to a job', async () => {
    await mkdir(join(folder, 'checked'));
    await symlink('/etc', join(folder, 'swapped'));
    const mounts = ['checked', 'swapped'].map((name) => {
      return { host: join(folder, name), container: `/var/${name}`, readOnly: true, variable: null, cache: null };
    });
    const [good, bad] = mounts;
    // As if each had been a folder when it was checked.
    const specFor = (mount: typeof good) =>
      specOf({ ...recipe, mounts: mount === undefined ? [] : [mount] }, { places: [mount?.host ?? ''] });
    const spec = specFor(bad);
    await expect(runtime.prepare(spec, quiet, never())).rejects.toMatchObject({
      code: 'E_MOUNT_CHANGED',
      message: expect.stringContaining(`/var/swapped is not ${bad?.host}, which was checked`),
    });
    expect((await runtime.list(never())).map(({ agent }) => agent)).not.toContain(spec.agent);
    await runtime.prepare(specFor(good), quiet, never());
  });

  test('a folder that became a link after it was checked is not given to a shell in a held job', async () => {
    await mkdir(join(folder, 'plain'));
    await writeFile(join(folder, 'plain', 'file'), '');
    await symlink('/etc', join(folder, 'moved'));
    const { agent } = await run({}, 'exit 1');
    await runtime.holding?.hold(agent);
    const shell = (name: string, terminal: { columns: number; rows: number; term: string } | null = null) => {
      const host = join(folder, name);
      const mounts = [{ host, container: '/data', readOnly: true, variable: null, cache: null }];
      const spec = specOf({ ...recipe, mounts }, { places: [host] });
      return runtime.holding?.shell(agent, { spec, command: ['ls', '/data'], terminal }, never());
    };
    for (const terminal of [null, { columns: 80, rows: 24, term: 'dumb' }]) {
      const good = await shell('plain', terminal);
      let said = '';
      for await (const { bytes } of good?.output ?? []) said += Buffer.from(bytes).toString();
      expect([said.trim(), await good?.ended]).toEqual(['file', 0]);
      await expect(shell('moved', terminal)).rejects.toMatchObject({ code: 'E_MOUNT_CHANGED' });
    }
    await runtime.holding?.release(agent);
  });

  test('what a job runs as another user opens the output by name', async () => {
    const write = 'echo first >/dev/stdout; echo second >/dev/stderr';
    const { output } = await run({ image: images.base }, `su -s /bin/sh agent -c '${write}'; stat -c %a /dev/null`);
    expect(output.split('\n').sort()).toEqual(['', '666', 'first', 'second']);
  });

  for (const [user, expected] of [
    ['agent', '1000:1000'],
    ['1000', '1000:1000'],
    ['4711', '4711:0'],
    ['4711:4712', '4711:4712'],
    ['agent:media', '1000:2000'],
    ['0', '0:0'],
  ] as const) {
    test(`user ${user} owns the workspace, also below a read-only root`, async () => {
      const { output } = await run(
        { user, readOnly: true },
        'echo "$(id -u):$(id -g)"; touch x && stat -c "%u:%g" x; touch /tmp/y || echo no /tmp; touch /z 2>/dev/null && echo root is writable',
      );
      expect(output).toBe(`${expected}\n${expected}\n`);
    });
  }

  test('a PATH without sh starts all the same, and reaches the job as it was', async () => {
    const { exit, output } = await run({ env: { PATH: '/opt/tools:/srv' } }, 'echo "$PATH"; /bin/sh -c true');
    expect([exit, output]).toEqual([{ kind: 'code', code: 0 }, '/opt/tools:/srv\n']);
  });

  test('an image without sh ends before it is ready, with 127', async () => {
    const spec = specOf({ ...recipe, image: images.noShell });
    await runtime.prepare(spec, quiet, never());
    expect(await events.exit(spec.agent)).toEqual({ kind: 'code', code: 127 });
    const log = follow(runtime, spec.agent);
    await log.ended;
    expect(log.text()).not.toContain(readyMarker(spec.agent));
  });

  test('GPUs that an image asks for are not granted to a sandbox without devices', async () => {
    expect((await run({ image: images.gpuEnv }, 'echo $NVIDIA_VISIBLE_DEVICES')).output).toBe('void\n');
  });

  test('mounts: read-only, writable, and the variable that names them', async () => {
    await writeFile(join(folder, 'data.txt'), 'data\n');
    const mounts = [
      { host: folder, container: '/in', readOnly: true, variable: 'IN', cache: null },
      { host: folder, container: '/out', readOnly: false, variable: null, cache: null },
    ];
    const { output } = await run(
      { mounts },
      'cat $IN/data.txt; touch /in/no 2>/dev/null || echo read-only; echo made >/out/made && cat /in/made',
    );
    expect(output).toBe('data\nread-only\nmade\n');
  });

  test('limits reach the sandbox', async () => {
    const limits = {
      cpus: 0.5,
      memory: 64 * 2 ** 20,
      pids: 64,
      shmSize: 8 * 2 ** 20,
      ulimits: [{ name: 'nofile', soft: 100, hard: 200 }],
      tmpfs: { '/scratch': 'size=4m' },
    };
    const { output, agent } = await run(
      limits,
      'ulimit -n; df -k /dev/shm | tail -1 | tr -s " " | cut -d" " -f2; df -k /scratch | tail -1 | tr -s " " | cut -d" " -f2; cat /proc/self/oom_score_adj; cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max',
    );
    expect(output).toBe('100\n8192\n4096\n500\n64\n');
    using engine = engineAt();
    const seen = (await engine.ok('GET', `/containers/onejob-dock.1-${agent}/json`)) as {
      HostConfig: Record<string, unknown>;
      Config: { Hostname: string };
    };
    expect(seen.HostConfig).toMatchObject({ NanoCpus: 5e8, Memory: 64 * 2 ** 20, MemorySwap: 64 * 2 ** 20, Init: true });
    expect(seen.Config.Hostname).toBe('dock.1');
  });

  test('capabilities: no raw sockets and device nodes unless asked for', async () => {
    const script = 'mknod /tmp/n c 1 3 2>/dev/null && echo mknod; chown 1:1 /tmp && echo chown';
    expect((await run({}, script)).output).toBe('chown\n');
    expect((await run({ capAdd: ['MKNOD'] }, script)).output).toBe('mknod\nchown\n');
  });

  test('running out of memory is told apart', async () => {
    const { exit } = await run({ memory: 32 * 2 ** 20 }, 'exec tail /dev/zero');
    expect(exit).toEqual({ kind: 'oom' });
    expect((await (await make()).list(never())).map((one) => one.state)).toContainEqual({ kind: 'exited', exit });
  });

  test('unavailable parts of a recipe are explained', async () => {
    await refused({ image: 'onejob-test/none:1' }).toMatchObject({ code: 'E_IMAGE_NOT_FOUND', retry: false });
    await refused({ image: null }).toMatchObject({ code: 'E_IMAGE_NOT_FOUND' });
    const mounts = [{ host: join(folder, 'none'), container: '/x', readOnly: true, variable: null, cache: null }];
    await refused({ mounts }).toMatchObject({
      code: 'E_MOUNT_MISSING',
      retry: false,
      message: expect.stringContaining(join(folder, 'none')),
    });
    await refused({ network: 'onejob-no-such-network' }).toMatchObject({ code: 'E_NETWORK_NOT_FOUND', retry: false });
    await refused({ user: 'nosuchuser' }).toMatchObject({ code: 'E_USER_UNKNOWN', retry: false });
    await refused({ user: '0:nosuchgroup' }).toMatchObject({ code: 'E_USER_UNKNOWN', retry: false });
  });

  test('the default network is created once, isolates sandboxes, and is created again if somebody removed it', async () => {
    using engine = engineAt();
    // What managers that were killed while they asked for one may leave: older Engines make several of one name.
    const network = { Name: `onejob-${owner}`, Labels: { 'onejob.owner': owner } };
    const options = { 'com.docker.network.bridge.enable_icc': 'false' };
    await engine.ok('POST', '/networks/create', { ...network, Options: options });
    await engine.ok('POST', '/networks/create', { ...network, Options: options }).catch((error: unknown) => {
      expect(messageOf(error)).toMatch(/already exists/);
    });
    const other = await make();
    const specs = Array.from({ length: 3 }, () => specOf({ ...recipe, network: 'default' }));
    await Promise.all(specs.map((spec) => other.prepare(spec, quiet, never())));
    const [listener, caller] = specs.map((spec) => spec.agent);
    const networks = (await engine.ok(
      'GET',
      `/networks?filters=${encodeURIComponent(JSON.stringify({ label: [`onejob.owner=${owner}`] }))}`,
    )) as { Name: string }[];
    expect(networks.map((one) => one.Name)).toEqual([`onejob-${owner}`]);
    const logs = [follow(runtime, listener ?? ''), follow(runtime, caller ?? '')];
    await Promise.all(logs.map((log, i) => log.until(readyMarker(specs[i]?.agent ?? ''))));
    await runtime.release(listener ?? '', frame(listener ?? '', 'echo "at $(hostname -i)"; exec nc -l -p 5000'), never());
    await expect.poll(() => /at ([\d.]+)\n/.exec(logs[0]?.text() ?? '')).not.toBeNull();
    const address = /at ([\d.]+)\n/.exec(logs[0]?.text() ?? '')?.[1];
    await runtime.release(
      caller ?? '',
      frame(caller ?? '', `nc -w 1 ${address} 5000 </dev/null && echo reached || echo apart`),
      never(),
    );
    await events.exit(caller ?? '');
    await logs[1]?.ended;
    expect(logs[1]?.text()).toContain('apart\n');
    for (const { agent } of specs) await runtime.remove(agent);
    other.close();

    await engine.ok('DELETE', `/networks/onejob-${owner}`);
    expect((await run({ network: 'default' }, 'echo back')).output).toBe('back\n');
  });

  test('a frame of 1 MiB arrives whole', async () => {
    const { output } = await run({}, `: '${'x'.repeat(2 ** 20)}'; echo arrived`);
    expect(output).toBe('arrived\n');
  });

  test('a foreign container with one of our names is not touched', async () => {
    using engine = engineAt();
    const spec = specOf(recipe);
    const name = `onejob-con.1-${spec.agent}`;
    await engine.ok('POST', `/containers/create?name=${name}`, { Image: images.base, Cmd: ['true'] });
    await expect(runtime.prepare(spec, quiet, never())).rejects.toMatchObject({ code: 'E_NAME_TAKEN' });
    await runtime.remove(spec.agent);
    await engine.ok('DELETE', `/containers/${name}`);
  });

  test('volumes are removed with their sandbox, and one that was left behind is swept', async () => {
    using engine = engineAt();
    const spec = specOf(recipe);
    await runtime.prepare(spec, quiet, never());
    await engine.ok('DELETE', `/containers/onejob-con.1-${spec.agent}?force=1`);
    expect((await leftovers()).filter((one) => one.startsWith('volume')).length).toBeGreaterThan(0);
    for (const { agent } of await runtime.list(never())) await runtime.remove(agent);
    await runtime.sweep(never());
    expect(await leftovers()).toEqual([]);
  });

  test('volumes that a power cut left without their container are removed by the first look of the next manager, next to living sandboxes', async () => {
    using engine = engineAt();
    const [living, cut] = [specOf(recipe), specOf(recipe, { name: 'con.2' })];
    for (const spec of [living, cut]) await runtime.prepare(spec, quiet, never());
    const before = (await leftovers()).filter((one) => one.startsWith('volume')).length;
    await engine.ok('DELETE', `/containers/onejob-con.2-${cut.agent}?force=1`);
    const next = await make();
    expect((await next.list(never())).map(({ agent }) => agent)).toEqual([living.agent]);
    expect((await leftovers()).filter((one) => one.startsWith('volume'))).toHaveLength(before / 2);
    await next.remove(living.agent);
    next.close();
    expect((await leftovers()).filter((one) => one.startsWith('volume'))).toEqual([]);
  });

  test('invalid host names are corrected', async () => {
    const { output } = await run({}, 'hostname', `lab_${'x'.repeat(70)} ü`);
    expect(output).toMatch(/^lab-x{59}\n$/);
  });

  test('a boot that is not this one makes an ended sandbox lost', async () => {
    using engine = engineAt();
    const agent = randomBytes(5).toString('hex');
    const labels = {
      'onejob.owner': owner,
      'onejob.agent': agent,
      'onejob.pool': 'p',
      'onejob.slot': 'p/1',
      'onejob.boot': 'another',
    };
    const { Id } = (await engine.ok('POST', '/containers/create', { Image: images.base, Cmd: ['true'], Labels: labels })) as {
      Id: string;
    };
    await engine.ok('POST', `/containers/${Id}/start`);
    await engine.ok('POST', `/containers/${Id}/wait`);
    // An Engine that answers a wait lists the container as running for a moment (moby, daemon/monitor.go).
    const another = await make();
    const seen = async () => (await another.list(never())).find((one) => one.agent === agent)?.state;
    await expect.poll(seen).not.toMatchObject({ kind: 'running' });
    expect(await seen()).toMatchObject({ kind: 'exited', exit: { kind: 'lost' } });
    await runtime.remove(agent);
  });

  test('a release takes little time', async () => {
    const took: number[] = [];
    for (let i = 0; i < 5; i += 1) {
      const spec = specOf(recipe);
      await runtime.prepare(spec, quiet, never());
      const log = follow(runtime, spec.agent);
      await log.until(readyMarker(spec.agent));
      const before = performance.now();
      const released = runtime.release(spec.agent, frame(spec.agent, 'exit 0'), never());
      await log.until(releasedMarker(spec.agent));
      took.push(performance.now() - before);
      await released;
      await events.exit(spec.agent);
      await runtime.remove(spec.agent);
    }
    expect(took).toHaveLength(5);
    console.log(`release to marker, ms: ${took.map((ms) => ms.toFixed(1)).join(' ')}`);
  });
});
