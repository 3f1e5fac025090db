/** Real Chromium (Debian's, never downloaded), and what every page must keep to: no errors, no refused content, no other host. */
import { existsSync, globSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { type Browser, type BrowserContextOptions, chromium, type Page } from 'playwright-core';
import { build } from 'vite';

const web = join(import.meta.dirname, '..');
export const chromiumPath = '/usr/bin/chromium';

/** Builds dist/web unless it is newer than everything that it is made of. */
export async function buildDashboard(): Promise<void> {
  const made = join(web, '..', 'dist', 'web', 'index.html');
  const sources = globSync(['src/**/*', 'public/*', 'index.html', 'vite.config.ts'], { cwd: web }).map((file) => join(web, file));
  const newest = Math.max(...sources.map((file) => statSync(file).mtimeMs));
  if (existsSync(made) && statSync(made).mtimeMs > newest) return;
  await build({ configFile: join(web, 'vite.config.ts'), logLevel: 'error' });
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
