/**
 * The real Gitea and its real runner, unchanged, built once from the module proxy; also a command: `node test/support/gitea-programs.ts`
 * builds them where Go is there, and says what came of it.
 */
import { existsSync } from 'node:fs';
import { cp, mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { go, hasGo, inCache, madeOnce, moduleFolder } from './go-program.ts';

export const giteaVersion = '1.26.4';
export const runnerVersion = '1.0.8';

/** `server` with its templates next to it, in `static`. */
export const giteaPrograms = {
  folder: inCache(`gitea-${giteaVersion}`),
  server: join(inCache(`gitea-${giteaVersion}`), 'gitea'),
  runner: inCache(`gitea-runner-${runnerVersion}`),
};

/** Why they are not there, as a sentence's end; null when they are. */
export function lacksGitea(): string | null {
  const { server, runner } = giteaPrograms;
  const missing = [server, runner].find((path) => !existsSync(path));
  if (missing === undefined) return null;
  const how = hasGo() ? 'run "npx node test/support/gitea-programs.ts" once' : '"go" is not installed to build it';
  return `nothing at ${missing}; ${how}`;
}

/** Builds what is missing: about 7 minutes of CPU time. @throws Error with what Go said */
export async function buildGitea(): Promise<void> {
  await madeOnce(giteaPrograms.folder, async (half) => {
    const source = await moduleFolder(`code.gitea.io/gitea@v${giteaVersion}`);
    await mkdir(half);
    // The front end is not built: API, git over HTTP and Actions work without it.
    for (const name of ['templates', 'options', 'public'])
      if (existsSync(join(source, name))) await cp(join(source, name), join(half, 'static', name), { recursive: true });
    const flags = ['-trimpath', '-tags', 'sqlite sqlite_unlock_notify', '-ldflags', `-s -w -X main.Version=${giteaVersion}`];
    await go(['build', ...flags, '-o', join(half, 'gitea'), '.'], source, { CGO_ENABLED: '1' });
  });
  await madeOnce(giteaPrograms.runner, async (half) => {
    const source = await moduleFolder(`gitea.com/gitea/runner@v${runnerVersion}`);
    const flags = ['-trimpath', '-ldflags', `-s -w -X gitea.com/gitea/runner/internal/pkg/ver.version=v${runnerVersion}`];
    await go(['build', ...flags, '-o', half, '.'], source);
  });
}

if (import.meta.main) {
  const from = Date.now();
  if (lacksGitea() !== null && !hasGo()) console.log(`Tests with the real Gitea are skipped: ${lacksGitea()}.`);
  else {
    await buildGitea();
    console.log(`${giteaPrograms.server}, ${giteaPrograms.runner} (${Math.round((Date.now() - from) / 1000)} s)`);
  }
}
