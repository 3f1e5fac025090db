/**
 * The real buildkite-agent behind the broker's gateway, before a service that this file writes. What the agent does is not
 * ours to choose: it is what shows whether the gateway speaks its language.
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { bodyOf, type GatewayBench, gatewayBench, jobId, serviceTokens } from '../../src/ci/buildkite/broker/testing-gateway.ts';
import { agentBin } from '../standins/buildkite/agent/testing.ts';
import { lacksAgent } from '../support/buildkite-agent.ts';
import { type Child, startChild } from '../support/child.ts';
import { scratch } from '../support/scratch.ts';

const it = test.skipIf(lacksAgent() !== null);
const ways = [
  { way: 'acquire', flags: ['--acquire-job', jobId] },
  { way: 'classic', flags: ['--disconnect-after-job', '--ping-mode', 'poll-only'] },
];

interface Service {
  readonly lines: string[];
  readonly chunks: Map<number, Buffer>;
  readonly finished: unknown[];
  readonly uploads: Map<string, { readonly bytes: number; readonly hash: string }>;
  state: string;
  /** Of one artifact's upload: 0 for a form. */
  parts: number;
}

function newService(): Service {
  return { lines: [], chunks: new Map(), finished: [], uploads: new Map(), state: 'running', parts: 0 };
}

async function answer(service: Service, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { method = '', url = '' } = request;
  const address = new URL(url, `http://${request.headers.host}`);
  service.lines.push(`${method} ${address.pathname} ${request.headers.authorization ?? '-'}`);
  const json = (body: unknown): unknown => response.setHeader('content-type', 'application/json').end(JSON.stringify(body));
  if (address.pathname.startsWith('/bucket')) {
    const hash = createHash('sha256');
    let bytes = 0;
    for await (const part of request) {
      bytes += part.length;
      hash.update(part);
    }
    service.uploads.set(url, { bytes, hash: hash.digest('hex') });
    response.writeHead(200, { etag: `"part${service.uploads.size}"` }).end();
    return;
  }
  if (address.pathname.endsWith('/chunks')) {
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece);
    service.chunks.set(Number(address.searchParams.get('sequence')), gunzipSync(Buffer.concat(pieces)));
    json({});
    return;
  }
  const body = await bodyOf(request);
  if (address.pathname.endsWith('/heartbeat')) json({ ...JSON.parse(body), received_at: new Date().toISOString() });
  else if (address.pathname.endsWith('/finish')) {
    service.finished.push(JSON.parse(body));
    json({});
  } else if (method === 'POST' && address.pathname.endsWith('/artifacts')) json(created(service, JSON.parse(body), request));
  else if (method === 'GET' && address.pathname.endsWith(jobId)) json({ state: service.state });
  else if (address.pathname.endsWith('/exists')) json({ exists: false });
  else if (address.pathname.endsWith('/get')) json({ key: 'k', value: 'a value' });
  else json({});
}

function created(service: Service, { id, artifacts }: { id: string; artifacts: unknown[] }, request: IncomingMessage): unknown {
  const url = `http://${request.headers.host}/bucket?X-Signature=a%2Fb`;
  const artifact_ids = artifacts.map((_, index) => `artifact-${index}`);
  const form = { data: { key: 'k/${artifact:path}' }, action: { url, method: 'POST', path: '/bucket/key', file_input: 'file' } };
  const actions = Array.from({ length: service.parts }, (_, index) => ({
    url: `http://${request.headers.host}/bucket/part?partNumber=${index + 1}&X-Signature=a%2Fb`,
    method: 'PUT',
    part_number: index + 1,
  }));
  const each = Object.fromEntries(artifact_ids.map((one) => [one, { actions }]));
  return { id, artifact_ids, upload_instructions: form, ...(service.parts > 0 && { per_artifact_instructions: each }) };
}

const log = ({ chunks }: Service): string =>
  Buffer.concat([...chunks].sort(([a], [b]) => a - b).map(([, bytes]) => bytes)).toString();

interface Run extends AsyncDisposable {
  readonly agent: Child;
  readonly dir: string;
}

