/**
 * The real buildkite-agent, as client of the stand-in. It is built once from the module proxy and kept outside the repository;
 * also a command: `node test/support/buildkite-agent.ts` builds it where Go is there, and says what came of it.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { go, hasGo, inCache, madeOnce } from './go-program.ts';

/** Pinned with `buildkite-go/go.mod`. */
export const agentVersion = '3.137.0';

/** Where the agent is, or would be: what ONEJOB_BUILDKITE_AGENT names, else a file that all checkouts of this host share. */
export function agentPath(env: NodeJS.ProcessEnv = process.env): string {
  return env.ONEJOB_BUILDKITE_AGENT ?? inCache(`buildkite-agent-${agentVersion}`);
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

/** Builds it unless it is there. @throws Error with what Go said */
export const buildRealAgent = (): Promise<string> =>
  madeOnce(agentPath(), async (half) => {
    await go(['build', '-trimpath', '-o', half, 'github.com/buildkite/agent/v3'], join(import.meta.dirname, 'buildkite-go'));
  });

if (import.meta.main) {
  const from = Date.now();
  if (realAgent() === null && !hasGo()) console.log(`Tests with the real agent are skipped: ${lacksAgent()}.`);
  else console.log(`${await buildRealAgent()} (${Math.round((Date.now() - from) / 1000)} s)`);
}
