/** A manager that is killed at any moment, a host that restarts, and people who interfere: nothing is lost or left behind. */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Readable } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { pack } from 'tar-stream';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { leftoversOf, plainRecipe } from '../../../test/kit/process-runtime.ts';
import { follow, specOf, watch } from '../../../test/kit/runtime-contract/contract.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Runtime } from '../../ports/runtime.ts';
import { bootId, markVariable } from '../../system/process-identity.ts';
import { systemClock } from '../../system/system-clock.ts';
import { frame, readyMarker } from '../gate.ts';
import { archive } from './files.ts';
import { layout, makeFolder, supervisorOf } from './folder.ts';
import { createProcessRuntime } from './process.ts';
import { killWhole } from './remove.ts';

const never = new AbortController().signal;
const owner = `crash-${process.pid}`;
let dir: string;
let runtime: Runtime;

beforeEach(async () => {
  dir = mkdtempSync(join(tmpdir(), 'onejob-crash-'));
  runtime = await createProcessRuntime({ owner, dir });
});
afterEach(async () => {
  for (const { agent } of await runtime.list(never)) await runtime.remove(agent);
  await runtime.sweep(never);
  expect(leftoversOf(dir, owner)).toEqual([]);
  rmSync(dir, { recursive: true });
});

const standby = async (): Promise<{ agent: AgentId; folder: string; log: ReturnType<typeof follow> }> => {
  const spec = specOf(plainRecipe);
  await runtime.prepare(spec, () => {}, never);
  const log = follow(runtime, spec.agent);
  await log.until(`${readyMarker(spec.agent)}\n`);
  return { agent: spec.agent, folder: join(dir, 'agents', spec.agent), log };
};
const stateOf = async (agent: AgentId) => (await runtime.list(never)).find((one) => one.agent === agent)?.state;

test('a job continues after kill -9 of its manager, and the next one reads its end and its whole log', async () => {
  const module = (path: string) => JSON.stringify(new URL(path, import.meta.url).href);
  const job = 'trap go=1 TERM; echo up; until [ "$go" ]; do sleep 0.02; done; for i in 1 2 3 4 5 6; do echo line $i; done; exit 11';
  const program = `
    const { createProcessRuntime } = await import(${module('./process.ts')});
    const { frame } = await import(${module('../gate.ts')});
    const runtime = await createProcessRuntime(${JSON.stringify({ owner, dir })});
    const never = new AbortController().signal;
    const spec = ${JSON.stringify(specOf(plainRecipe, { agent: 'orphan-1' }))};
    await runtime.prepare(spec, () => {}, never);
    await runtime.release(spec.agent, frame(spec.agent, ${JSON.stringify(job)}), never);
    process.kill(process.pid, 'SIGKILL');`;
  const manager = spawn(process.execPath, ['--input-type=module', '-e', program], { stdio: ['ignore', 'ignore', 'pipe'] });
  const said = text(manager.stderr);
  const [, signal] = await new Promise<[number | null, string | null]>((resolve) => manager.once('exit', (...how) => resolve(how)));
  expect(signal, await said).toBe('SIGKILL');
  expect(await stateOf('orphan-1')).toEqual({ kind: 'running' });
  const events = watch(runtime);
  const log = follow(runtime, 'orphan-1');
  await log.until('up\n');
  await runtime.signal('orphan-1', 'TERM');
  expect(await events.exit('orphan-1')).toEqual({ kind: 'code', code: 11 });
  await log.ended;
  expect(log.text()).toMatch(/\nup\nline 1\nline 2\nline 3\nline 4\nline 5\nline 6\n$/);
  await events.stop();
});

test('a sandbox whose processes were killed from outside is lost, which is reported', async () => {
  const { agent, folder } = await standby();
  const events = watch(runtime);
  const supervisor = supervisorOf(folder);
  process.kill(-(supervisor?.pid ?? 0), 'SIGKILL');
  const exit = await events.exit(agent);
  expect(exit.kind).toBe('lost');
  await events.stop();
});

