/**
 * Gitea, with its real server and runner on the real Engine: from the end of one job to the first line of the next, on one slot whose
 * queue is never empty. Beside it, in the same minutes, what people run today: the runner's own docker mode, an ephemeral registration
 * for each job; and the floor, the same on the host without any sandbox. Jobs write down the time themselves.
 */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { startGitea } from '../test/support/gitea.ts';
import { giteaPrograms, lacksGitea, runnerVersion } from '../test/support/gitea-programs.ts';
import { onejob } from '../test/support/onejob.ts';
import { type Stats, stats } from './stats.ts';

/** In ms. */
export interface GiteaGaps {
  readonly ours: Stats;
  readonly docker: Stats;
  readonly floor: Stats;
}

const workflow = (label: string) => `on: workflow_dispatch
jobs:
  j:
    runs-on: ${label}
    steps:
      - run: |
          echo BEGIN $(date +%s.%N)
          sleep 2
          echo END $(date +%s.%N)
`;

/** `rounds` gaps of each, all jobs queued before the first begins. */
export async function giteaGaps(rounds: number, dir: string): Promise<GiteaGaps> {
  if (lacksGitea() !== null) throw new Error(`${lacksGitea()}`);
  await using gitea = await startGitea();
  await gitea.repository('acme/demo', {
    '.gitea/workflows/ours.yml': workflow('ours'),
    '.gitea/workflows/docker.yml': workflow('docker'),
    '.gitea/workflows/host.yml': workflow('host'),
  });
  const jobs = rounds + 1;
  for (let n = 0; n < jobs; n++) await gitea.dispatch('acme/demo', 'ours.yml');
  await using home = await onejob({
    config: `services:
  forge: { type: gitea, url: "${gitea.url}", token: { env: GITEA_TOKEN }, agent: { from: ${giteaPrograms.runner} } }
pools:
  ours: { service: forge, queue: acme, agents: 1, image: "debian:stable-slim", network: default }
`,
    env: { GITEA_TOKEN: gitea.token },
  });
  const daemon = await home.up();
  await gitea.until((all) => all.length === jobs && all.every(({ status }) => status === 'completed'), 60_000 * rounds);
  const ours = await gapsOf(gitea);
  await daemon.stop();

  const alone = async (label: string, way: string, from: number): Promise<Stats> => {
    for (let n = 0; n < jobs; n++) await gitea.dispatch('acme/demo', `${label}.yml`);
    await gitea.until((all) => all.length === from + jobs);
    for (let n = 0; n < jobs; n++) await byItself(gitea, `${label}:${way}`, join(dir, `${label}-${n}`));
    return stats(await gapsOf(gitea, from));
  };
  try {
    const docker = await alone('docker', 'docker://debian:stable-slim', jobs);
    return { ours: stats(ours), docker, floor: await alone('host', 'host', 2 * jobs) };
  } finally {
    // The runner leaves it behind.
    spawnSync('docker', ['volume', 'rm', 'act-toolcache']);
  }
}

type Gitea = Awaited<ReturnType<typeof startGitea>>;

async function gapsOf(gitea: Gitea, from = 0): Promise<number[]> {
  const times: { readonly begin: number; readonly end: number }[] = [];
  for (const { id } of (await gitea.jobs()).slice(from)) {
    const log = await gitea.log('acme/demo', id);
    const at = (what: string) => Number(new RegExp(`${what} (\\d+\\.\\d+)\\s*$`, 'm').exec(log)?.[1] ?? Number.NaN) * 1000;
    times.push({ begin: at('BEGIN'), end: at('END') });
  }
  times.sort((a, b) => a.begin - b.begin);
  return times.slice(1).map(({ begin }, at) => begin - (times[at]?.end ?? Number.NaN));
}

/** One job by the runner alone. `label`: with where it runs. */
async function byItself(gitea: Gitea, label: string, dir: string): Promise<void> {
  mkdirSync(dir);
  const { body } = await gitea.api<{ token: string }>('POST', '/orgs/acme/actions/runners/registration-token');
  const register = { name: 'alone', token: body.token, labels: [label.split(':')[0]], version: runnerVersion, ephemeral: true };
  const answer = await fetch(`${gitea.url}/api/actions/runner.v1.RunnerService/Register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(register),
  });
  const { runner } = (await answer.json()) as { runner: { id: string; uuid: string; token: string } };
  const { id, ...key } = runner;
  writeFileSync(
    join(dir, '.runner'),
    JSON.stringify({ id: Number(id), ...key, name: 'alone', address: gitea.url, labels: [label], ephemeral: true }),
  );
  const config = {
    runner: { capacity: 1, labels: [], fetch_interval: '1s', fetch_interval_max: '1s' },
    cache: { enabled: false },
    container: { docker_host: '-', force_pull: false, network: 'bridge' },
    host: { workdir_parent: join(dir, 'work') },
  };
  writeFileSync(join(dir, 'config.yaml'), JSON.stringify(config));
  const child = spawn(giteaPrograms.runner, ['-c', 'config.yaml', 'daemon'], { cwd: dir, stdio: 'ignore' });
  await once(child, 'exit');
}
