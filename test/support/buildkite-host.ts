/** What tests and the bench need of Buildkite's stand-in on a real host. Imports no test runner: the bench has none. */
import { spawnSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import type { BuildkiteStandin } from '../standins/buildkite/standin.ts';

/** Resolves once jobs are asked for: a slot is free, and all that its agent needs is there. */
export async function untilAsking({ buildkite }: { readonly buildkite: BuildkiteStandin }, timeout = 60_000): Promise<void> {
  const before = buildkite.requests.length;
  // While no slot is free it asks now and then, too.
  const isOften = (): boolean => {
    const lists = buildkite.requests.slice(before).filter(({ route }) => route === 'stacks/:key/scheduled-jobs');
    return lists.some(({ at }, n) => at - (lists[n - 1]?.at ?? 0) < 1_900);
  };
  const until = Date.now() + timeout;
  while (!isOften()) {
    if (Date.now() > until) throw new Error(`nobody has asked for jobs often within ${timeout} ms`);
    await sleep(50);
  }
}

/** Of this host, as containers reach it. */
export function bridgeAddress(): string {
  // Node lists no interface that nothing is connected to.
  const { stdout } = spawnSync('ip', ['-4', '-o', 'addr', 'show', 'docker0'], { encoding: 'utf8' });
  return /inet ([\d.]+)/.exec(stdout ?? '')?.[1] ?? '127.0.0.1';
}