test('a sandbox of an earlier boot is lost, and no process that has its pid now is touched', async () => {
  const { agent, folder, log } = await standby();
  await runtime.signal(agent, 'KILL');
  await log.ended;
  writeFileSync(join(dir, 'exits', agent), '-----\n');
  const bystander = spawn('sleep', ['600'], { stdio: 'ignore' });
  const line = readFileSync(`/proc/${bystander.pid}/stat`, 'utf8').split(' ');
  line[21] = '1';
  writeFileSync(join(folder, 'proc'), `another-boot\n${line.join(' ')}`);
  writeFileSync(join(folder, 'job'), line.join(' '));
  expect(await stateOf(agent)).toEqual({ kind: 'exited', exit: { kind: 'lost', reason: 'the host was restarted' } });
  await runtime.remove(agent);
  expect(bystander.exitCode === null && bystander.signalCode === null).toBe(true);
  expect(bystander.kill('SIGKILL')).toBe(true);
});

test('a sandbox of a manager that died between intent and start is listed, and can be removed or started again', async () => {
  const spec = specOf(plainRecipe);
  const about = {
    owner,
    agent: spec.agent,
    pool: 'p',
    slot: 'p/1',
    fingerprint: 'x',
    mode: 'plain',
    uid: null,
    cgroups: [],
    boot: bootId(),
  } as const;
  await makeFolder(layout(dir), { ...about, cgroups: [], files: join(dir, 'agents', spec.agent) });
  expect(await runtime.list(never)).toEqual([{ agent: spec.agent, pool: 'p', slot: 'p/1', state: { kind: 'created' } }]);
  await runtime.prepare(spec, () => {}, never);
  const log = follow(runtime, spec.agent);
  await log.until(`${readyMarker(spec.agent)}\n`);
});

test('a plain job of our own user may leave its control group, and ends with its agent all the same', async () => {
  const agent = specOf(plainRecipe).agent;
  // A file for the kernel's, in a group where nobody is left.
  const group = join(dir, 'group');
  mkdirSync(group);
  for (const name of ['cgroup.kill', 'cgroup.procs']) writeFileSync(join(group, name), '');
  const folder = join(dir, 'agents', agent);
  const about = {
    owner,
    agent,
    pool: 'p',
    slot: 'p/1',
    fingerprint: 'x',
    mode: 'plain',
    uid: null,
    cgroups: [group],
    boot: bootId(),
  } as const;
  await makeFolder(layout(dir), { ...about, cgroups: [group], files: folder });
  const escaped = spawn('sleep', ['600'], { stdio: 'ignore', detached: true, env: { [markVariable]: agent } });
  const ended = once(escaped, 'exit');
  await once(escaped, 'spawn');
  await killWhole(systemClock, folder, { ...about, cgroups: [group], files: folder });
  const { exitCode, signalCode } = escaped;
  if (exitCode === null && signalCode === null) setImmediate(() => escaped.kill('SIGTERM'));
  expect((await ended)[1]).toBe('SIGKILL');
  for (const name of ['cgroup.kill', 'cgroup.procs']) rmSync(join(group, name));
});

test('a folder that was never finished, or only partly removed, is swept', async () => {
  await mkdir(join(dir, 'agents/.new-a/log'), { recursive: true });
  await mkdir(join(dir, 'agents/.gone-b/work'), { recursive: true });
  writeFileSync(join(dir, 'exits/c'), '0    \n');
  await runtime.sweep(never);
  expect(leftoversOf(dir, owner)).toEqual([]);
});

test('what a power cut left of a sandbox that was being made, or removed, is removed by the first look of the next manager, and nothing else', async () => {
  const { agent } = await standby();
  await mkdir(join(dir, 'agents/.new-a/log'), { recursive: true });
  await mkdir(join(dir, 'agents/.gone-c/work'), { recursive: true });
  for (const exit of ['a', 'c', 'd']) writeFileSync(join(dir, 'exits', exit), '-----\n');
  const next = await createProcessRuntime({ owner, dir });
  expect((await next.list(never)).map((one) => one.agent)).toEqual([agent]);
  expect(readdirSync(join(dir, 'exits'))).toEqual([agent]);
  await expect.poll(() => readdirSync(join(dir, 'agents'))).toEqual([agent]);
  await mkdir(join(dir, 'agents/.new-b'));
  await next.list(never);
  expect(readdirSync(join(dir, 'agents')).sort()).toEqual(['.new-b', agent]);
});

test('a damaged folder is reported as lost, and removed', async () => {
  mkdirSync(join(dir, 'agents/torn'));
  writeFileSync(join(dir, 'agents/torn/spec.json'), '{"owner":');
  expect((await stateOf('torn'))?.kind).toBe('exited');
  await runtime.remove('torn');
  expect(await runtime.list(never)).toEqual([]);
});

