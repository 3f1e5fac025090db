/** How soon the dashboard shows what happens, in a real browser on a real daemon, and what ten of its clients cost the daemon. */
import { get } from 'node:http';
import { setTimeout as after } from 'node:timers/promises';
import { onejob } from '../test/support/onejob.ts';
import { buildDashboard, openBrowser, visit } from '../web/test/browser.ts';
import { rss } from './daemon.ts';
import { rounded, type Stats, stats } from './stats.ts';

export interface DashboardFigure {
  /** ms from the submission of a job, as the daemon wrote it down, until its line is in the page. */
  readonly shown: Stats;
  /** Of the daemon, while ten clients are there. */
  readonly residentMB: number;
}

/** ms between two jobs: 200 in a minute. */
const pace = 300;
const clients = 10;

export async function dashboardFigure(jobs: number): Promise<DashboardFigure> {
  await buildDashboard();
  await using here = await onejob({ config: 'pools: { default: { agents: 2, runtime: process } }' });
  const daemon = await here.up();
  await using browser = await openBrowser();
  const said = await here.cli(['dashboard', '--json']).ended;
  const { url } = JSON.parse(said.stdout || said.stderr) as { url: string };
  await using view = await visit(browser, url);
  const { page } = view;
  await page.locator('.link-live').waitFor({ state: 'attached' });
  const others = Array.from({ length: clients - 1 }, () =>
    get({ socketPath: here.socket, path: '/v1/events' }, (answer) => answer.resume()),
  );
  await page.evaluate(`{
    window.seen = {};
    new MutationObserver(() => {
      const now = Date.now();
      for (const link of document.querySelectorAll('.job a[href^="#/jobs/"]')) window.seen[link.hash] ??= now;
    }).observe(document.body, { subtree: true, childList: true });
  }`);
  const submitted = new Map<string, number>();
  for (let n = 0; n < jobs; n += 1) {
    const { id, submittedAt } = await here.api.submit({ command: ['true'], name: `job ${n}` });
    submitted.set(`#/jobs/${id}`, submittedAt ?? Number.NaN);
    await after(pace);
  }
  await after(1_000);
  const seen = await page.evaluate<Record<string, number>>('window.seen');
  const residentMB = rss(daemon.pid);
  for (const one of others) one.destroy();
  const times = [...submitted].map(([job, at]) => rounded((seen[job] ?? Number.POSITIVE_INFINITY) - at));
  return { shown: stats(times), residentMB };
}
