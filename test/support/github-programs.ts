/**
 * Real clients of GitHub Actions, built once from the module proxy: github-act-runner, a runner that others wrote in Go, and a
 * probe around GitHub's own scale-set client. Also a command: `node test/support/github-programs.ts` builds them where Go is there,
 * and says what came of it.
 */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { go, hasGo, inCache, madeOnce, moduleFolder } from './go-program.ts';

export const actRunnerVersion = '0.13.0';
const probeSource = join(import.meta.dirname, 'github-go');
/** Versions of what it is made of, and its own source, as a short word. */
const probeVersion = ['go.mod', 'go.sum', 'main.go']
  .reduce((hash, name) => hash.update(readFileSync(join(probeSource, name))), createHash('sha256'))
  .digest('hex')
  .slice(0, 12);

export const githubPrograms = {
  runner: inCache(`github-act-runner-${actRunnerVersion}`),
  scaleSetProbe: inCache(`scale-set-probe-${probeVersion}`),
};

/** Why they are not there, as a sentence's end; null when they are. */
export function lacksGitHub(): string | null {
  const missing = Object.values(githubPrograms).find((path) => !existsSync(path));
  if (missing === undefined) return null;
  const how = hasGo() ? 'run "npx node test/support/github-programs.ts" once' : '"go" is not installed to build it';
  return `nothing at ${missing}; ${how}`;
}

/** Builds what is missing: about a minute of CPU time. @throws Error with what Go said */
export async function buildGitHub(): Promise<void> {
  // It is built in its own folder, because its `replace` lines count for the main module only.
  await madeOnce(githubPrograms.runner, async (half) => {
    const source = await moduleFolder(`github.com/ChristopherHX/github-act-runner@v${actRunnerVersion}`);
    await go(['build', '-trimpath', '-ldflags', `-s -w -X main.version=${actRunnerVersion}`, '-o', half, '.'], source);
  });
  await madeOnce(githubPrograms.scaleSetProbe, async (half) => {
    await go(['build', '-trimpath', '-ldflags', '-s -w', '-o', half, '.'], probeSource);
  });
}

if (import.meta.main) {
  const from = Date.now();
  if (lacksGitHub() !== null && !hasGo()) console.log(`Tests with real GitHub clients are skipped: ${lacksGitHub()}.`);
  else {
    await buildGitHub();
    console.log(`${Object.values(githubPrograms).join(', ')} (${Math.round((Date.now() - from) / 1000)} s)`);
  }
}