test('files of any mode and name are removed with their sandbox', async () => {
  const { agent, log } = await standby();
  const script = 'mkdir -p a/b "$(printf "x\\ny")"; touch a/b/c; chmod 0 a/b a; mkfifo pipe; ln -s / root; touch -- -rf; exit 0';
  await runtime.release(agent, frame(agent, script), never);
  await log.ended;
  await runtime.remove(agent);
  expect(await runtime.list(never)).toEqual([]);
});

test('an archive cannot write outside the workspace', async () => {
  const outside = mkdtempSync(join(tmpdir(), 'onejob-outside-'));
  const { agent } = await standby();
  const put = async (...entries: Parameters<ReturnType<typeof pack>['entry']>[0][]) => {
    const tar = pack();
    for (const entry of entries) tar.entry(entry, entry.type === undefined ? 'bad' : '');
    tar.finalize();
    await runtime.putFiles(agent, Readable.from([await buffer(tar)]), never).catch(() => {});
  };
  await put({ name: '../escaped' });
  await put({ name: `${outside}/absolute` });
  await put({ name: 'link', type: 'symlink', linkname: outside }, { name: 'link/through' });
  await put({ name: 'device', type: 'block-device', devmajor: 1, devminor: 1 });
  const found = await runtime.getFiles(agent, never);
  expect((await buffer(found)).toString('latin1')).not.toContain('./device');
  expect(readdirSync(outside)).toEqual([]);
  rmSync(outside, { recursive: true });
}, 20_000);

test('a broken archive is an error that says what tar said', async () => {
  const { agent } = await standby();
  const broken = runtime.putFiles(agent, Readable.from([Buffer.alloc(5000, 'x')]), never);
  await expect(broken).rejects.toMatchObject({ code: 'E_FILES', message: expect.stringContaining('tar') });
});

test('files of a sandbox that was made when this host had no filter of system calls are read and written without one', async () => {
  // Only under root does a sandbox without bubblewrap have one.
  const plain = await createProcessRuntime({ owner, dir, bubblewrap: 'off' });
  const spec = specOf(plainRecipe);
  await plain.prepare(spec, () => {}, never);
  rmSync(join(dir, 'agents', spec.agent, 'filter'), { force: true });
  const tar = pack();
  tar.entry({ name: 'sent' }, 'sent');
  tar.finalize();
  await plain.putFiles(spec.agent, Readable.from([await buffer(tar)]), never);
  expect(await text(await plain.getFiles(spec.agent, never))).toContain('sent');
});

test.each([1, 2])('unreadable files are not an empty archive: what ends with %s instead of becoming tar', async (code) => {
  const { agent } = await standby();
  const confine = ['sh', '-c', `echo no filter >&2; exit ${code}`];
  const files = archive({ agent, files: join(dir, 'agents', agent), uid: null, confine, inherited: [] }, '.', never);
  await expect(buffer(files)).rejects.toMatchObject({ code: 'E_FILES', message: expect.stringContaining('no filter') });
});

test('a script of a megabyte passes the gate', async () => {
  const { agent, log } = await standby();
  await runtime.release(agent, frame(agent, `: ${'x'.repeat(1024 * 1024)}\necho whole; exit 0`), never);
  await log.ended;
  expect(log.text()).toContain('whole\n');
});

test('a sandbox whose network is still being made can be removed, and stops no manager', async () => {
  const { agent, folder } = await standby();
  // What its shell waits for until the network is there. Nobody writes to it here.
  expect(spawnSync('mkfifo', [join(folder, 'network.ready')]).status).toBe(0);
  const module = JSON.stringify(new URL('./process.ts', import.meta.url).href);
  const program = `
    const { createProcessRuntime } = await import(${module});
    await (await createProcessRuntime(${JSON.stringify({ owner, dir })})).remove(${JSON.stringify(agent)});`;
  // In a process of its own: one that waits for the FIFO answers no signal of a test's time limit.
  const how = { timeout: 20_000, killSignal: 'SIGKILL', encoding: 'utf8' } as const;
  const { status, signal, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], how);
  rmSync(join(folder, 'network.ready'), { force: true });
  expect([status, signal, stderr]).toEqual([0, null, '']);
  expect(await stateOf(agent)).toBeUndefined();
});
