/** The floor of Buildkite's figures: the real agent, started by hand in a sandbox that stands ready, against the service itself. */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { agentScript } from '../src/ci/buildkite/agent/script.ts';
import type { BuildkiteStandin } from '../test/standins/buildkite/standin.ts';
import { engineAt } from '../test/support/engine-http.ts';
import { defaultImage } from '../test/support/require.ts';
import { wall } from './jobs.ts';

export interface AgentByHand extends AsyncDisposable {
  /** Runs a command to its end. `at`: when the sandbox was told, wall, ms. */
  run(command: string): Promise<{ readonly job: string; readonly at: number }>;
}

export interface AgentByHandParts {
  readonly buildkite: BuildkiteStandin;
  /** A folder that host and sandbox have at the same place. */
  readonly shared: string;
  /** The agent's program, in that folder. */
  readonly program: string;
}

/** How the names of its agents begin. */
const byHandName = 'by-hand-';

const label = 'onejob-bench.floor';

export async function agentByHand({ buildkite, shared }: AgentByHandParts): Promise<AgentByHand> {
  const engine = engineAt();
  const { IPAM } = (await engine.ok('GET', '/networks/bridge')) as { IPAM: { Config: { Gateway?: string }[] } };
  const gateway = IPAM.Config.find(({ Gateway }) => Gateway !== undefined)?.Gateway ?? '172.17.0.1';
  let made = 0;

  async function prepare(): Promise<{ readonly id: string; readonly gate: string }> {
    made += 1;
    const gate = join(shared, `gate-${made}`);
    execFileSync('mkfifo', [gate]);
    const { Id: id } = (await engine.ok('POST', '/containers/create', {
      Image: defaultImage,
      Entrypoint: ['/bin/sh', gate],
      Env: [`PATH=${shared}:/usr/sbin:/usr/bin:/sbin:/bin`],
      WorkingDir: '/',
      Labels: { [label]: '1' },
      HostConfig: { Init: true, LogConfig: { Type: 'local' }, Binds: [`${shared}:${shared}`] },
    })) as { Id: string };
    await engine.ok('POST', `/containers/${id}/start`);
    return { id, gate };
  }

  let next = await prepare();
  return {
    async run(command) {
      const { id, gate } = next;
      const job = buildkite.queueJob({ command, queue: 'floor' });
      const script = agentScript({
        access: { token: buildkite.token, endpoint: `http://${gateway}:${buildkite.port}/v3`, isFiltered: false, job },
        name: `${byHandName}${made}`,
        workspace: '/tmp/workspace',
        hooks: null,
        plugins: null,
        tags: ['queue=floor'],
        secrets: [],
        verifiesCommit: false,
        cancelGrace: 30_000,
        note: null,
      });
      const out = createWriteStream(gate);
      await once(out, 'open');
      const at = wall();
      out.end(`${script}\n`);
      await buildkite.jobEnded(job);
      await engine.ok('POST', `/containers/${id}/wait`);
      await engine.ok('DELETE', `/containers/${id}?v=1`);
      next = await prepare();
      return { job, at };
    },
    async [Symbol.asyncDispose]() {
      const filters = encodeURIComponent(JSON.stringify({ label: [label] }));
      const all = (await engine.ok('GET', `/containers/json?all=1&filters=${filters}`)) as { Id: string }[];
      await Promise.all(all.map(({ Id }) => engine.call('DELETE', `/containers/${Id}?force=1&v=1`)));
      engine[Symbol.dispose]();
    },
  };
}
