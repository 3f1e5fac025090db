/** `onejob dashboard`: a link for one login, opened in the browser of a desktop. */
import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { attempt, OnejobError } from '../base/errors.ts';
import { withDaemon } from './connect.ts';
import { exitCodes } from './exit.ts';
import type { Session } from './session.ts';

export interface DashboardFlags {
  readonly readOnly?: boolean;
  readonly print?: boolean;
}

export async function showDashboard(session: Session, { readOnly = false, print = false }: DashboardFlags): Promise<number> {
  const { output, context } = session;
  const role = readOnly ? 'read' : 'operator';
  const user = attempt(() => userInfo().username.slice(0, 64));
  const { url, until, built } = await withDaemon(session, (client) =>
    client.call('POST /v1/login-links', { body: { role, user } }),
  );
  if (!built && !output.json) {
    const where =
      session.remote === null ? 'In the clone that the daemon runs from' : `On ${session.remote.shown}, in the clone of onejob`;
    throw new OnejobError('E_DASHBOARD', 'The dashboard of this onejob is not built.', {
      hint: `${where}, type "npm run build:web". Then type "onejob dashboard" again.`,
    });
  }
  const may = readOnly ? 'see everything' : 'see everything, and pause, drain, cancel and quarantine';
  await output.result({ url, role, until, built }, () => [url]);
  const opens = !print && !output.json && output.isTerminal('stdout') && context.environment.hasDisplay;
  const opened = opens && (await openBrowser(session, url));
  if (!output.json)
    output.say(
      `${opened ? 'opened in your browser' : 'open it within a minute, it works once'}; who opens it may ${may} for seven days`,
    );
  return exitCodes.ok;
}

/**
 * Opens the link by a page in a private file: other users of this host can read the arguments of programs, and the code in the link
 * would be one. False if that cannot be done.
 */
async function openBrowser({ context, ...session }: Session, url: string): Promise<boolean> {
  const { runtimeDir } = context.environment;
  const folder = runtimeDir === null ? (await session.place()).stateDir : join(runtimeDir, 'onejob');
  const page = join(folder, 'dashboard.html');
  const written = attempt(() => {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    writeFileSync(page, `<!doctype html><meta http-equiv="refresh" content="0; url=${url}">\n`, { mode: 0o600 });
    return true;
  });
  if (written === null) return false;
  return new Promise((resolve) => {
    const child = spawn('xdg-open', [page], { env: { ...context.variables }, detached: true, stdio: 'ignore' });
    child.once('error', () => resolve(false));
    child.once('spawn', () => resolve(true));
    child.unref();
  });
}
