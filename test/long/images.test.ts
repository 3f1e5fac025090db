/**
 * Images on a bad day, on a real Engine: ones that cannot be had, ones no gate can stand in, ones that are unusual and
 * must work all the same. A job's own image is the job's affair, a pool's image the pool's; neither is anybody else's (S9).
 */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { images } from '../support/images.ts';
import { poolOf } from '../support/look.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { ctrlC, inTerminal } from '../support/terminal.ts';

describe.skipIf(lacks('docker', 'busybox'))('images', { timeout: 60_000 }, () => {
  let registry: Server;
  let host = '';
  /** Nothing listens there: the port belonged to a server that was closed. */
  let silent = '';

  beforeAll(async () => {
    const closed = await listen(createServer());
    silent = addressOf(closed);
    closed.close();
    registry = await listen(badRegistry());
    host = addressOf(registry);
  });
  afterAll(() => registry.close());

  test('an entrypoint, a user of its own, a read-only root: workspace, /tmp and artifacts work', async () => {
    const pool = `agents: 1, runtime: docker, standby: false`;
    await using here = await onejob({
      config: `pools: {
        entrypoint: { ${pool}, image: "${images.entrypoint}" },
        user: { ${pool}, image: "${images.user}" },
        readonly: { ${pool}, image: "${images.base}", read_only: true },
        both: { ${pool}, image: "${images.user}", read_only: true } }`,
    });
    mkdirSync(join(here.cwd, 'sub'));
    writeFileSync(join(here.cwd, 'sub', 'in'), 'sent in\n', { mode: 0o640 });
    await here.up();
    const kinds = [
      { name: 'entrypoint', uid: 0, root: 'writable' },
      { name: 'user', uid: 1000, root: 'readonly' },
      { name: 'readonly', uid: 0, root: 'readonly' },
      { name: 'both', uid: 1000, root: 'readonly' },
    ];
    const script = (name: string): string =>
      [
        'set -e; cat sub/in; id -u; stat -c %u . sub sub/in | sort -u',
        `echo more >>sub/in; echo t >/tmp/file; mkdir out; echo made >out/${name}`,
        'if (: >/etc/mark) 2>/dev/null; then echo writable; else echo readonly; fi',
      ].join('\n');
    await Promise.all(
      kinds.map(async ({ name, uid, root }) => {
        const artifact = `out/${name}`;
        const ended = await here.run('--pool', name, '--artifact', artifact, '--', 'sh', '-c', script(name)).ended;
        expect(ended, name).toMatchObject({ code: 0, stdout: `sent in\n${uid}\n${uid}\n${root}\n` });
        expect(readFileSync(join(here.cwd, artifact), 'utf8')).toBe('made\n');
      }),
    );
  });

  test("a job's own image that cannot be had ends that job with 125 and the reason; its pool's other jobs continue", async () => {
    await using here = await onejob({ config: `pools: { default: { agents: 2, runtime: docker, image: "${images.base}" } }` });
    await here.up();
    const bad = [
      { image: `${silent}/away:1`, code: 'E_REGISTRY_UNREACHABLE', says: /could not reach/ },
      { image: `${host}/denied:1`, code: 'E_IMAGE_DENIED', says: /refused.*docker login/ },
      { image: `${host}/missing:1`, code: 'E_IMAGE_NOT_FOUND', says: /does not have it/ },
      { image: images.noShell, code: 'E_NO_SHELL', says: /needs a POSIX shell/ },
    ];
    const runs = bad.map(({ image }) => here.run('--no-workspace', '--image', image, '--', 'true').ended);
    const others = [1, 2, 3, 4].map((n) => here.run('--no-workspace', '--', 'echo', `${n}`).ended);
    for (const [at, other] of others.entries()) expect(await other).toMatchObject({ code: 0, stdout: `${at + 1}\n` });
    for (const [at, { image, code, says }] of bad.entries()) {
      const ended = await runs[at];
      expect(ended?.code, `${image}: ${ended?.stderr}`).toBe(125);
      expect(ended?.stderr).toMatch(says);
      expect(ended?.stderr).toContain(code);
      expect(ended?.stderr).toContain(image);
    }
    // What might pass is tried three times.
    const tries: Record<string, number> = { E_REGISTRY_UNREACHABLE: 3 };
    const pool = await poolOf(here, 'default');
    expect(pool.backoff).toBeNull();
    const jobs = await here.api.jobs({ all: true, pool: null });
    expect(
      jobs
        .filter((job) => job.cold)
        .map((job) => job.attempt)
        .sort(),
    ).toEqual(bad.map(({ code }) => tries[code] ?? 1).sort());
    // An image that is there but unusual is a job's to ask for as well.
    const user = await here.run('--image', images.user, '--', 'sh', '-c', 'id -u; echo x >here').ended;
    expect(user).toMatchObject({ code: 0, stdout: '1000\n' });
  });

  test("a pool's broken image makes it back off, says why wherever one looks, and hinders no other pool", async () => {
    const pool = 'agents: 1, runtime: docker';
    await using here = await onejob({
      config: `pools: {
        good: { ${pool}, image: "${images.base}" },
        away: { ${pool}, image: "${silent}/away:1" },
        denied: { ${pool}, image: "${host}/denied:1" },
        never: { ${pool}, image: "onejob-test/nowhere:1", pull: never },
        noshell: { ${pool}, image: "${images.noShell}" } }`,
    });
    const begun = performance.now();
    const daemon = await here.up();
    const reasons = {
      away: /could not reach/,
      denied: /refused/,
      never: /"pull: never" forbids/,
      noshell: /no usable "sh"|no "sh"/,
    };
    for (const [name, reason] of Object.entries(reasons)) {
      await expect.poll(async () => (await poolOf(here, name)).backoff?.reason ?? '', { timeout: 20_000 }).toMatch(reason);
    }
    const waiting = here.run('--no-workspace', '--pool', 'denied', '--', 'echo', 'ran');
    // Also where nobody sees a line that is redrawn, a wait without end says why, once.
    await waiting.says(/onejob: job \w+ is waiting in pool denied.*refused/);
    const seen = inTerminal(here, ['run', '--no-workspace', '--pool', 'noshell', '--', 'true']);
    await seen.says(/is waiting in pool noshell, next in line: .*"sh"/);

    expect(await here.run('--no-workspace', '--pool', 'good', '--', 'echo', 'fine').ended).toMatchObject({
      code: 0,
      stdout: 'fine\n',
    });
    const status = (await here.cli(['status']).ended).stdout;
    expect(status).toMatch(/! denied: waits for image ".*" on docker, next try .*refused/);
    expect(status).not.toMatch(/! good/);
    expect((await here.cli(['jobs']).ended).stdout).toMatch(/refused/);
    expect((await here.cli(['plan']).ended).stdout).toMatch(/never\/1 .*waits for image.*forbids/);
    // One failure each that trying again cannot fix: it does not spin. The other kind is tried again, ever more slowly.
    // Each wait is twice the one before, less a fifth at most, so this is how many there may be by now.
    const failuresSince = (first: number): number => 1 + Math.floor(Math.log2(1 + (performance.now() - begun) / (first * 0.8)));
    for (const [name, first] of Object.entries({ denied: 30_000, never: 30_000, noshell: 30_000, away: 1_000 })) {
      const failures = (await poolOf(here, name)).backoff?.failures;
      expect(failures, name).toBeGreaterThanOrEqual(1);
      expect(failures, name).toBeLessThanOrEqual(failuresSince(first));
    }

    waiting.signal('SIGINT');
    seen.type(ctrlC);
    for (const run of [waiting, seen]) expect((await run.ended).code).toBe(130);
    expect(waiting.stderr.match(/is waiting in pool/g)).toHaveLength(1);
    expect((await daemon.stop()).code).toBe(0);
  });

  test('a job over its memory limit is told apart: 137 and a line that says so', async () => {
    await using here = await onejob({
      config: `pools: { default: { agents: 1, runtime: docker, image: "${images.base}", memory: 32MiB } }`,
    });
    await here.up();
    const ended = await here.run('--no-workspace', '--', 'sh', '-c', 'echo begun; exec tail /dev/zero').ended;
    expect(ended).toMatchObject({ code: 137, stdout: 'begun\n' });
    expect(ended.stderr).toMatch(/onejob: job \w+ was killed because it used more memory than its limit of \d+ MiB/);
    const own = await here.run('--no-workspace', '--', 'sh', '-c', 'kill -9 $$').ended;
    expect(own.code).toBe(137);
    expect(own.stderr).not.toMatch(/memory/);
    expect((await here.cli(['jobs', '--all']).ended).stdout).toMatch(/oom/);
    expect((await here.run('--no-workspace', '--', 'true').ended).code).toBe(0);
  });
});

/** Knows nobody, and has nothing. What it is asked for `denied` it refuses; everything else it does not have. */
function badRegistry(): Server {
  return createServer((request, answer) => {
    answer.setHeader('docker-distribution-api-version', 'registry/2.0');
    const refuse = (status: number, code: string): void => {
      answer.writeHead(status, { 'content-type': 'application/json' });
      answer.end(JSON.stringify({ errors: [{ code, message: code.toLowerCase().replaceAll('_', ' ') }] }));
    };
    if (request.url === '/v2/') answer.end('{}');
    else if (request.url?.startsWith('/v2/denied/')) {
      answer.setHeader('www-authenticate', 'Basic realm="bad"');
      refuse(401, 'UNAUTHORIZED');
    } else refuse(404, 'MANIFEST_UNKNOWN');
  });
}

async function listen(server: Server): Promise<Server> {
  const { promise, resolve } = Promise.withResolvers<void>();
  // The Engine takes registries on 127.0.0.0/8 without TLS.
  server.listen(0, '127.0.0.1', resolve);
  await promise;
  return server;
}

function addressOf(server: Server): string {
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}
