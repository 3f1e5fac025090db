/** Webhooks of GitHub, over HTTP. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { handClock } from '../../../test/kit/core.ts';
import { memoryGitHub, signedWebhook } from '../../../test/kit/github.ts';
import { contextOf, githubService, hookSecret, jitIn, jobLine } from '../../../test/kit/github-service.ts';
import { openPorts } from '../../http/ports.ts';
import { createGithub } from './service.ts';
import { Webhook } from './webhook.ts';

const [day, hour, minute] = [86_400_000, 3_600_000, 60_000];
const endings: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const end of endings.splice(0).reverse()) await end();
});

async function occupy(port = 0) {
  const server = createServer().listen(port, '127.0.0.1');
  await once(server, 'listening');
  const free = () => new Promise((resolve) => server.close(resolve));
  return { port: (server.address() as AddressInfo).port, free };
}

async function freePort(): Promise<number> {
  const { port, free } = await occupy();
  await free();
  return port;
}

const secret = { kind: 'memory', name: 'the test', expires: null, read: () => hookSecret } as const;

/** A service that listens, on a clock that only `pass` moves. */
async function bench(given: Parameters<typeof githubService>[0] & { port?: number } = {}) {
  const { clock = handClock(), port = await freePort() } = given as { clock?: ReturnType<typeof handClock>; port?: number };
  const webhook = { listen: { host: '127.0.0.1', port }, secret };
  const made = githubService({ clock, ...given, config: { pollEvery: hour, bootTimeout: 3 * hour, webhook, ...given.config } });
  const on = new AbortController();
  made.service.observe(() => {}, on.signal);
  endings.push(async () => {
    on.abort();
    await made.service.close();
    made.close();
  });
  const send = (message: ReturnType<typeof signedWebhook>) => fetch(`http://127.0.0.1:${port}/hook`, message);
  const isUp = () => send(signedWebhook('ping', '{}', hookSecret)).then(({ status }) => status);
  const soon = <T>(what: () => T) => expect.poll(what, { timeout: 30_000, interval: 5 });
  return {
    ...made,
    clock,
    port,
    send,
    soon,
    up: () => soon(() => isUp().catch(() => null)).toBe(204),
    hook: async (...[action, job]: [Parameters<typeof made.github.webhook>[0], Parameters<typeof made.github.webhook>[1]]) =>
      (await send(made.github.webhook(action, job, hookSecret))).status,
    /** Lets a look happen that was asked for. */
    async looked(more = 5_000) {
      const lists = () => made.github.calls.filter((call) => /^GET \/(orgs|repos).*\/runners$/.test(call)).length;
      const before = lists();
      clock.advance(more);
      await soon(lists).toBeGreaterThan(before);
    },
    doctor: async () => (await made.service.check(patient)).map(({ level, message, hint }) => `${level}: ${message} ${hint ?? ''}`),
  };
}

