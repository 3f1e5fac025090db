/**
 * Cards of an agent with an engine of its own: the sandbox and all containers of its job have them, and no others. The cards are acted out:
 * their nodes are others of this host, and the specification has the form that `nvidia-ctk cdi generate` 1.18 gives it.
 */
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { attempt } from '../../src/base/errors.ts';
import type { LeasedDevice, SandboxSpec } from '../../src/ports/runtime.ts';
import { WithEngines } from '../../src/runtimes/docker/with-engines.ts';
import { frame, MarkerFilter, readyMarker } from '../../src/runtimes/gate.ts';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { follow, specOf, watch } from '../kit/runtime-contract/contract.ts';
import { leased } from '../kit/runtimes.ts';
import { clientImage, loadEngineBase, makeEngineImage } from '../support/engine-base.ts';
import { type GpuEngine, gpuEngine } from '../support/gpu-hook/gpu-engine.ts';
import { ensureImages } from '../support/images.ts';
import { makeImage } from '../support/job-containers.ts';
import { lacks } from '../support/require.ts';

const never = new AbortController().signal;
const cards = [0, 1, 2].map((minor) => leased({ minor, uuid: `GPU-${minor}-0000` }));
const [zero, one, two] = cards as [LeasedDevice, LeasedDevice, LeasedDevice];
const instance = leased({ kind: 'mig', uuid: 'MIG-0-0000', parent: zero.uuid, minor: 0, mig: null });
const list = 'for n in /dev/nvidia* /dev/nvidia-caps/*; do [ -c $n ] && echo ${n#/dev/}; done';
const libraries = '/usr/lib/x86_64-linux-gnu';

/** Devices that every container may open, and three that none may open unless it was given them. */
const numbers = {
  nvidiactl: [1, 3],
  'nvidia-uvm': [1, 3],
  'nvidia-caps/nvidia-cap21': [1, 5],
  'nvidia-caps/nvidia-cap22': [1, 5],
  nvidia0: [10, 229],
  nvidia1: [10, 232],
  nvidia2: [10, 237],
} as const;

const textOf = (path: string): string => attempt(() => readFileSync(path, 'latin1')) ?? '';

