/** The dashboard in a real browser, on a real daemon with two cards that exist only as data: someone who knows nothing reads what is wrong. */
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Browser, Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { card } from '../../test/support/gpu-cards.ts';
import { gpuHost } from '../../test/support/gpu-host.ts';
import { finish, gpuHome, hold } from '../../test/support/gpu-jobs.ts';
import { type Home, onejob } from '../../test/support/onejob.ts';
import { lacks } from '../../test/support/require.ts';
import { buildDashboard, openBrowser, visit } from './browser.ts';

let browser: Browser;

async function linkOf(here: Home, ...flags: string[]): Promise<string> {
  const { stdout, stderr } = await here.cli(['dashboard', '--json', ...flags]).ended;
  return (JSON.parse(stdout || stderr) as { url: string }).url;
}

const live = (page: Page) => page.locator('.link-live').waitFor({ state: 'attached' });

describe.skipIf(lacks('chromium', 'bubblewrap', 'root'))('dashboard of a real daemon', () => {
  beforeAll(async () => {
    await buildDashboard();
    browser = await openBrowser();
  });
  afterAll(() => browser?.close());

  test('a card goes bad and a job waits: both are there to read, also after the daemon was killed', async () => {
    using host = gpuHost([card(0), card(1)]);
    await using here = await gpuHome(host, { gpu: { agents: 2, devices: 1 } });
    const daemon = await here.up();
    await using view = await visit(browser, await linkOf(here));
    const { page, faults } = view;
    await live(page);
    expect(page.url()).not.toContain('#');
    await page.getByRole('listitem', { name: /^GPU 1,/ }).waitFor();

    const jobs = [await hold(here, 'gpu'), await hold(here, 'gpu')];
    for (const n of [0, 1]) await page.getByRole('listitem', { name: `GPU ${n}, in use` }).waitFor();
    const waits = await hold(here, 'gpu');
    const row = page.locator('.queue', { has: page.locator(`a[href="#/jobs/${waits.id}"]`) });
    await row.getByText('both agents of pool gpu are busy').waitFor();

    // Which job has which card is not ours to choose.
    const onFirst = (await here.api.devices())[0]?.agents[0];
    const first = (await here.api.job(jobs[0]?.id ?? '')).agent === onFirst ? 0 : 1;
    host.change(0, { eccErrors: 2 });
    await finish(jobs[first] ?? expect.fail());
    const bad = page.getByRole('listitem', { name: 'GPU 0, quarantined' });
    await bad.getByText('2 uncorrected memory errors on this device since the agent started.').waitFor();
    await page.locator('.concerns', { hasText: 'GPU 0 is quarantined' }).waitFor();
    // In the words of the page, and a moment later in the daemon's.
    await row.getByText(/uncorrected memory errors/).waitFor();

    await daemon.kill();
    await page.getByText(/Connection lost since/).waitFor();
    expect(await page.locator('main').getAttribute('inert')).not.toBe(null);
    await here.up();
    await live(page);
    await bad.waitFor();
    await row.waitFor();

    host.change(0, { eccErrors: 0 });
    await page.getByLabel('Change GPU 0').click();
    await page.getByRole('button', { name: 'Clear' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Clear' }).click();
    await page.getByRole('listitem', { name: 'GPU 0, in use' }).waitFor();
    await finish(jobs[1 - first] ?? expect.fail());
    await finish(waits);
    await page.goto(`${page.url().split('#')[0]}#/history`);
    const ended = page.getByRole('region', { name: 'Jobs', exact: true }).last().locator('tbody tr');
    await ended.nth(2).waitFor();
    expect(await ended.count()).toBe(3);
    const days = await page.getByRole('img', { name: /^Ended jobs by day/ }).getAttribute('aria-label');
    const counts = [...(days ?? '').matchAll(/\d+/g)].map(Number);
    expect(counts.reduce((sum, count) => sum + count, 0)).toBe(3);
    await expect.poll(() => page.locator('.bars').first().innerText(), { timeout: 10_000 }).toContain('GPU 0');
    expect(faults).toEqual([]);
  });

  test('a job is followed to its end, and cancelled by an operator but not by a reader', async () => {
    await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process } }' });
    await here.up();
    const script = 'printf "\\033[31mred\\033[0m <b>text</b>\\n"; echo "error: it broke" >&2; exit 3';
    const { id } = await here.api.submit({ command: ['sh', '-c', script], name: 'breaks', user: 'ada' });
    await here.api.settled(id);
    await using view = await visit(browser, await linkOf(here));
    const { page, faults } = view;
    await live(page);
    await page.goto(`${page.url()}#/jobs/${id}`);
    const log = page.getByRole('region', { name: 'Lines of output' });
    await log.getByText('<b>text</b>').waitFor();
    expect(await log.locator('.fg-c1').innerText()).toBe('red');
    await page.getByText('It failed by its own code').waitFor();
    await page.locator('.job-title').getByText('failed', { exact: true }).waitFor();
    await page.keyboard.press('e');
    await log.locator('.line.current', { hasText: 'error: it broke' }).waitFor();

    const endless = await here.api.submit({ command: ['sh', '-c', 'while echo tick; do sleep 0.2; done'], name: 'endless' });
    const address = `${page.url().split('#')[0]}#/jobs/${endless.id}`;
    await page.goto(address);
    await log.getByText('tick').nth(3).waitFor();

    await using guest = await visit(browser, await linkOf(here, '--read-only'));
    await live(guest.page);
    await guest.page.goto(address);
    await guest.page.getByRole('heading', { name: 'endless' }).waitFor();
    await guest.page.getByText('read-only').waitFor();
    expect(await guest.page.getByRole('button', { name: 'Cancel the job' }).count()).toBe(0);

    await page.getByRole('button', { name: 'Cancel the job' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel the job' }).click();
    for (const one of [page, guest.page]) await one.getByText(/It was cancelled/).waitFor();
    await page.getByText('— ended').waitFor();

    await page.goto(`${page.url().split('#')[0]}#/health`);
    await page.locator('.finding').first().waitFor();
    expect([faults, guest.faults]).toEqual([[], []]);
  });

  test('no other port of this host gets the login, every tab has it, and a logout ends it in all of them', async () => {
    await using here = await onejob({ config: 'pools: { default: { agents: 1, runtime: process } }' });
    await here.up();
    await using view = await visit(browser, await linkOf(here));
    const { page } = view;
    await live(page);
    const address = page.url();

    const heard: IncomingHttpHeaders[] = [];
    const other = createServer(({ headers }, response) => {
      heard.push(headers);
      response.setHeader('content-type', 'text/html').end('<title>another user</title>');
    });
    await once(other.listen(0, '127.0.0.1'), 'listening');
    const stranger = await page.context().newPage();
    await stranger.goto(`http://127.0.0.1:${(other.address() as AddressInfo).port}/`);
    expect(heard[0]).toMatchObject({ host: new URL(stranger.url()).host });
    for (const headers of heard) expect([headers.cookie, headers.authorization]).toEqual([undefined, undefined]);
    expect(await stranger.evaluate('localStorage.length')).toBe(0);
    await stranger.close();
    await new Promise((resolve) => {
      other.close(resolve);
      other.closeAllConnections();
    });

    const tab = await page.context().newPage();
    await tab.goto(address);
    await live(tab);
    await tab.keyboard.press('?');
    await tab.getByRole('button', { name: 'Log out' }).click();
    for (const one of [tab, page]) await one.getByText('This browser is not logged in, or no longer.').waitFor();
  });
});
