/**
 * The real buildkite-agent, as client of the stand-in. It is built once from the module proxy and kept outside the repository;
 * also a command: `node test/support/buildkite-agent.ts` builds it where Go is there, and says what came of it.
 */
import { execFile, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isAlive } from './child.ts';

/** Pinned with `buildkite-go/go.mod`. */
export const agentVersion = '3.137.0';

/** Where the agent is, or would be: what ONEJOB_BUILDKITE_AGENT names, else a file that all checkouts of this host share. */
export function agentPath(env: NodeJS.ProcessEnv = process.env): string {
  return env.ONEJOB_BUILDKITE_AGENT ?? join(tmpdir(), 'onejob-ci-cache', `buildkite-agent-${agentVersion}`);
}

/** Path of a built agent; null if there isn't one. */
export function realAgent(): string | null {
  const path = agentPath();
  return existsSync(path) ? path : null;
}

/** Why `realAgent()` is null, as a sentence's end; null when it is not. */
export function lacksAgent(): string | null {
  if (realAgent() !== null) return null;
  const how = hasGo() ? 'run "npx node test/support/buildkite-agent.ts" once' : '"go" is not installed to build it';
  return `no buildkite-agent ${agentVersion} at ${agentPath()}; ${how}`;
}

export const hasGo = (): boolean => spawnSync('go', ['version']).status === 0;

/** Builds it unless it is there: by one process at a time, and in place only when whole. @throws Error with what Go said. */
export async function buildRealAgent(): Promise<string> {
  const path = agentPath();
  if (existsSync(path)) return path;
  await mkdir(join(path, '..'), { recursive: true });
  await using _lock = await locked(`${path}.lock`);
  if (existsSync(path)) return path;
  const half = `${path}.${process.pid}`;
  try {
    await go(['build', '-trimpath', '-buildvcs=false', '-o', half, 'github.com/buildkite/agent/v3']);
    await rename(half, path);
  } finally {
    await rm(half, { force: true });
  }
  return path;
}

async function go(args: readonly string[]): Promise<void> {
  const child = execFile('go', args, {
    cwd: join(import.meta.dirname, 'buildkite-go'),
    env: { ...process.env, CGO_ENABLED: '0', GOFLAGS: '-mod=readonly', GOWORK: 'off' },
  });
  let said = '';
  child.stderr?.on('data', (text: string) => {
    said += text;
  });
  const [status] = await once(child, 'close');
  if (status !== 0)
    throw new Error(`Cannot build buildkite-agent: "go ${args.join(' ')}" ended with ${status}.\n${said.slice(-2000)}`);
}

/** A file that only one can make, with its process in it. Who finds it looks again: the kernel tells nobody when it goes. */
async function locked(path: string): Promise<AsyncDisposable> {
  for (;;) {
    try {
      await writeFile(path, String(process.pid), { flag: 'wx' });
      return { [Symbol.asyncDispose]: () => rm(path, { force: true }) };
    } catch (error) {
      if (!(error instanceof Error && 'code' in error && error.code === 'EEXIST')) throw error;
    }
    const holder = Number(await readFile(path, 'utf8').catch(() => ''));
    // Empty for a moment, between its making and its writing.
    if (holder > 0 && !isAlive(holder)) await rm(path, { force: true });
    else await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

if (import.meta.main) {
  const from = Date.now();
  if (realAgent() === null && !hasGo()) console.log(`Tests with the real agent are skipped: ${lacksAgent()}.`);
  else console.log(`${await buildRealAgent()} (${Math.round((Date.now() - from) / 1000)} s)`);
}
