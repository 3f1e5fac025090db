/** Ports of the config are never free while a daemon reloads its config, or while systemd keeps it for the next one. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { logIn } from '../support/browser-login.ts';
import { type Home, onejob } from '../support/onejob.ts';

const pools = 'pools: { default: { agents: 1, runtime: process } }';
const program = join(import.meta.dirname, '..', '..', 'bin', 'onejob');

async function listening(): Promise<Server & { readonly at: number }> {
  const server = createServer();
  await once(server.listen(0, '127.0.0.1'), 'listening');
  return Object.assign(server, { at: (server.address() as AddressInfo).port });
}

const closed = (server: Server) => new Promise((resolve) => server.close(resolve));

/** Tries to have a port until it is told to stop; how often it had it. */
function squat(port: number): () => Promise<number> {
  let [had, stopped] = [0, false];
  const trying = (async () => {
    while (!stopped) {
      const server = createServer();
      const bound = await once(server.listen(port, '127.0.0.1'), 'listening').catch(() => null);
      if (bound === null) await new Promise((resolve) => setImmediate(resolve));
      else {
        had += 1;
        await closed(server);
      }
    }
  })();
  return async () => {
    stopped = true;
    await trying;
    return had;
  };
}

async function session(here: Home) {
  const { stdout } = await here.cli(['dashboard', '--json']).ended;
  const login = await logIn((JSON.parse(stdout) as { url: string }).url);
  return async () => (await fetch(`${login.base}/v1/me`, { headers: await login.headers('/v1/me') })).status;
}

test('a changed config leaves no moment in which another program could take the port', async () => {
  const probe = await listening();
  const port = probe.at;
  await closed(probe);
  const config = (agents: number) =>
    `pools: { default: { agents: ${agents}, runtime: process } }\napi: { listen: "127.0.0.1:${port}" }`;
  await using here = await onejob({ config: config(1) });
  await here.up();
  const me = await session(here);
  const stop = squat(port);
  for (const agents of [2, 1]) {
    here.configure(config(agents));
    expect((await here.cli(['config', 'apply']).ended).code).toBe(0);
    await expect
      .poll(() =>
        here.api.status().then(
          ({ pools: [pool] }) => pool?.slots.length,
          () => null,
        ),
      )
      .toBe(agents);
    expect(await me()).toBe(200);
  }
  expect(await stop()).toBe(0);
});

test('nor that of webhooks, which GitHub’s secret and events would go to', async () => {
  const probe = await listening();
  const port = probe.at;
  await closed(probe);
  await using here = await onejob({ config: '' });
  const file = (name: string) => {
    const path = join(here.cwd, name);
    writeFileSync(path, 'a-secret-of-github', { mode: 0o600 });
    return `{ file: ${path} }`;
  };
  // Nothing answers for GitHub.
  const hub = `type: github, url: "http://127.0.0.1:9/", token: ${file('token')}`;
  const config = (agents: number) => `
services: { hub: { ${hub}, webhook: { listen: "127.0.0.1:${port}", secret: ${file('secret')} } } }
pools: { default: { agents: ${agents}, runtime: process, service: own }, gh: { agents: 0, runtime: docker, image: x, service: hub, queue: acme/demo } }`;
  here.configure(config(1));
  await here.up();
  const hook = () => fetch(`http://127.0.0.1:${port}/`, { method: 'POST' }).then(({ status }) => status);
  await expect.poll(() => hook().catch(() => null)).toBe(401);
  const stop = squat(port);
  for (const agents of [2, 1]) {
    here.configure(config(agents));
    expect((await here.cli(['config', 'apply']).ended).code).toBe(0);
    await expect.poll(() => hook().catch(() => null)).toBe(401);
  }
  expect(await stop()).toBe(0);
});

test('a daemon continues with the socket that its service manager keeps, after kill -9 as well', async () => {
  const kept = await listening();
  await using here = await onejob({ config: `${pools}\napi: { listen: "127.0.0.1:${kept.at}" }` });
  // As systemd does: it keeps the socket and accepts nothing; only a shell knows the id of its process before the program runs.
  const script = `while read _; do LISTEN_FDS=1 /bin/sh -c 'LISTEN_PID=$$ exec "$0" up </dev/null' "$0"; echo over; done`;
  const { fd } = Reflect.get(kept, '_handle') as { fd: number };
  const manager = spawn('/bin/sh', ['-c', script, program], {
    cwd: here.cwd,
    env: here.env,
    stdio: ['pipe', 'pipe', 'ignore', fd],
  });
  await once(manager, 'spawn');
  await closed(kept);
  const start = async (): Promise<void> => {
    manager.stdin?.write('\n');
    await expect
      .poll(
        () =>
          here.api.status().then(
            () => true,
            () => false,
          ),
        { timeout: 30_000 },
      )
      .toBe(true);
  };
  await start();
  const me = await session(here);
  expect(await me()).toBe(200);
  // No job has the socket.
  const job = await here.run('--no-workspace', '--', 'sh', '-c', 'ls -l /proc/self/fd').ended;
  expect([job.code, job.stdout.includes('socket:')]).toEqual([0, false]);
  const stop = squat(kept.at);
  const { pid } = JSON.parse(readFileSync(join(here.stateDir, 'lead.json'), 'utf8')) as { pid: number };
  const over = once(manager.stdout ?? expect.fail(), 'data');
  process.kill(pid, 'SIGKILL');
  await over;
  await start();
  expect([await stop(), await me()]).toEqual([0, 200]);
  const ended = once(manager, 'exit');
  manager.stdin?.end();
  await here.cli(['down']).ended;
  await ended;
});
