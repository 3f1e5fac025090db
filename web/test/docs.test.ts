/** The documentation in a real browser, served as the daemon serves it: nothing is refused, nothing is asked of another host. */
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { type Browser, devices } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { makeSite } from '../../scripts/docs-site.ts';
import { createWebFiles } from '../../src/api/web-files.ts';
import { lacks } from '../../test/support/require.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { openBrowser, visit } from './browser.ts';

describe.skipIf(lacks('chromium'))('documentation', () => {
  let dir: Scratch;
  let server: Server;
  let browser: Browser;
  let docs: string;
  beforeAll(async () => {
    dir = scratch();
    await makeSite(join(dir.path, 'docs'));
    const files = createWebFiles(join(dir.path, 'web'));
    server = createServer(({ url = '' }, response) => void files.serve(response, url.replace(/\?.*/, '')));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    docs = `http://127.0.0.1:${(server.address() as AddressInfo).port}/docs/`;
    browser = await openBrowser();
  });
  afterAll(async () => {
    await browser?.close();
    server?.close();
    dir?.[Symbol.dispose]();
  });

  test('search finds a section, by keyboard, from a page in a folder', async () => {
    await using view = await visit(browser, `${docs}ci/buildkite.html`);
    const { page, faults } = view;
    await page.keyboard.press('/');
    await page.keyboard.type('E_SECRET_KEY');
    await page.locator('#found a').first().waitFor();
    await page.keyboard.press('ArrowDown');
    await page.keyboard.press('Enter');
    await page.waitForURL(`${docs}errors.html#e_secret_key`);
    expect(await page.locator(':target').innerText()).toContain('E_SECRET_KEY');
    await page.locator('#search').fill('xyzzyq');
    await page.getByText('Nothing was found.').waitFor();
    await page.keyboard.press('Escape');
    expect(await page.locator('#found').isVisible()).toBe(false);
    expect(faults).toEqual([]);
  });

  test('is light or dark as the system, until one chooses', async () => {
    await using view = await visit(browser, docs, { colorScheme: 'dark' });
    const { page, faults } = view;
    const ground = () => page.evaluate('getComputedStyle(document.body).backgroundColor');
    const dark = await ground();
    const isNight = () => page.locator('article img.night').isVisible();
    expect(await isNight()).toBe(true);
    await page.locator('#theme').click();
    expect(await isNight()).toBe(false);
    expect(await page.locator('#theme').innerText()).toBe('Light');
    const light = await ground();
    expect([dark, light]).toEqual(['rgb(14, 18, 22)', 'rgb(255, 255, 255)']);
    await page.goto(`${docs}gpus.html`);
    expect(await ground()).toBe(light);
    expect(faults).toEqual([]);
  });

  test('shows the sections of a page where there is room for no column, by keyboard, and closes when one is chosen', async () => {
    await using view = await visit(browser, `${docs}operating.html`, { viewport: { width: 390, height: 844 } });
    const { page, faults } = view;
    const link = page.locator('#on-this-page').getByRole('link', { name: 'Several hosts' });
    expect(await link.isVisible()).toBe(false);
    await page.getByRole('button', { name: 'Contents' }).press('Enter');
    await link.press('Enter');
    await page.waitForURL(`${docs}operating.html#several-hosts`);
    expect(await link.isVisible()).toBe(false);
    await page.setViewportSize({ width: 1400, height: 844 });
    expect(await link.isVisible()).toBe(true);
    expect(await page.getByRole('button', { name: 'Contents' }).isVisible()).toBe(false);
    expect(faults).toEqual([]);
  });

  test('fits a phone, where a menu has the pages, also without JavaScript', async () => {
    const { defaultBrowserType: _, ...phone } = devices['Pixel 7'] ?? { defaultBrowserType: null };
    await using view = await visit(browser, docs, { ...phone, javaScriptEnabled: false });
    const { page, faults } = view;
    const link = page.locator('#pages').getByRole('link', { name: 'Operating a host' });
    expect(await link.isVisible()).toBe(false);
    await page.getByRole('button', { name: 'Menu' }).tap();
    await link.tap();
    await page.waitForURL(`${docs}operating.html`);
    expect(faults).toEqual([]);
    for (const name of ['configuration/pools', 'slot-lifecycle', 'security', 'performance', 'what-happens-if']) {
      await using wide = await visit(browser, `${docs}${name}.html`, phone);
      expect(await wide.page.evaluate('document.documentElement.scrollWidth - innerWidth'), name).toBe(0);
      expect(wide.faults).toEqual([]);
    }
  });
});