/** The agent in a folder of its own, with an environment as bare as a sandbox's. */
async function start(here: GatewayBench, flags: readonly string[]): Promise<Run> {
  const place = scratch();
  const dir = place.path;
  for (const name of ['builds', 'home', 'plugins', 'hooks']) await mkdir(join(dir, name));
  const paths = ['--build-path', 'builds', '--plugins-path', 'plugins', '--hooks-path', 'hooks', '--sockets-path', 'home'];
  // Jobs find the agent by its name.
  const program = join(agentBin(dir), 'buildkite-agent');
  const agent = startChild(program, ['start', ...flags, ...paths, '--cancel-grace-period', '2', '--no-color'], {
    cwd: dir,
    env: {
      PATH: `${agentBin(dir)}:${process.env.PATH}`,
      HOME: join(dir, 'home'),
      BUILDKITE_AGENT_TOKEN: here.token('once', 'a'),
      BUILDKITE_AGENT_ENDPOINT: `${here.url}/v3`,
      BUILDKITE_SIGNAL_GRACE_PERIOD_SECONDS: '1',
    },
  });
  return {
    agent,
    dir,
    async [Symbol.asyncDispose]() {
      await agent.kill();
      place[Symbol.dispose]();
    },
  };
}

const registered = { id: 'x', name: 'gpu0', access_token: serviceTokens.session, heartbeat_interval: 1, ping_interval: 1 };
const secrets = [{ name: 'DEPLOY_KEY', value: 'tr0ub4dor-and-3' }];

function jobOf(command: string, more: Readonly<Record<string, string>> = {}) {
  return {
    id: jobId,
    token: serviceTokens.job,
    chunks_max_size_bytes: 102_400,
    chunks_interval_seconds: 1,
    env: {
      BUILDKITE_JOB_ID: jobId,
      BUILDKITE_BUILD_ID: 'build',
      BUILDKITE_REPO: 'https://git.example/repo',
      BUILDKITE_COMMIT: 'HEAD',
      BUILDKITE_BRANCH: 'main',
      BUILDKITE_AGENT_NAME: 'gpu0',
      BUILDKITE_ORGANIZATION_SLUG: 'org',
      BUILDKITE_PIPELINE_SLUG: 'pipeline',
      BUILDKITE_PIPELINE_PROVIDER: 'git',
      BUILDKITE_SKIP_CHECKOUT: 'true',
      BUILDKITE_COMMAND: command,
      ...more,
    },
  };
}

/** A sandbox's agent with a job of this command. */
function hold(here: GatewayBench, command: string, more: Readonly<Record<string, string>> = {}): void {
  const sealed = { jobAnswer: jobOf(command, more), secrets, registerAnswer: registered };
  here.held('a', { shown: { job: { id: jobId, env: {} } }, sealed });
}

describe.each(ways)('the $way way', ({ flags }) => {
  it('a job has its secrets, its log has not, and no token of the service is anywhere', async () => {
    const service = newService();
    await using here = await gatewayBench((request, response) => void answer(service, request, response));
    const dump = 'env; cat /proc/$$/environ /proc/$PPID/environ /proc/$PPID/cmdline';
    hold(here, `printf %s "$DEPLOY_KEY" > secret; (${dump}) 2>&1 | tee dump; buildkite-agent meta-data get k`);
    await using run = await start(here, flags);
    const { agent, dir } = run;
    await agent.ended;

    expect(service.finished).toEqual([expect.objectContaining({ exit_status: '0', ignore_agent_in_dispatches: true })]);
    expect(here.book.get('a')).toBeNull();
    const work = join(dir, 'builds', 'gpu0', 'org', 'pipeline');
    expect(readFileSync(join(work, 'secret'), 'utf8')).toBe('tr0ub4dor-and-3');
    expect(log(service)).toContain('Secret onejob:DEPLOY_KEY added as environment variable DEPLOY_KEY');
    expect(log(service)).toMatch(/DEPLOY_KEY=\[REDACTED\]/);
    expect(log(service)).toContain('a value');
    const seen = `${log(service)}${readFileSync(join(work, 'dump'), 'utf8')}${agent.stdout}${agent.stderr}`;
    expect(log(service)).not.toContain('tr0ub4dor');
    for (const token of Object.values(serviceTokens)) expect(seen).not.toContain(token);
    const calls = service.lines.map((line) => line.replace(/^(\S+ \S+).*/, '$1'));
    expect(calls).toContain(`PUT /v3/jobs/${jobId}/start`);
    expect(calls.some((line) => /register|\/connect|accept|acquire|ping|secrets/.test(line))).toBe(false);
    expect(calls.at(-1)).toBe('POST /v3/disconnect');
  });

  it('a job that is cancelled ends, and says so', async () => {
    const service = newService();
    await using here = await gatewayBench((request, response) => void answer(service, request, response));
    hold(here, 'echo began; sleep 600');
    await using run = await start(here, flags);
    const { agent } = run;
    await expect.poll(() => log(service), { timeout: 30_000 }).toContain('began');
    service.state = 'canceling';
    await agent.ended;
    expect(service.finished).toEqual([expect.objectContaining({ signal_reason: 'cancel' })]);
  });
});