/** A host's specification below `dir`, with what it names. */
function playCards(dir: string): void {
  for (const folder of ['dev/nvidia-caps', 'lib', 'opt', 'cdi']) mkdirSync(join(dir, folder), { recursive: true });
  for (const [name, [major, minor]] of Object.entries(numbers))
    execFileSync('mknod', ['-m', '600', join(dir, 'dev', name), 'c', String(major), String(minor)]);
  writeFileSync(join(dir, 'lib/libcuda.so.580.1'), 'driver\n');
  for (const link of ['libcuda.so', 'libcuda.so.1']) symlinkSync('libcuda.so.580.1', join(dir, 'lib', link));
  const real = readdirSync(libraries).find((name) => /^libz\.so\.1\.\d/.test(name)) ?? '';
  copyFileSync(join(libraries, real), join(dir, 'opt/libz.so.580.1'));
  const node = (name: keyof typeof numbers) => {
    const [major, minor] = numbers[name];
    return { path: `/dev/${name}`, hostPath: join(dir, 'dev', name), major, minor, fileMode: 438, permissions: 'rw' };
  };
  const device = (name: string, ...nodes: (keyof typeof numbers)[]) => ({ name, containerEdits: { deviceNodes: nodes.map(node) } });
  const options = ['ro', 'nosuid', 'nodev', 'rbind', 'rprivate'];
  const hook = { hookName: 'createContainer', path: '/nowhere/nvidia-cdi-hook', args: ['nvidia-cdi-hook', 'update-ldcache'] };
  const spec = {
    cdiVersion: '0.7.0',
    kind: 'nvidia.com/gpu',
    devices: [
      ...cards.map(({ uuid, minor }) => device(uuid, `nvidia${minor}` as keyof typeof numbers)),
      device('GPU-wrong', 'nvidia0', 'nvidia1'),
      device('MIG-0-0000', 'nvidia0', 'nvidia-caps/nvidia-cap21', 'nvidia-caps/nvidia-cap22'),
    ],
    containerEdits: {
      env: ['NVIDIA_VISIBLE_DEVICES=void', `NVIDIA_CTK_LIBCUDA_DIR=${libraries}`],
      deviceNodes: [node('nvidiactl'), node('nvidia-uvm')],
      hooks: [hook],
      mounts: [
        { hostPath: join(dir, 'lib/libcuda.so.580.1'), containerPath: `${libraries}/libcuda.so.580.1`, options },
        { hostPath: join(dir, 'opt/libz.so.580.1'), containerPath: '/opt/nvidia/libz.so.580.1', options },
      ],
    },
  };
  writeFileSync(join(dir, 'cdi/nvidia.yaml'), stringify(spec));
}

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('cards of an agent with an engine', () => {
  let gpus: GpuEngine;
  let image = '';
  let dir = '';
  let played = '';
  let runtime: WithEngines;
  let events: ReturnType<typeof watch>;
  let owner: ReturnType<typeof anOwner>;

  beforeAll(async () => {
    const stubs = cards.map(({ uuid, minor }) => ({ uuid, minor: minor ?? 0 }));
    // It asks for cards for everything that says so, and its tools mount into /proc.
    gpus = await gpuEngine({ cards: stubs, as: 'default', mountsIntoProc: true });
    await ensureImages(gpus.engine.socket);
    await loadEngineBase(gpus.engine.api);
    image = await makeEngineImage(gpus.engine.api);
    dir = await mkdtemp(join(tmpdir(), 'oje-'));
    owner = anOwner(gpus.engine.socket);
    played = await mkdtemp(join(tmpdir(), 'ojp-'));
    playCards(played);
    runtime = new WithEngines(await owner.make(), dir, { containers: true, devices: true, specs: [join(played, 'cdi')] });
    events = watch(runtime);
    await events.connected();
  }, 300_000);
  afterAll(async () => {
    for (const { agent } of await runtime.list(never)) await runtime.remove(agent);
    await runtime.sweep(never);
    expect(await owner.leftovers()).toEqual([]);
    await events.stop();
    runtime.close();
    for (const path of [dir, played]) await rm(path, { recursive: true, force: true });
    await gpus[Symbol.asyncDispose]();
  }, 120_000);

  const specWith = (devices: readonly LeasedDevice[], changes: Partial<SandboxSpec['recipe']> = {}) =>
    specOf({ ...recipe, image: clientImage, containers: { image }, ...changes }, { devices });

  /** Runs a script in an agent; what it printed. */
  async function run(spec: SandboxSpec, lines: readonly string[]): Promise<string> {
    await runtime.prepare(spec, () => {}, never);
    const log = follow(runtime, spec.agent);
    await log.until(readyMarker(spec.agent));
    await runtime.release(spec.agent, frame(spec.agent, lines.join('\n')), never);
    await events.exit(spec.agent);
    await log.ended;
    const filter = new MarkerFilter(spec.agent);
    const kept = log.chunks.map(({ stream, bytes }) => (stream === 'stdout' ? filter.push(bytes) : bytes));
    await runtime.remove(spec.agent);
    return Buffer.concat(kept).toString();
  }

  test('the sandbox has those that were leased, with their names, and the Engine was asked for none', async () => {
    const open = 'for n in /dev/nvidia[0-9]; do : <>$n || echo $n is closed; done';
    const said = await run(specWith([two, zero], { user: '1000:1000' }), [list, open, 'echo $NVIDIA_VISIBLE_DEVICES']);
    expect(said).toBe('nvidia-uvm\nnvidia0\nnvidia2\nnvidiactl\nGPU-2-0000,GPU-0-0000\n');
    expect(gpus.granted().filter(({ devices }) => devices.some((name) => name !== 'void'))).toEqual([]);
  }, 120_000);

  test('an instance of a card has its own nodes, which every user of a sandbox may open', async () => {
    const open = 'for n in /dev/nvidia-caps/*; do : <>$n && echo ${n##*/}; done';
    const said = await run(specWith([instance], { user: '1000:1000' }), [
      open,
      makeImage,
      `docker run --rm -u 1000 --gpus all box:1 sh -c '${list}; ${open}'`,
      `docker run --rm -u 1000 --device nvidia.com/gpu=MIG-0-0000 box:1 sh -c '${list}; ${open}'`,
    ]);
    const caps = ['nvidia-cap21', 'nvidia-cap22'];
    const all = ['nvidia-uvm', 'nvidia0', 'nvidiactl', ...caps.map((name) => `nvidia-caps/${name}`), ...caps];
    expect(said.trim().split('\n')).toEqual([...caps, ...all, ...all]);
  }, 120_000);

  test('containers have what they ask for, in each way to ask', async () => {
    const ask = (words: string) => `echo "${words.replaceAll('"', '')}:" $(docker run --rm ${words} box:1 sh -c '${list}')`;
    const ways = [
      '',
      '-e NVIDIA_VISIBLE_DEVICES=all',
      '--gpus all',
      '--gpus 1',
      '--gpus 2',
      `--gpus '"device=1"'`,
      '--gpus device=GPU-2-0000',
      '--device nvidia.com/gpu=all',
      '--device nvidia.com/gpu=GPU-2-0000',
      '--device nvidia.com/gpu=0',
      '--device /dev/nvidia2',
    ];
    const said = await run(specWith([two, zero]), [makeImage, ...ways.map(ask)]);
    const nodes = (...minors: readonly number[]) =>
      ['nvidia-uvm', ...minors.map((minor) => `nvidia${minor}`), 'nvidiactl'].join(' ');
    expect(said.split('\n').map((line) => line.trim())).toEqual([
      ':',
      '-e NVIDIA_VISIBLE_DEVICES=all:',
      `--gpus all: ${nodes(0, 2)}`,
      `--gpus 1: ${nodes(0)}`,
      `--gpus 2: ${nodes(0, 2)}`,
      `--gpus 'device=1': ${nodes(2)}`,
      `--gpus device=GPU-2-0000: ${nodes(2)}`,
      `--device nvidia.com/gpu=all: ${nodes(0, 2)}`,
      `--device nvidia.com/gpu=GPU-2-0000: ${nodes(2)}`,
      `--device nvidia.com/gpu=0: ${nodes(0)}`,
      '--device /dev/nvidia2: nvidia2',
      '',
    ]);
  }, 240_000);

  test('a compose file reserves them', async () => {
    const reserve = (words: string) => `{reservations: {devices: [{capabilities: [gpu], ${words}}]}}`;
    const service = (name: string, words: string) =>
      `  ${name}: {image: 'box:1', command: ['sh', '-c', '${list.replaceAll('$', '$$$$')}'], deploy: {resources: ${reserve(words)}}}`;
    const file = ['services:', service('every', 'driver: nvidia, count: all'), service('named', "device_ids: ['GPU-2-0000']")];
    const said = await run(specWith([two, zero]), [
      makeImage,
      `mkdir c; cd c; cat >compose.yml <<'EOF'`,
      ...file,
      'EOF',
      'docker compose run --rm -T every 2>/dev/null',
      'docker compose run --rm -T named 2>/dev/null',
    ]);
    expect(said.trim().split('\n')).toEqual([
      ...['nvidia-uvm', 'nvidia0', 'nvidia2', 'nvidiactl'],
      ...['nvidia-uvm', 'nvidia2', 'nvidiactl'],
    ]);
  }, 120_000);

  test('the driver goes along, under the names that programs look for, and linkers know its folders', async () => {
    const names = ['', '.1', '.580.1'].map((end) => `${libraries}/libcuda.so${end}`);
    const look = `cat ${names.join(' ')}; grep -c /opt/nvidia/libz.so.1 /etc/ld.so.cache`;
    const ask = (words: string) => `docker run --rm ${words} box:1 sh -c '${look}'`;
    const said = await run(specWith([one]), [look, makeImage, ask('--gpus all'), ask('--device nvidia.com/gpu=0'), ask('2>&1')]);
    expect(said).toMatch(/^((driver\n){3}1\n){3}cat: can't open/);
  }, 120_000);

  test('a card that was not leased is named, and with all rights there is no way to it', async () => {
    const spec = specWith([zero]);
    const open = (name: string) => `( : <>/workspace/${name} ) 2>&1 && echo ${name} is open`;
    const all = ['mine', 'other'].map(open).join('; ');
    await runtime.prepare(spec, () => {}, never);
    // Only root of the host can make these.
    const workspace = await workspaceOf(spec);
    for (const [name, key] of [
      ['mine', 'nvidia0'],
      ['other', 'nvidia1'],
    ] as const)
      execFileSync('mknod', ['-m', '666', join(workspace, name), 'c', ...numbers[key].map(String)]);
    const said = await run(spec, [
      makeImage,
      'docker run --rm --gpus device=GPU-1-0000 box:1 true 2>&1 | grep -o "this job has no card.* all" | head -n 1',
      'docker run --rm --device nvidia.com/gpu=GPU-1-0000 box:1 true 2>/dev/null || echo none by CDI',
      all,
      `docker run --rm --privileged -v /workspace:/workspace box:1 sh -c '${all}; ${list}; mknod /dev/nvidia1 c 10 232 2>/dev/null && echo made'`,
    ]);
    const closed = "sh: can't create /workspace/other: Operation not permitted";
    expect(
      said
        .replaceAll(/^sh: .*(?=can't)/gm, 'sh: ')
        .trim()
        .split('\n'),
    ).toEqual([
      'this job has no card GPU-1-0000, but these: 0 GPU-0-0000 all',
      'none by CDI',
      'mine is open',
      closed,
      'mine is open',
      closed,
      'nvidia-uvm',
      'nvidia0',
      'nvidiactl',
    ]);
  }, 120_000);

  test('a container that a job leaves running is of its groups, and has ended when the end of the agent is told', async () => {
    const spec = specWith([zero]);
    const leave = 'docker run -d --restart always --gpus all box:1 sleep 4242 >/dev/null; docker ps -q | wc -l';
    const wait = 'echo left; until [ -e go ]; do sleep 0.1; done; exit 7';
    const left = () =>
      readdirSync('/proc').filter((pid) => /^\d+$/.test(pid) && textOf(`/proc/${pid}/cmdline`) === 'sleep\x004242\x00');
    await runtime.prepare(spec, () => {}, never);
    const log = follow(runtime, spec.agent);
    await log.until(readyMarker(spec.agent));
    await runtime.release(spec.agent, frame(spec.agent, [makeImage, leave, wait].join('\n')), never);
    await log.until('left');
    const [group = ''] = runtime.groupsOf(spec.agent);
    expect(left().map((pid) => textOf(`/proc/${pid}/cgroup`))).toEqual([expect.stringContaining(group)]);
    writeFileSync(join(await workspaceOf(spec), 'go'), '');
    await events.exit(spec.agent);
    expect(left()).toEqual([]);
    const seen = await runtime.list(never);
    expect(seen.find(({ agent }) => agent === spec.agent)?.state).toEqual({ kind: 'exited', exit: { kind: 'code', code: 7 } });
    await log.ended;
    await runtime.remove(spec.agent);
  }, 120_000);

  test('a specification that gives a card of another is found out', async () => {
    const spec = specWith([leased({ uuid: 'GPU-wrong', minor: 0 })]);
    const message = expect.stringContaining('/dev/nvidia1 is not its own');
    await expect(runtime.prepare(spec, () => {}, never)).rejects.toMatchObject({ code: 'E_DEVICES_GRANTED', message });
  }, 120_000);

  test('an agent without cards has none, and one with something in its /proc says why it has no engine', async () => {
    expect(await run(specWith([]), [list, 'echo end'])).toBe('end\n');
    // As programs that show containers their limits do.
    const mount = { host: '/proc/cpuinfo', container: '/proc/cpuinfo', readOnly: true, variable: null, cache: null };
    const why = /ended at once: something of this host has mounted \/proc\/cpuinfo there, and with that the kernel lets no engine/;
    const spec = specWith([one], { mounts: [mount] });
    const preparing = runtime.prepare(spec, () => {}, never);
    await expect(preparing).rejects.toMatchObject({ code: 'E_ENGINE_FAILED', message: expect.stringMatching(why) });
    expect(await run(specWith([one]), [list])).toContain('nvidia1\n');
  }, 180_000);

  /** On this host. */
  async function workspaceOf({ agent }: SandboxSpec): Promise<string> {
    const [id = ''] = runtime.groupsOf(agent);
    const { Mounts } = (await gpus.engine.api.ok('GET', `/containers/${id}/json`)) as {
      readonly Mounts: readonly { readonly Destination: string; readonly Source: string }[];
    };
    return Mounts.find(({ Destination }) => Destination === '/workspace')?.Source ?? '';
  }
});
