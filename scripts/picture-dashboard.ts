/**
 * Makes the pictures in docs/dashboard.md: the dashboard in Chromium, on a working day of a made-up host with eight cards. The site of
 * the docs shows NAME-dark.png in place of NAME.png where the page is dark.
 *
 *     node scripts/picture-dashboard.ts
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { BrowserContextOptions, Page } from 'playwright-core';
import { buildDashboard, openBrowser, visit } from '../web/test/browser.ts';
import { linkTo, type Standin, startStandin } from '../web/test/standin.ts';
import { brokenRun, workingDay } from '../web/test/world.ts';
import { smallPng } from './small-png.ts';

interface Picture {
  readonly path: string;
  readonly options: BrowserContextOptions;
  /** All of the page, also below the window. */
  readonly whole?: boolean;
  /** Until everything is there, and after that where to look. */
  readonly ready: (page: Page) => Promise<unknown>;
}

const wide: BrowserContextOptions = { viewport: { width: 1280, height: 860 } };
const pictures: Readonly<Record<string, Picture>> = {
  now: { path: '', options: wide, ready: (page) => page.getByText('proof: dirty').waitFor() },
  job: {
    path: '#/jobs/e2a1b2c3d4e5',
    options: { viewport: { width: 1280, height: 640 } },
    whole: true,
    async ready(page) {
      await page.getByText('epoch 1').first().waitFor();
      await page.keyboard.press('e');
      await page.locator('.line.current', { hasText: 'RuntimeError' }).waitFor();
    },
  },
  history: {
    path: '#/history',
    options: { viewport: { width: 1280, height: 960 } },
    ready: (page) => page.getByText('stands out').waitFor(),
  },
  phone: {
    path: '',
    options: { viewport: { width: 360, height: 740 }, deviceScaleFactor: 2, colorScheme: 'dark' },
    ready: (page) => page.getByText('next, within').first().waitFor(),
  },
};

async function take(standin: Standin, name: string, { path, options, ready, whole = false }: Picture): Promise<void> {
  await using view = await visit(browser, linkTo(standin.url), { ...options, reducedMotion: 'reduce' });
  const { page } = view;
  await page.locator('.link-live').waitFor({ state: 'attached' });
  await page.goto(`${standin.url}/${path}`);
  await page.locator('.link-live').waitFor({ state: 'attached' });
  await ready(page);
  await page.locator('.chart canvas').last().waitFor({ state: 'attached' });
  const file = join(import.meta.dirname, '..', 'docs', 'pictures', `dashboard-${name}.png`);
  const picture = smallPng(await page.screenshot({ fullPage: whole }));
  writeFileSync(file, picture);
  process.stdout.write(`${file}: ${Math.round(picture.length / 1000)} kB\n`);
}

await buildDashboard();
await using standin = await startStandin(workingDay());
standin.logs.set('e2a1b2c3d4e5', brokenRun());
await using browser = await openBrowser();
for (const [name, picture] of Object.entries(pictures)) {
  await take(standin, name, picture);
  if (picture.options.colorScheme === undefined)
    await take(standin, `${name}-dark`, { ...picture, options: { ...picture.options, colorScheme: 'dark' } });
}