it('an agent that registers itself waits with its job for the manager, and does the rest by itself', async () => {
  const service = newService();
  await using here = await gatewayBench((request, response) => {
    const { method, url } = request;
    if (url === '/v3/register') response.end(JSON.stringify(registered));
    else if (url === '/v3/ping') response.end(JSON.stringify({ job: { id: jobId } }));
    else if (method === 'PUT' && url?.endsWith('/accept'))
      response.end(JSON.stringify(jobOf('printf %s "$DEPLOY_KEY" > ../secret')));
    if (response.writableEnded) service.lines.push(`${method} ${url}`);
    else void answer(service, request, response);
  });
  here.carried('a');
  await using run = await start(here, ways[1]?.flags ?? []);
  await expect.poll(() => here.book.get('a')?.shown.phase, { timeout: 30_000 }).toBe('accepted');
  expect(here.book.get('a')?.shown.job?.env).toMatchObject({ BUILDKITE_BRANCH: 'main' });
  here.book.update('a', { allowed: true, sealed: { secrets } });
  await run.agent.ended;
  expect(service.finished).toEqual([expect.objectContaining({ exit_status: '0', ignore_agent_in_dispatches: true })]);
  expect(here.book.get('a')).toBeNull();
  expect(service.lines.filter((line) => /register|connect|accept/.test(line))).toEqual([
    'POST /v3/register',
    `POST /v3/connect Token ${serviceTokens.session}`,
    `PUT /v3/jobs/${jobId}/accept`,
    `POST /v3/disconnect Token ${serviceTokens.session}`,
  ]);
});

it('an agent that is killed leaves its record, running, to the manager', async () => {
  const service = newService();
  await using here = await gatewayBench((request, response) => void answer(service, request, response));
  // It outlives the agent by a moment only: nobody is there to end it.
  hold(here, 'echo began; exec sleep 15');
  await using run = await start(here, ways[0]?.flags ?? []);
  const { agent } = run;
  await expect.poll(() => log(service), { timeout: 30_000 }).toContain('began');
  await expect.poll(() => here.book.get('a')?.livesAlone, { timeout: 30_000 }).toBe(true);
  await agent.kill();
  expect(here.book.get('a')).toMatchObject({ shown: { phase: 'running', finished: null } });
  expect(here.book.get('a')?.log.sequence).toBeGreaterThan(0);
  expect(service.lines.some((line) => line.includes('disconnect'))).toBe(false);
});

it('a job gets nowhere with the token it finds, and its own calls work', async () => {
  const service = newService();
  await using here = await gatewayBench((request, response) => void answer(service, request, response));
  const say = (method: string, path: string, body = method === 'GET' ? '' : '{}'): string =>
    `exec 3<>/dev/tcp/127.0.0.1/${here.port}; printf '${method} ${path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n` +
    `Authorization: Token %s\\r\\nContent-Length: ${body.length}\\r\\n\\r\\n${body}' "$BUILDKITE_AGENT_ACCESS_TOKEN" >&3; ` +
    `printf '%s ' "${path}" >> ../tried; head -1 <&3 | cut -d' ' -f2 >> ../tried`;
  const other = '/v3/jobs/01935a4b-0000-4000-8000-00000000beef';
  const paths = ['POST /v3/register', 'GET /v3/token', `PUT ${other}/finish`, `POST ${other}/data/get`, 'POST /upload/x'];
  const tries = paths.map((line) => say(line.split(' ')[0] ?? '', line.split(' ')[1] ?? ''));
  const own =
    'buildkite-agent meta-data set a b; buildkite-agent annotate x --context a/b; ! buildkite-agent stop; ! buildkite-agent secret get nothing-of-mine';
  hold(here, `rm -f ../tried; ${tries.join('; ')}; ${own}; cp ../tried "$HOME/tried"; rm ../tried`);
  await using run = await start(here, ways[0]?.flags ?? []);
  const { agent, dir } = run;
  await agent.ended;
  expect(service.finished).toEqual([expect.objectContaining({ exit_status: '0' })]);
  expect(
    readFileSync(join(dir, 'home', 'tried'), 'utf8')
      .trim()
      .split('\n'),
  ).toEqual(['/v3/register 401', '/v3/token 403', `${other}/finish 403`, `${other}/data/get 200`, '/upload/x 404']);
  expect(service.lines.some((line) => /stop|register|v3\/token/.test(line))).toBe(false);
});

