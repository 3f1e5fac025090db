/** The real agent as a process beside a test: a home of its own, and nothing of this machine's environment. */
import { mkdirSync, symlinkSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { realAgent } from '../../../support/buildkite-agent.ts';
import { type Child, startChild } from '../../../support/child.ts';
import { type Scratch, scratch } from '../../../support/scratch.ts';
import { type BuildkiteOptions, type BuildkiteStandin, startBuildkite } from '../standin.ts';

export interface AgentOptions {
  /** Default `one`. */
  readonly name?: string;
  /** Default the stand-in's; null: none in the environment, so that `flags` say. */
  readonly token?: string | null;
  /** Default the stand-in's own. */
  readonly endpoint?: string;
  /** Default `--disconnect-after-job --ping-mode poll-only`. */
  readonly flags?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

/** Script of a job that says `ready` and continues until the agent's home is gone, so that none outlives a killed agent for long. */
export const untilHomeIsGone = 'echo ready; while [ -d "$HOME" ]; do sleep 0.2; done';

export interface Setup extends AsyncDisposable {
  readonly bk: BuildkiteStandin;
  readonly home: string;
  /** A folder whose `buildkite-agent` is the real one. */
  readonly bin: string;
  start(options?: AgentOptions): Child;
}

/** What one agent needs, in `dir`: homes are not shared. @throws Error when there is no agent. */
export function startRealAgent(standin: Pick<BuildkiteStandin, 'endpoint' | 'token'>, dir: string, o: AgentOptions = {}): Child {
  const name = o.name ?? 'one';
  const home = join(dir, name);
  mkdirSync(home, { recursive: true });
  const bin = agentBin(dir);
  const flags = o.flags ?? ['--disconnect-after-job', '--ping-mode', 'poll-only'];
  const token = o.token === undefined ? standin.token : o.token;
  return startChild(join(bin, 'buildkite-agent'), ['start', '--name', name, '--no-color', ...flags], {
    cwd: home,
    env: {
      // Subcommands are looked for by name, and the kept file has the version in its own.
      PATH: `${bin}${delimiter}${process.env.PATH}`,
      HOME: home,
      BUILDKITE_AGENT_ENDPOINT: o.endpoint ?? standin.endpoint,
      BUILDKITE_BUILD_PATH: join(home, 'builds'),
      BUILDKITE_SOCKETS_PATH: join(home, 's'),
      ...(token === null ? {} : { BUILDKITE_AGENT_TOKEN: token }),
      ...o.env,
    },
  });
}

/** A folder in `dir` that has the real agent under the name by which jobs call it. @throws Error when there is no agent. */
export function agentBin(dir: string): string {
  const bin = join(dir, 'bin');
  const agent = realAgent();
  if (agent === null) throw new Error('There is no buildkite-agent here; see test/support/buildkite-agent.ts.');
  if (mkdirSync(bin, { recursive: true }) !== undefined) symlinkSync(agent, join(bin, 'buildkite-agent'));
  return bin;
}

/** A stand-in and a folder; agents that still run at the end are killed. */
export async function setup(options: BuildkiteOptions = {}): Promise<Setup> {
  const bk = await startBuildkite(options);
  const folder: Scratch = scratch();
  const children: Child[] = [];
  return {
    bk,
    home: folder.path,
    bin: agentBin(folder.path),
    start(o = {}) {
      const child = startRealAgent(bk, folder.path, o);
      children.push(child);
      return child;
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(children.map((child) => child.kill()));
      await bk[Symbol.asyncDispose]();
      folder[Symbol.dispose]();
    },
  };
}