describe('jobs that wait for an organisation', () => {
  it('are counted and shown as webhooks tell, however often and in whichever order they come', async () => {
    const { github, service, hook, up, looked, soon } = await bench();
    await up();
    expect(service.waiting('ci')).toBeNull();
    const [one, two, other] = [['ci'], ['ci'], ['windows']].map((labels) => github.queue({ labels }));
    if (one === undefined || two === undefined || other === undefined) return;
    expect([await hook('queued', one), await hook('queued', one), await hook('queued', other)]).toEqual([204, 204, 204]);
    await looked();
    await soon(() => service.waiting('ci')).toBe(1);
    expect(service.serviceJobs()).toMatchObject([
      { state: 'waiting', repository: 'acme/demo', pool: 'ci', link: expect.stringMatching(/^https/) },
    ]);
    await hook('in_progress', one);
    // Late, twice, and after the end.
    await hook('queued', one);
    github.cancel(two);
    await hook('completed', two);
    await hook('queued', two);
    await looked();
    await soon(() => service.waiting('ci')).toBe(0);
  });

  it('are unknown again after a restart, until GitHub reports one', async () => {
    const first = await bench();
    await first.up();
    await first.hook('queued', first.github.queue({ labels: ['ci'] }));
    await first.looked();
    await first.soon(() => first.service.waiting('ci')).toBe(1);
    const second = await bench({ github: first.github, clock: first.clock });
    await second.up();
    await second.looked(2 * hour);
    expect(second.service.waiting('ci')).toBeNull();
    await second.hook('queued', second.github.queue({ labels: ['ci'] }));
    await second.looked();
    await second.soon(() => second.service.waiting('ci')).toBe(1);
  });

  it('wait no more when the webhook that says so is lost', async () => {
    const { github, service, hook, up, looked, soon } = await bench();
    await up();
    const [lost, waits] = [github.queue({ labels: ['ci'] }), github.queue({ labels: ['ci'] })];
    await hook('queued', lost);
    await hook('queued', waits);
    await looked();
    await soon(() => service.waiting('ci')).toBe(2);
    // Somebody must approve it first, and does.
    waits.run.held = 'waiting';
    github.cancel(lost);
    await looked(hour);
    await soon(() => github.calls.filter((call) => call.includes('/actions/jobs/')).length).toBe(2);
    await looked(hour);
    await soon(() => service.waiting('ci')).toBe(0);
    github.approve(waits.run);
    await hook('queued', waits);
    await looked();
    await soon(() => service.waiting('ci')).toBe(1);
  });

  it('wait a day at most, where the credential may not read jobs', async () => {
    const { github, service, hook, up, looked, soon } = await bench();
    const [installation] = github.installations;
    if (installation !== undefined) installation.permissions = { organization_self_hosted_runners: 'write' };
    await up();
    await hook('queued', github.queue({ labels: ['ci'] }));
    await looked();
    await soon(() => service.waiting('ci')).toBe(1);
    await looked(day - 2 * hour);
    await hook('queued', github.queue({ labels: ['ci'] }));
    await looked();
    await soon(() => service.waiting('ci')).toBe(2);
    await looked(3 * hour);
    await soon(() => service.waiting('ci')).toBe(1);
    // Nothing came in for a day.
    await looked(day);
    await soon(() => service.waiting('ci')).toBeNull();
  });

  it('that name devices wait for a pool whose devices have not shown their labels yet', async () => {
    const { github, service, hook, up, looked, soon, parts } = await bench();
    Object.assign(parts.pools[0]?.devices ?? {}, { count: 1 });
    await up();
    await hook('queued', github.queue({ labels: ['ci', 'gpu-a100'] }));
    await looked();
    await soon(() => service.waiting('ci')).toBe(1);
  });
});

it('a job of an agent is described without a call, and looked at at once', async () => {
  const { github, service, hook, up, looked, soon, live, store } = await bench();
  live.add('a1');
  const { script } = await service.register(contextOf('a1'), patient);
  const runner = github.connect(jitIn(script));
  await up();
  const job = github.queue({ labels: ['ci'], name: 'build' });
  runner.take();
  await hook('in_progress', job);
  await looked();
  const id = `hub-${runner.row.id}`;
  await soon(() => service.serviceJobs()).toMatchObject([{ id, title: 'ci build', repository: 'acme/demo', branch: 'main' }]);
  runner.finish('failure');
  await hook('completed', job);
  // Late.
  job.status = 'in_progress';
  await hook('in_progress', job);
  expect(await service.deregister(contextOf('a1'), patient)).toEqual({ ran: id });
  expect(store.serviceJobs.get(id)).toMatchObject({ state: 'done', result: 'failure', link: expect.stringMatching(/^https/) });
  expect(github.calls.filter((call) => call.includes('/runs/'))).toEqual([]);
});

it('a job of a repository is counted by the list, which a webhook only brings forward', async () => {
  const { github, service, hook, up, looked, soon } = await bench({ queues: ['acme/demo'] });
  await up();
  const job = github.queue({ labels: ['ci'] });
  await hook('queued', job);
  await looked();
  await soon(() => service.waiting('ci')).toBe(1);
  github.cancel(job);
  await looked(2 * hour);
  await soon(() => service.waiting('ci')).toBe(0);
});

