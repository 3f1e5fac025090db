/** Another program of this host has the dashboard's port for a while: what it gets from a real browser, and what it leaves there. */
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type IncomingMessage, type ServerResponse } from 'node:http';
import { type AddressInfo, createServer as createListener } from 'node:net';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Home, onejob } from '../../test/support/onejob.ts';
import { lacks } from '../../test/support/require.ts';
import { buildDashboard, openBrowser, visit } from './browser.ts';

let browser: Browser;

async function freePort(): Promise<number> {
  const probe = createListener().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

async function host(): Promise<Home & { readonly port: number }> {
  const port = await freePort();
  const pools = 'pools: { default: { agents: 1, runtime: process } }';
  const home = await onejob({ config: `${pools}\napi: { listen: "127.0.0.1:${port}" }` });
  return Object.assign(home, { port });
}

interface Impostor extends AsyncDisposable {
  /** Of what browsers have sent to it. */
  readonly heard: { readonly path: string; readonly headers: IncomingHttpHeaders }[];
}

async function impostor(
  port: number,
  answer: (request: IncomingMessage, response: ServerResponse) => void,
  address = '127.0.0.1',
): Promise<Impostor> {
  const heard: Impostor['heard'] = [];
  const server = createServer((request, response) => {
    heard.push({ path: request.url ?? '', headers: request.headers });
    answer(request, response);
  });
  await once(server.listen(port, address), 'listening');
  return {
    heard,
    async [Symbol.asyncDispose]() {
      const closed = once(server, 'close');
      server.close();
      server.closeAllConnections();
      await closed;
    },
  };
}

async function linkOf(here: Home): Promise<string> {
  const { stdout, stderr } = await here.cli(['dashboard', '--json']).ended;
  return (JSON.parse(stdout || stderr) as { url: string }).url;
}

const live = (page: Page) => page.locator('.link-live').waitFor({ state: 'attached' });
const workers = (page: Page) => page.evaluate('navigator.serviceWorker.getRegistrations().then((all) => all.length)');

describe.skipIf(lacks('chromium', 'bubblewrap', 'root'))('a program that has the port of the dashboard', () => {
  beforeAll(async () => {
    await buildDashboard();
    browser = await openBrowser();
  });
  afterAll(() => browser?.close());

  test('gets nothing from an open page that it could use, and its answers are not shown', async () => {
    await using here = await host();
    const daemon = await here.up();
    await using view = await visit(browser, await linkOf(here));
    const { page } = view;
    await live(page);
    await daemon.kill();
    const answers: Record<string, unknown> = { '/v1/challenge': { challenge: 'c', at: Date.now() }, '/v1/jobs': [] };
    const thief = await impostor(here.port, (request, response) => {
      response.setHeader('content-type', 'application/json');
      response.setHeader('onejob-proof', `c.${'A'.repeat(86)}`);
      response.end(JSON.stringify(answers[request.url ?? ''] ?? {}));
    });
    await page.getByText(/is not the onejob that you logged in to/).waitFor();
    expect(await page.locator('main').getAttribute('inert')).not.toBe(null);
    await thief[Symbol.asyncDispose]();
    expect(thief.heard.length).toBeGreaterThan(0);
    expect(thief.heard.map(({ path }) => path)).toContain('/v1/challenge');
    await here.up();
    await live(page);
    for (const { path, headers } of thief.heard) {
      expect(headers.cookie).toBeUndefined();
      // A request that was on its way already.
      const { authorization = '' } = headers;
      const used = await fetch(`http://127.0.0.1:${here.port}${path}`, { headers: { authorization } });
      expect([path, path === '/v1/challenge' ? authorization : used.status]).toEqual([path, path === '/v1/challenge' ? '' : 401]);
    }
  });

  test('leaves no service worker behind, and no page registers one', async () => {
    await using here = await host();
    const worker = `addEventListener('install', () => skipWaiting());
      addEventListener('activate', (event) => event.waitUntil(clients.claim()));
      addEventListener('fetch', (event) => { if (event.request.mode === 'navigate') event.respondWith(new Response('<title>mine</title>', { headers: { 'content-type': 'text/html' } })); });`;
    const register = `<script>navigator.serviceWorker.register('/w.js').then(() => navigator.serviceWorker.ready).then(() => { document.title = 'registered'; });</script>`;
    const thief = await impostor(here.port, (request, response) => {
      const isWorker = request.url === '/w.js';
      response.setHeader('content-type', isWorker ? 'text/javascript' : 'text/html').end(isWorker ? worker : register);
    });
    const address = `http://127.0.0.1:${here.port}/`;
    await using view = await visit(browser, address);
    const { page } = view;
    await page.waitForFunction('document.title === "registered"');
    await thief[Symbol.asyncDispose]();
    await here.up();
    // Its own page once more, for which the browser asks the daemon for the script.
    await page.goto(address);
    await page.getByText('onejob dashboard', { exact: true }).waitFor();
    await expect.poll(() => workers(page)).toBe(0);
    await page.goto(await linkOf(here));
    await live(page);
    const refused = await page.evaluate(`navigator.serviceWorker.register('/w.js').then(() => 'registered', String)`);
    expect([refused, await workers(page)]).toEqual([expect.stringMatching(/Error/), 0]);
  });

  test('on the other loopback address is nobody’s dashboard: there is no login for localhost', async () => {
    await using here = await host();
    await here.up();
    const link = await linkOf(here);
    await using view = await visit(browser, link.replace('127.0.0.1', 'localhost'));
    const { page } = view;
    await live(page);
    expect(page.url()).toBe(`http://127.0.0.1:${here.port}/`);
    await using thief = await impostor(
      here.port,
      (_, response) => response.setHeader('content-type', 'text/html').end('mine'),
      '::1',
    );
    const tab = await page.context().newPage();
    await tab.goto(`http://localhost:${here.port}/`);
    for (const { headers } of thief.heard) expect([headers.authorization, headers.cookie]).toEqual([undefined, undefined]);
    const stored = 'indexedDB.databases().then((all) => [all.length, localStorage.length])';
    expect([thief.heard.length > 0 ? await tab.evaluate(stored) : [0, 0]]).toEqual([[0, 0]]);
  });

  test('a login of an earlier version is not sent, and the page says how to log in again', async () => {
    await using here = await host();
    await here.up();
    const address = `http://127.0.0.1:${here.port}`;
    const localStorage = [{ name: 'onejob-session', value: 'ojs_eyJyb2xlIjoib3BlcmF0b3IifQ.x' }];
    const storageState = { cookies: [], origins: [{ origin: address, localStorage }] };
    await using view = await visit(browser, `${address}/`, { storageState });
    const { page } = view;
    await page.getByText('This browser is not logged in, or no longer.').waitFor();
    await page.getByText('onejob dashboard', { exact: true }).waitFor();
    expect(await page.evaluate('localStorage.length')).toBe(0);
  });
});
