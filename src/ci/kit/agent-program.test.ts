/** The agent's program, from servers on this host, from packages and from files. */
import { execFileSync, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import { pack } from 'tar-stream';
import { afterEach, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { agentVersion, realAgent } from '../../../test/support/buildkite-agent.ts';
import { lacks } from '../../../test/support/require.ts';
import { type Scratch, scratch } from '../../../test/support/scratch.ts';
import type { AgentPackageConfig } from '../../schema/service-keys.ts';
import { buildkiteAgent, pinnedSums, releaseUrl } from '../buildkite/agent/agent-release.ts';
import { AgentProgram, type AgentProgramOptions, versionOf } from './agent-program.ts';

const never = new AbortController().signal;
/** For what has to answer, however seldom it gets a turn. */
const patient = 10_000;
const real = realAgent() ?? 'none';
let place: Scratch;
let dir: string;
beforeEach(() => {
  place = scratch();
  dir = join(place.path, 'tools');
});
afterEach(() => place[Symbol.dispose]());

const program = (version: string, more = '') => `#!/bin/sh\n${more}\necho "buildkite-agent version ${version}+x.abc"\n`;
const sha = (bytes: string | Buffer) => createHash('sha256').update(bytes).digest('hex');

/** As a release packs it: names begin with `./`. */
async function packed(content: string, name = './buildkite-agent'): Promise<Buffer> {
  const tar = pack();
  tar.entry({ name: './bootstrap.sh' }, '#!/bin/sh\n');
  tar.entry({ name: './hooks', type: 'directory' });
  tar.entry({ name, mode: 0o755 }, content);
  tar.finalize();
  return gzipSync(await buffer(tar));
}

async function server(answer: (path: string, reply: ServerResponse, request: IncomingMessage) => void) {
  const asked: string[] = [];
  const http = createServer((request, reply) => {
    asked.push(request.url ?? '');
    answer(request.url ?? '', reply, request);
  });
  http.listen(0, '127.0.0.1');
  await once(http, 'listening');
  onTestFinished(() => {
    http.closeAllConnections();
    http.close();
  });
  return { url: `http://127.0.0.1:${(http.address() as AddressInfo).port}`, asked };
}

/** A server of releases, as the project's is laid out. */
async function releases(
  content: string,
  sums = (file: string, sum: string) => `${'0'.repeat(64)}  other.tar.gz\n${sum}  ${file}\n`,
) {
  const body = await packed(content);
  return server((path, reply) => {
    const file = 'buildkite-agent-linux-amd64-3.137.0.tar.gz';
    if (path === `/v3.137.0/${file}`) reply.writeHead(200, { 'content-length': body.length }).end(body);
    else if (path === '/v3.137.0/buildkite-agent-3.137.0.SHA256SUMS') reply.end(sums(file, sha(body)));
    else reply.writeHead(404).end();
  });
}

const arch = 'x64';
const wall = () => Date.now();

function agentOf(config: Partial<AgentPackageConfig>, more: Partial<AgentProgramOptions> = {}) {
  const all = { version: null, from: null, sha256: null, ...config };
  return new AgentProgram({ project: buildkiteAgent(), arch, config: all, dir, wall, ...more });
}

/** What lies there apart from links. */
const programsIn = (folder: string): string[] => readdirSync(folder).filter((name) => !name.startsWith('at-'));

function file(name: string, content: string | Buffer): string {
  const path = join(place.path, name);
  writeFileSync(path, content);
  return path;
}

test('a program that came from elsewhere says its version as nobody, never as root, and without a shell of ours', async () => {
  const path = join(place.path, 'asks');
  writeFileSync(path, program('3.1.$(id -u)', '[ -r /proc/1/environ ] && exit 9'), { mode: 0o555 });
  chmodSync(place.path, 0o700);
  const expected = process.getuid?.() === 0 ? '3.1.65534' : `3.1.${process.getuid?.()}`;
  expect(await versionOf(path, patient, never)).toBe(expected);
});

test('a program may say its version in a list', async () => {
  const path = join(place.path, 'lists');
  writeFileSync(path, '#!/bin/sh\nprintf "Version:      19.4.0\\nGO version:   go1.26.8\\n"\n', { mode: 0o555 });
  expect(await versionOf(path, patient, never)).toBe('19.4.0');
});

test('the checksum of the default agent is known on the usual processors', () => {
  for (const arch of ['x64', 'arm64']) expect(pinnedSums[releaseUrl(agentVersion, arch)]).toMatch(/^[0-9a-f]{64}$/);
});

describe('from the release', () => {
  test('is fetched once, checked against the list next to it, and found again without asking', async () => {
    const { url, asked } = await releases(program('3.137.0'));
    const said: string[] = [];
    const agent = agentOf({}, { project: buildkiteAgent(url), progress: (line) => said.push(line) });
    expect(agent.state).toEqual({ kind: 'unknown' });
    const [path, again] = [await agent.ready(never), await agent.ready(never)];
    expect(again).toBe(path);
    expect(path).toMatch(/\/tools\/buildkite-agent-3\.137\.0-[0-9a-f]{12}\/buildkite-agent$/);
    expect(agent.state).toEqual({ kind: 'ready', path, version: '3.137.0', sha256: sha(program('3.137.0')) });
    expect((statSync(String(path)).mode & 0o777).toString(8)).toBe('555');
    expect([asked.length, programsIn(dir).length, said[0]]).toEqual([2, 1, 'fetching the agent 3.137.0']);
    expect(await agentOf({}, { project: buildkiteAgent(url) }).ready(never)).toBe(path);
    expect(asked.length).toBe(2);
  });

  test('with a known checksum is checked against that, and not against the list next to it', async () => {
    const { url, asked } = await releases(program('3.137.0'));
    const address = releaseUrl('3.137.0', 'x64', url);
    const changed = agentOf({}, { project: buildkiteAgent(url, { [address]: 'ab'.repeat(32) }) });
    await expect(changed.ready(never)).rejects.toThrow(/its SHA-256 is [0-9a-f]{64}, not abab/);
    expect(asked).toEqual([new URL(address).pathname]);
    expect(readdirSync(dir)).toEqual([]);
  });

  test('is taken anew when what is there was changed', async () => {
    const { url, asked } = await releases(program('3.137.0'));
    const agent = agentOf({}, { project: buildkiteAgent(url) });
    const path = String(await agent.ready(never));
    chmodSync(path, 0o755);
    writeFileSync(path, program('3.137.0', 'evil'));
    expect(await agent.ready(never)).toBe(path);
    expect([readFileSync(path, 'utf8'), asked.length]).toEqual([program('3.137.0'), 4]);
  });

  const whole = (body: Buffer) => (_: string, reply: ServerResponse) => void reply.end(body);
  test.each<[string, (body: Buffer) => Parameters<typeof server>[0], Partial<AgentPackageConfig>, RegExp, patience?: number]>([
    ['another checksum', whole, { sha256: 'ab'.repeat(32) }, /its SHA-256 is [0-9a-f]{64}, not abab/],
    ['a page of a login', () => (_, reply) => void reply.end('<!DOCTYPE html><p>Sign in'), {}, /it is not a \.tar\.gz file/],
    ['half a package', (body) => (_, reply) => void reply.end(body.subarray(0, body.length / 2)), {}, /it is incomplete/],
    ['cut off', () => (_, reply) => void reply.writeHead(200, { 'content-length': 9 }).write('x', () => reply.destroy()), {}, /:/],
    ['not there', () => (_, reply) => void reply.writeHead(404).end(), {}, /it answered 404/],
    ['a server that says nothing', () => () => {}, {}, /no data arrived for 0\.1 s/, 100],
    ['a server that falls silent', () => (_, reply) => void reply.writeHead(200).write('x'), {}, /no data arrived for 0\.1 s/, 100],
  ])('%s: says so and leaves nothing', async (_, answer, config, why, patience = patient) => {
    const { url } = await server(answer(await packed(program('3.137.0'))));
    const agent = agentOf({ from: `${url}/agent.tar.gz`, version: '3.137.0', ...config }, { patience });
    const error = await agent.ready(never).catch((each: unknown) => each);
    expect(error).toMatchObject({ code: 'E_AGENT_PACKAGE', message: expect.stringMatching(why), hint: expect.stringMatching(/./) });
    expect(error).toMatchObject({ message: expect.stringContaining(`${url}/agent.tar.gz`) });
    expect([agent.state.kind, readdirSync(dir)]).toEqual(['failed', []]);
  });

  test.each<[string, Parameters<typeof releases>[1], RegExp]>([
    ['says another', (file) => `${'1'.repeat(64)}  ${file}\n`, /its SHA-256 is/],
    ['does not name it', () => `${'1'.repeat(64)}  x\n`, /has no checksum for buildkite-agent-linux-amd64-3\.137\.0\.tar\.gz/],
    ['is a page', () => '<html>', /SHA256SUMS: it has no checksum/],
  ])('whose list of checksums %s is not taken', async (_, sums, why) => {
    const { url } = await releases(program('3.137.0'), sums);
    await expect(agentOf({}, { project: buildkiteAgent(url) }).ready(never)).rejects.toThrow(why);
    expect(readdirSync(dir)).toEqual([]);
  });

  test('an unsupported architecture is an error', async () => {
    await expect(agentOf({}, { arch: 'loong64' }).ready(never)).rejects.toThrow(
      /does not release agent 3\.137\.0 for Linux on loong64/,
    );
  });
});

describe('from a file', () => {
  test('a program is copied, and looked at again when it changes', async () => {
    const from = file('agent', program('3.137.0'));
    const agent = agentOf({ from, version: '3.137.0', sha256: sha(program('3.137.0')) });
    const path = await agent.ready(never);
    expect(readFileSync(String(path), 'utf8')).toBe(program('3.137.0'));
    utimesSync(from, 1, 1);
    expect(await agent.ready(never)).toBe(path);
    writeFileSync(from, program('3.138.0'));
    await expect(agent.ready(never)).rejects.toThrow(/its SHA-256 is/);
    expect(agent.state.kind).toBe('failed');
    writeFileSync(from, program('3.137.0'));
    expect(await agent.ready(never)).toBe(path);
  });

  test('a package is unpacked, and any version taken when none is written', async () => {
    const from = file('agent.tar.gz', await packed(program('4.0.0-beta.15')));
    const agent = agentOf({ from });
    await agent.ready(never);
    expect(agent.state).toMatchObject({ kind: 'ready', version: '4.0.0-beta.15' });
    expect(existsSync(from)).toBe(true);
  });

  const elf = (machine: number) =>
    Buffer.concat([Buffer.from([0x7f, 0x45, 0x4c, 0x46, 2, 1, 1]), Buffer.alloc(9), Buffer.from([2, 0, machine, 0])]);
  test.each<[string, string | Buffer, RegExp, patience?: number]>([
    ['another version', program('3.136.2'), /it reports version 3\.136\.2/],
    ['another architecture', elf(183), /it is built for arm64, and this host is x64/],
    ['no program', 'just a text', /it is not an executable: it begins neither as an ELF file nor with "#!"/],
    ['nothing', '', /it is not an executable/],
    ['something else', '#!/bin/sh\necho hello\n', /"--version" ended with exit code 0 and printed "hello"/],
    ['what fails', '#!/bin/sh\necho broken >&2; exit 3\n', /"--version" ended with exit code 3 and printed "broken"/],
    ['what never answers', '#!/bin/sh\nsleep 600 & wait\n', /"--version" took more than 0\.3 s/, 300],
  ])('%s is refused', async (_, content, why, patience = patient) => {
    const agent = agentOf({ from: file('agent', content), version: '3.137.0' }, { patience });
    await expect(agent.ready(never)).rejects.toMatchObject({ code: 'E_AGENT_PACKAGE', message: expect.stringMatching(why) });
    expect(readdirSync(dir)).toEqual([]);
  });

  test('a missing file may appear later; a package without the program is invalid', async () => {
    await expect(agentOf({ from: '/nowhere/agent' }).ready(never)).rejects.toMatchObject({ code: 'E_AGENT_PACKAGE', retry: true });
    const from = file('agent.tgz', await packed(program('3.137.0'), './other'));
    await expect(agentOf({ from }).ready(never)).rejects.toThrow(/contains no file "buildkite-agent"/);
  });

  test('is asked for its version with an empty environment', async () => {
    const from = file('agent', program('3.137.0', "env | grep -v -E '^(PWD|SHLVL|_|OLDPWD)=' && exit 1"));
    await agentOf({ from }).ready(never);
  });

  test.skipIf(lacks('root'))('a full disk is reported, and leaves nothing', async () => {
    mkdirSync(dir);
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', dir]);
    try {
      const from = file('agent', program('3.137.0', '#'.repeat(200_000)));
      const agent = agentOf({ from });
      await expect(agent.ready(never)).rejects.toMatchObject({ retry: true, message: expect.stringContaining('ENOSPC') });
      expect(readdirSync(dir)).toEqual([]);
    } finally {
      execFileSync('umount', [dir]);
    }
  });
});

test('what a killed manager was about to check is never taken, and removed', async () => {
  const from = file('agent', program('3.137.0'));
  const dead = spawn('true');
  await once(dead, 'exit');
  const part = join(dir, `part-${dead.pid}-abc`);
  mkdirSync(part, { recursive: true });
  writeFileSync(join(part, 'buildkite-agent'), 'half');
  const path = await agentOf({ from }).ready(never);
  expect(programsIn(dir)).toEqual([dirname(String(path)).split('/').at(-1)]);
});

test('a manager that is killed while it fetches leaves nothing that is ever taken', async () => {
  const body = await packed(program('3.137.0'));
  const coming = Promise.withResolvers<void>();
  const { url, asked } = await server((_, reply) => {
    if (asked.length > 1) return void reply.end(body);
    reply.writeHead(200, { 'content-length': body.length }).write(body.subarray(0, 100), () => coming.resolve());
  });
  const config = { version: null, from: `${url}/agent.tar.gz`, sha256: null };
  const module = join(import.meta.dirname, 'agent-program.ts');
  const script = `const { AgentProgram } = await import(${JSON.stringify(module)});
    const project = { name: 'buildkite-agent', type: 'buildkite', pinned: '3.137.0', sum: async () => null };
    const options = { ...${JSON.stringify({ arch, config, dir })}, project, wall: () => 0 };
    await new AgentProgram(options).ready(new AbortController().signal)`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'ignore' });
  await coming.promise;
  await expect.poll(() => readdirSync(dir)).not.toEqual([]);
  const gone = once(child, 'exit');
  child.kill('SIGKILL');
  await gone;
  const left = readdirSync(dir);
  expect(left.filter((name) => !name.startsWith('part-'))).toEqual([]);
  const path = await agentOf(config).ready(never);
  expect(programsIn(dir)).toEqual([dirname(String(path)).split('/').at(-1)]);
});