describe.each([
  { form: 'one form', parts: 0 },
  { form: 'three parts', parts: 3 },
])('an artifact of 300 MiB as $form', ({ parts }) => {
  it('arrives whole, with the memory of a few buffers', async () => {
    const service = { ...newService(), parts };
    await using here = await gatewayBench((request, response) => void answer(service, request, response));
    const size = 300 * 1024 * 1024;
    hold(here, `head -c ${size} /dev/urandom > big`, { BUILDKITE_ARTIFACT_PATHS: 'big' });
    await using run = await start(here, ways[0]?.flags ?? []);
    const { agent, dir } = run;
    const before = process.memoryUsage.rss();
    let highest = before;
    const watch = setInterval(() => {
      highest = Math.max(highest, process.memoryUsage.rss());
    }, 20);
    await agent.ended;
    clearInterval(watch);
    expect(service.finished).toEqual([expect.objectContaining({ exit_status: '0' })]);
    const arrived = [...service.uploads.values()].reduce((sum, { bytes }) => sum + bytes, 0);
    expect(arrived).toBeGreaterThanOrEqual(size);
    expect(arrived).toBeLessThan(size + 4096);
    expect(service.uploads.size).toBe(parts || 1);
    for (const path of service.uploads.keys()) expect(path).toContain('X-Signature=a%2Fb');
    const file = readFileSync(join(dir, 'builds', 'gpu0', 'org', 'pipeline', 'big'));
    for (let part = 0; part < parts; part++) {
      const hash = createHash('sha256').update(file.subarray((part * size) / parts, ((part + 1) * size) / parts));
      expect(service.uploads.get(`/bucket/part?partNumber=${part + 1}&X-Signature=a%2Fb`)?.hash).toBe(hash.digest('hex'));
    }
    // Both sides are in this process, so this says no more than that it was not held whole; see bench/broker.ts.
    expect((highest - before) / 1024 / 1024).toBeLessThan(160);
  });
});

describe('bad days', () => {
  it('a service that fails now and then costs time, and neither log nor result', async () => {
    const service = newService();
    const failed = new Map<string, number>();
    await using here = await gatewayBench((request, response) => {
      const what = `${request.method} ${request.url?.replace(/sequence=(\d+).*/, '$1')}`;
      const times = (failed.get(what) ?? 0) + 1;
      failed.set(what, times);
      if (times === 1) response.writeHead(503).end('{"message":"later"}');
      else if (times === 2) response.destroy();
      else void answer(service, request, response);
    });
    hold(here, 'for i in 1 2 3; do echo "line $i"; done');
    await using run = await start(here, ways[0]?.flags ?? []);
    await run.agent.ended;
    expect(service.finished).toEqual([expect.objectContaining({ exit_status: '0', chunks_failed_count: 0 })]);
    for (const line of ['line 1', 'line 2', 'line 3']) expect(log(service).split(line).length).toBe(2);
    expect(here.book.get('a')).toBeNull();
  });

  it('a broker that is followed by another in the middle of a log and of an artifact loses nothing of either', async () => {
    const service = newService();
    let restarts = 0;
    const restart = (): void => {
      restarts += 1;
      void here.restart();
    };
    await using here = await gatewayBench((request, response) => {
      if (request.url?.includes('/chunks') && restarts === 0) restart();
      if (request.url?.startsWith('/bucket') && restarts === 1) {
        let left = 50 * 1024 * 1024;
        request.on('data', (piece: Buffer) => {
          if (left > 0 && left - piece.length <= 0) restart();
          left -= piece.length;
        });
      }
      void answer(service, request, response).catch(() => {});
    });
    const size = 100 * 1024 * 1024;
    hold(here, `echo before; head -c ${size} /dev/zero > big; sleep 1; echo after`, { BUILDKITE_ARTIFACT_PATHS: 'big' });
    await using run = await start(here, ways[0]?.flags ?? []);
    await run.agent.ended;
    expect(restarts).toBe(2);
    expect(service.finished).toEqual([expect.objectContaining({ exit_status: '0', chunks_failed_count: 0 })]);
    expect(log(service)).toMatch(/before[\s\S]*after/);
    expect([...service.uploads.values()].at(-1)?.bytes).toBeGreaterThanOrEqual(size);
  });
});
