/** Real Chromium (Debian's, never downloaded), and what every page must keep to: no errors, no refused content, no other host. */
import { existsSync, globSync, mkdirSync, rmSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as after } from 'node:timers/promises';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { build } from 'vite';

const web = join(import.meta.dirname, '..');
export const chromiumPath = '/usr/bin/chromium';

const made = join(web, '..', 'dist', 'web');

/** Builds dist/web unless it is newer than everything that it is made of. Tests that run at the same time build it once. */
export async function buildDashboard(): Promise<void> {
  const lock = `${made}.lock`;
  mkdirSync(dirname(made), { recursive: true });
  // It is written file by file, so it is not ready while somebody builds it.
  while (!isBuilt() || existsSync(lock)) {
    try {
      mkdirSync(lock);
    } catch {
      // Somebody builds it, or was killed while doing so.
      const since = statSync(lock, { throwIfNoEntry: false })?.mtimeMs ?? Date.now();
      if (Date.now() - since > 120_000) rmSync(lock, { recursive: true, force: true });
      await after(200);
      continue;
    }
    try {
      if (!isBuilt()) await build({ configFile: join(web, 'vite.config.ts'), logLevel: 'error' });
    } finally {
      rmSync(lock, { recursive: true, force: true });
    }
  }
}

function isBuilt(): boolean {
  const index = statSync(join(made, 'index.html'), { throwIfNoEntry: false });
  const sources = globSync(['src/**/*', 'public/*', 'index.html', 'vite.config.ts', 'credited.ts', '../src/api/signed.ts'], {
    cwd: web,
  });
  return index !== undefined && sources.every((file) => statSync(join(web, file)).mtimeMs <= index.mtimeMs);
}

export function openBrowser(): Promise<Browser> {
  const root = process.getuid?.() === 0;
  return chromium.launch({ executablePath: chromiumPath, args: root ? ['--no-sandbox'] : [] });
}

export interface Visit extends AsyncDisposable {
  readonly page: Page;
  /** Errors of scripts, content that the policy refused, and requests to other hosts. */
  readonly faults: string[];
}

export async function visit(browser: Browser, url: string, options: BrowserContextOptions = {}): Promise<Visit> {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, locale: 'en-GB', ...options });
  const page = await context.newPage();
  const faults: string[] = [];
  page.on('pageerror', (error) => faults.push(String(error)));
  page.on('console', (message) => {
    // The browser itself reports every failed request as an error.
    if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) faults.push(message.text());
  });
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) faults.push(`asked ${request.url()}`);
  });
  await page.goto(url);
  return { page, faults, [Symbol.asyncDispose]: () => context.close() };
}