describe('the listener', () => {
  const listener = async (limits = {}) => {
    const port = await freePort();
    const lines: string[] = [];
    const events: string[] = [];
    const say = (text: string, fields?: object) => void lines.push(`${text} ${JSON.stringify(fields)}`);
    const made = new Webhook({
      service: 'hub',
      listen: { host: '127.0.0.1', port },
      secret: async () => hookSecret,
      clock: handClock(),
      limits,
      log: { info: say, warn: say, error: say },
      heard: ({ action }) => void events.push(action),
    });
    endings.push(() => made.close());
    await made.open();
    const send = async (message: RequestInit) => {
      const answer = await fetch(`http://127.0.0.1:${port}/`, message);
      return `${answer.status} ${await answer.text()}`;
    };
    return { port, lines, events, send };
  };
  const github = memoryGitHub();
  const job = github.queue({ labels: ['ci'] });
  const good = github.webhook('queued', job, hookSecret);

  it('takes what GitHub signed, as JSON or as a form', async () => {
    const { send, events } = await listener();
    expect(await send(good)).toBe('204 ');
    const form = signedWebhook('workflow_job', String(new URLSearchParams({ payload: good.body })), hookSecret);
    const headers = { ...form.headers, 'content-type': 'application/x-www-form-urlencoded' };
    expect(await send({ ...form, headers })).toBe('204 ');
    expect(await send(signedWebhook('ping', '{"zen":"x"}', hookSecret))).toBe('204 ');
    expect(await send(signedWebhook('push', '{}', hookSecret))).toBe('204 ');
    expect(events).toEqual(['queued', 'queued']);
  });

  it('refuses everything else, without a detail, and logs that once a minute', async () => {
    const { send, events, lines } = await listener();
    lines.length = 0;
    const { 'x-hub-signature-256': _, ...unsigned } = good.headers;
    const cases = [
      github.webhook('queued', job, 'another secret'),
      { ...good, body: good.body.replace('queued', 'completed') },
      { ...good, headers: unsigned },
      { ...good, headers: { ...unsigned, 'x-hub-signature-256': 'sha256=' } },
    ];
    for (const one of cases) expect(await send(one)).toBe('401 ');
    expect(lines).toEqual([expect.stringContaining('its signature does not fit')]);
    expect(lines.join()).not.toContain(hookSecret);
    expect(await send({ method: 'GET' })).toBe('405 ');
    expect(await send(signedWebhook('workflow_job', '{"action":', hookSecret))).toBe('400 ');
    expect(await send(signedWebhook('workflow_job', 'x'.repeat(1024 * 1024 + 1), hookSecret))).toBe('413 ');
    expect(events).toEqual([]);
  });

  it('keeps a connection on which GitHub has spoken, however many strangers come', async () => {
    const { port } = await listener();
    const socket = connect(port, '127.0.0.1');
    let isOpen = true;
    socket.on('close', () => {
      isOpen = false;
    });
    const speak = async () => {
      const head = Object.entries(good.headers).map(([name, value]) => `${name}: ${value}\r\n`);
      socket.write(
        `POST / HTTP/1.1\r\nHost: x\r\n${head.join('')}Content-Length: ${Buffer.byteLength(good.body)}\r\n\r\n${good.body}`,
      );
      return String(await Promise.race([once(socket, 'data'), once(socket, 'close').then(() => 'closed')]));
    };
    expect(await speak()).toMatch(/^HTTP\/1\.1 204 /);
    const strangers = Array.from({ length: 70 }, () => connect(port, '127.0.0.1').on('error', () => {}));
    // The oldest of the strangers makes room.
    await once(strangers[0] as (typeof strangers)[number], 'close');
    expect(isOpen).toBe(true);
    expect(await speak()).toMatch(/^HTTP\/1\.1 204 /);
    for (const one of [socket, ...strangers]) one.destroy();
  });

  it('gives up a body that comes too slowly', async () => {
    const { port, send } = await listener({ request: 300 });
    const socket = connect(port, '127.0.0.1');
    socket.write('POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nslow');
    let said = '';
    socket.on('data', (piece) => {
      said += piece;
    });
    await once(socket, 'close');
    expect(said).toMatch(/^HTTP\/1\.1 408 /);
    expect(await send(good)).toBe('204 ');
  });

  it('answers that it cannot check a signature while its secret cannot be read', async () => {
    const port = await freePort();
    const lines: string[] = [];
    const made = new Webhook({
      service: 'hub',
      listen: { host: '127.0.0.1', port },
      clock: handClock(),
      heard: () => {},
      secret: () => Promise.reject(new Error('the secret file is missing')),
      log: { info: () => {}, error: () => {}, warn: (_, fields) => void lines.push(String(fields?.reason)) },
    });
    endings.push(() => made.close());
    await made.open();
    expect((await fetch(`http://127.0.0.1:${port}/`, good)).status).toBe(503);
    expect(lines).toEqual([expect.stringContaining('the secret file is missing')]);
  });
});

describe('a port of the daemon', () => {
  it('stays open between one listener and the next, and closes when the config no longer has it', async () => {
    const log = { info: () => {}, warn: () => {}, error: () => {} };
    const ports = await openPorts([], log);
    endings.push(async () => ports.close());
    const listen = { host: '127.0.0.1', port: await freePort() };
    ports.want([listen]);
    const made = () =>
      new Webhook({ service: 'hub', listen, secret: async () => 's', clock: handClock(), heard: () => {}, log, ports });
    const ask = () => fetch(`http://127.0.0.1:${listen.port}/`, { method: 'POST' }).then(({ status }) => status);
    const [first, second] = [made(), made()];
    await first.open();
    expect(await ask()).toBe(401);
    await first.close();
    ports.closeUnused();
    await expect(ports.take({ ...listen, host: '0.0.0.0' })).rejects.toMatchObject({ code: 'EADDRINUSE' });
    await second.open();
    expect(await ask()).toBe(401);
    await second.close();
    ports.want([]);
    ports.closeUnused();
    expect(ports.has(listen)).toBe(false);
  });
});

