/** Access over TCP to a real daemon: through its restart, a changed config, a port that is taken, and a token that is replaced. */
import { once } from 'node:events';
import { readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { expect, test } from 'vitest';
import { logIn } from '../support/browser-login.ts';
import { freePort } from '../support/free-port.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

const pools = 'pools: { default: { agents: 1, runtime: process } }';

async function login(here: Home, ...flags: string[]) {
  const { stdout, stderr } = await here.cli(['dashboard', '--json', ...flags]).ended;
  const { url, role } = JSON.parse(stdout || stderr) as { url: string; role: string };
  return { role, ...(await logIn(url)) };
}

type Login = Awaited<ReturnType<typeof login>>;

async function me(base: string, headers: Record<string, string>) {
  const answer = await fetch(`${base}/v1/me`, { headers });
  return [answer.status, ((await answer.json()) as { role?: string }).role];
}

const mine = async ({ base, headers }: Login) => me(base, await headers('/v1/me'));

test('a login survives the daemon, also one that is killed, and what it may do is kept', async () => {
  await using here = await onejob({ config: pools });
  const daemon = await here.up();
  const reader = await login(here, '--read-only');
  const { base } = reader;
  expect([reader.role, await mine(reader)]).toEqual(['read', [200, 'read']]);
  const earlier = await reader.headers('/v1/me');
  await daemon.kill();
  await expect(mine(reader)).rejects.toThrow();
  await here.up();
  expect(await mine(reader)).toEqual([200, 'read']);
  // What somebody has heard who had the port in between.
  expect(await me(base, earlier)).toEqual([401, undefined]);
  const signed = await reader.headers('/v1/drain', { method: 'POST' });
  const refused = await fetch(`${base}/v1/drain`, { method: 'POST', headers: { ...signed, origin: base } });
  expect(refused.status).toBe(403);
});

test.skipIf(lacks('bubblewrap', 'pasta'))('a job takes no port of a daemon that restarts, and gets no login', async () => {
  const port = await freePort();
  await using here = await onejob({ config: `${pools}\napi: { listen: "127.0.0.1:${port}" }` });
  await here.up();
  const operator = await login(here);
  // It tries until the port is free, and answers everybody who comes.
  const take = `until ($s = IO::Socket::IP->new(LocalAddr => "127.0.0.1", LocalPort => ${port}, ReuseAddr => 1, Listen => 5)) { select undef, undef, undef, 0.003 }`;
  const answer =
    'while ($c = $s->accept) { while (<$c>) { print "heard $_"; last unless /\\S/ } print $c "HTTP/1.1 200 OK\\r\\n\\r\\n{}"; close $c }';
  const thief = `$| = 1; print "up\\n"; ${take} ${answer}`;
  const job = here.run('-d', '--no-workspace', '--', 'perl', '-MIO::Socket::IP', '-e', thief);
  const id = (await job.ended).stdout.trim();
  const log = async (): Promise<string> => (await here.cli(['logs', id]).ended).stdout;
  await expect.poll(log, { timeout: 20_000 }).toBe('up\n');
  expect((await here.cli(['down', '--leave']).ended).code).toBe(0);
  await expect(mine(operator)).rejects.toThrow();
  await here.up();
  expect(await mine(operator)).toEqual([200, 'operator']);
  expect(await log()).toBe('up\n');
});

test('a reader hears of a job as it runs, and of a pool that somebody drains', async () => {
  await using here = await onejob({ config: pools });
  await here.up();
  const { base, headers } = await login(here, '--read-only');
  const request = http.get(`${base}/v1/events`, { headers: await headers('/v1/events') }).on('error', () => {});
  const [answer] = (await once(request, 'response')) as [http.IncomingMessage];
  const lines = createInterface({ input: answer.on('error', () => {}) }).on('error', () => {});
  const heard = new Set<string>();
  let name = '';
  lines.on('line', (line) => {
    if (line.startsWith('event: ')) name = line.slice(7);
    if (!line.startsWith('data: ')) return;
    const data = JSON.parse(line.slice(6));
    const of: Record<string, string> = { job: data.state, slot: data.slot?.agent.state, pool: `draining ${data.draining}` };
    heard.add(`${name} ${of[name] ?? data.reason}`);
  });
  await expect.poll(() => [...heard]).toContain('reset new');
  expect((await here.run('--no-workspace', '--', 'true').ended).code).toBe(0);
  await expect.poll(() => [...heard]).toEqual(expect.arrayContaining(['job done', 'slot free']));
  await here.api.drain(null);
  await expect.poll(() => [...heard]).toContain('pool draining true');
  request.destroy();
});

test('the config moves it, a port that is taken is refused, and a token that was deleted is replaced', async () => {
  await using here = await onejob({ config: pools });
  const daemon = await here.up();
  const other = createServer();
  await once(other.listen(0, '127.0.0.1'), 'listening');
  const { port } = other.address() as AddressInfo;
  const configured = `${pools}\napi: { listen: "127.0.0.1:${port}" }`;
  here.configure(configured);
  const refused = await here.cli(['config', 'apply']).ended;
  expect(refused).toMatchObject({ code: 1, stderr: expect.stringContaining(`Cannot listen on 127.0.0.1:${port}`) });
  expect(daemon.child.running).toBe(true);
  await new Promise((resolve) => other.close(resolve));
  expect((await here.cli(['config', 'apply']).ended).stdout).toBe('Applied:\n  api: changed\n');

  const operator = await login(here);
  const { base } = operator;
  expect([base, await mine(operator)]).toEqual([`http://127.0.0.1:${port}`, [200, 'operator']]);
  const file = join(here.stateDir, 'api', 'operator.token');
  const token = () => ({ authorization: `Bearer ${readFileSync(file, 'utf8').trim()}` });
  const old = token();
  expect(await me(base, old)).toEqual([200, 'operator']);
  rmSync(file);
  expect((await here.cli(['config', 'apply']).ended).stdout).toBe('Nothing to apply.\n');
  expect([await me(base, old), await mine(operator)]).toEqual([
    [401, undefined],
    [401, undefined],
  ]);
  expect(await me(base, token())).toEqual([200, 'operator']);
});

test('a daemon whose port is taken runs its agents, and says what is wrong', async () => {
  const other = createServer();
  await once(other.listen(0, '127.0.0.1'), 'listening');
  const { port } = other.address() as AddressInfo;
  await using here = await onejob({ config: `${pools}\napi: { listen: "127.0.0.1:${port}" }` });
  await here.up();
  expect((await here.run('--no-workspace', '--', 'true').ended).code).toBe(0);
  expect((await here.cli(['status']).ended).stdout).toContain(`Cannot listen on 127.0.0.1:${port} for the dashboard`);
  expect((await here.cli(['doctor']).ended).stdout).toMatch(/^warning +dashboard: Cannot listen/m);
  expect(await here.cli(['dashboard']).ended).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('another program already does'),
  });
  await new Promise((resolve) => other.close(resolve));
});