test('a caller that gives up leaves nothing, and the next one is served', async () => {
  let isOpen = false;
  const body = await packed(program('3.137.0'));
  const { url } = await server((_, reply) => (isOpen ? reply.end(body) : reply.writeHead(200).write('x')));
  const agent = agentOf({ from: `${url}/agent.tar.gz` });
  const stop = new AbortController();
  const waiting = agent.ready(stop.signal);
  setTimeout(() => stop.abort(new Error('enough')), 50);
  await expect(waiting).rejects.toThrow('enough');
  expect([agent.state.kind, readdirSync(dir)]).toEqual(['unknown', []]);
  isOpen = true;
  expect(await agent.ready(never)).toMatch(/buildkite-agent$/);
});

test('the folder is known before the program is, and leads to it afterwards', async () => {
  const from = file('agent', program('3.137.0'));
  const agent = agentOf({ from });
  const named = agent.folder ?? '';
  expect(existsSync(named)).toBe(false);
  const path = String(await agent.ready(never));
  await agent.ready(never);
  expect(readlinkSync(named)).toBe(dirname(path));
  expect(agentOf({ from }).folder).toBe(named);
  expect(agentOf({ from, version: '3.137.0' }).folder).not.toBe(named);
});

test('programs of other services are kept, those that nobody asked for in a month and those of before are not', async () => {
  const from = [file('one', program('3.136.0')), file('other', program('3.136.1'))] as const;
  const first = agentOf({ from: from[0] }, { wall: () => 0 });
  const path = String(await first.ready(never));
  const other = agentOf({ from: from[1] }, { wall: () => 86_400_000 });
  const before = String(await other.ready(never));
  expect([path, before].map((one) => existsSync(one))).toEqual([true, true]);
  writeFileSync(from[1], program('3.137.0'));
  const now = String(await other.ready(never));
  expect([path, before, now].map((one) => existsSync(one))).toEqual([true, false, true]);
  await agentOf({ from: from[1] }, { wall: () => 32 * 86_400_000 }).ready(never);
  expect([path, now].map((one) => existsSync(one))).toEqual([false, true]);
  expect(existsSync(first.folder ?? '')).toBe(false);
});

test('an image that brings its own agent needs none', async () => {
  const agent = agentOf({ from: 'image' });
  expect([await agent.ready(never), agent.state, agent.folder]).toEqual([null, { kind: 'image' }, null]);
});

test.skipIf(!existsSync(real) || process.arch !== 'x64')('the real agent is taken and found again', async () => {
  const agent = agentOf({ from: real, version: '3.137.0' });
  const path = String(await agent.ready(never));
  expect(agent.state).toMatchObject({ kind: 'ready', version: '3.137.0' });
  expect(execFileSync(path, ['--version'], { env: {} }).toString()).toContain('3.137.0');
  await expect(agentOf({ from: real, version: '3.138.0' }).ready(never)).rejects.toThrow(/it reports version 3\.137\.0/);
});