describe('doctor', () => {
  it('says when the last webhook came in, and warns when none does', async () => {
    const { doctor, clock, up, port, looked } = await bench();
    await expect.poll(doctor).toContainEqual(expect.stringMatching(/^ok: No webhook has come in/));
    await looked(2 * hour);
    expect(await doctor()).toContainEqual(expect.stringMatching(/^warning: No webhook .* for 2h\. Look at "Recent Deliveries"/));
    await up();
    clock.advance(3 * minute);
    expect(await doctor()).toContainEqual(expect.stringMatching(/^ok: The last webhook came in 3m ago\./));
    expect(port).toBeGreaterThan(0);
  });

  it('says what to do when the port is taken; pools continue by polling, and the port is taken once it is free', async () => {
    const other = await occupy();
    const { doctor, clock, up, looked } = await bench({ port: other.port });
    const said = new RegExp(
      `^error: Cannot listen on 127.0.0.1:${other.port} for webhooks: another program already does\\. Change "services.hub.webhook.listen"`,
    );
    await expect.poll(doctor).toContainEqual(expect.stringMatching(said));
    await looked(2 * hour);
    await other.free();
    clock.advance(10_000);
    await up();
  });
});

/** An agent whose runner has taken a job. */
async function working() {
  const one = await bench();
  await one.up();
  one.live.add('a1');
  const { script } = await one.service.register(contextOf('a1'), patient);
  const runner = one.github.connect(jitIn(script));
  const job = one.github.queue({ labels: ['ci'], name: 'build' });
  runner.take();
  return { one, runner, job };
}

it('tells how a job ended whose agent has ended before', async () => {
  const { one, runner, job } = await working();
  expect(await one.hook('in_progress', job)).toBe(204);
  const id = `hub-${runner.row.id}`;
  one.live.delete('a1');
  await one.service.deregister(contextOf('a1'), patient);
  expect(one.store.serviceJobs.get(id)).toMatchObject({ state: 'done', outcome: null, endedAt: expect.any(Number) });
  one.clock.advance(700);
  runner.finish();
  expect(await one.hook('completed', job)).toBe(204);
  await one
    .soon(() => one.store.serviceJobs.get(id))
    .toMatchObject({ result: 'success', outcome: 'passed', startedAt: job.startedAt });
  // Once more, and late, changes nothing.
  expect(await one.hook('in_progress', job)).toBe(204);
  expect(one.store.serviceJobs.get(id)).toMatchObject({ result: 'success' });
});

it('a refusal that was written down stays, whatever is told after its agent has ended', async () => {
  const { one, runner, job } = await working();
  one.service.listen('a1')(jobLine({ refused: 'it comes from stranger/demo, a fork' }));
  expect(await one.hook('in_progress', job)).toBe(204);
  one.live.delete('a1');
  await one.service.deregister(contextOf('a1'), patient);
  const row = () => one.store.serviceJobs.get(`hub-${runner.row.id}`);
  expect(row()).toMatchObject({ result: 'refused' });
  runner.finish('failure');
  expect(await one.hook('completed', job)).toBe(204);
  await one.soon(() => row()?.endedAt).toEqual(expect.any(Number));
  expect(row()).toMatchObject({ result: 'refused', note: 'onejob refused this job: it comes from stranger/demo, a fork.' });
});

it('a refusal that was written down stays, also when a manager that has not seen it hears of the end', async () => {
  const { one, runner, job } = await working();
  one.service.listen('a1')(jobLine({ refused: 'it comes from stranger/demo, a fork' }));
  one.live.delete('a1');
  await one.service.deregister(contextOf('a1'), patient);
  const id = `hub-${runner.row.id}`;
  const refused = { result: 'refused', note: 'onejob refused this job: it comes from stranger/demo, a fork.' };
  expect(one.store.serviceJobs.get(id)).toMatchObject(refused);
  await one.service.close();
  const next = createGithub(one.parts);
  const on = new AbortController();
  endings.push(async () => {
    on.abort();
    await next.close();
  });
  next.observe(() => {}, on.signal);
  await one.up();
  one.clock.advance(700);
  runner.finish('failure');
  expect(await one.hook('completed', job)).toBe(204);
  await one.soon(() => one.store.serviceJobs.get(id)?.link).toMatch(/^https/);
  expect(one.store.serviceJobs.get(id)).toMatchObject(refused);
  expect(one.store.outcomes.get(id)?.verdict.kind).toBe('unknown');
});
