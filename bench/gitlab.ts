/**
 * GitLab, acted out, with the real gitlab-runner on the real Engine: from the end of one job to the first line of the next, on one slot
 * whose queue is never empty. Beside it, in the same minutes, what people run today: the docker executor of the same runner; and the
 * floor, its shell executor on the host. Jobs write down the time themselves.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type JobRow, type MemoryGitlab, memoryGitlab, runnerToken } from '../test/kit/gitlab.ts';
import { bridgeAddress } from '../test/support/buildkite-host.ts';
import { startChild } from '../test/support/child.ts';
import { gitlabRunner, lacksGitlabRunner } from '../test/support/gitlab-programs.ts';
import { onejob } from '../test/support/onejob.ts';
import { type Stats, stats } from './stats.ts';

/** In ms. */
export interface GitlabGaps {
  readonly ours: Stats;
  readonly docker: Stats;
  readonly floor: Stats;
}

const image = 'debian:stable-slim';
const helper = 'onejob-bench-gitlab-helper';
const job = { script: ['echo BEGIN $(date +%s.%N)', 'sleep 2', 'echo END $(date +%s.%N)'], image };

/** `rounds` gaps of each, all jobs queued before the first begins. */
export async function gitlabGaps(rounds: number, dir: string): Promise<GitlabGaps> {
  if (lacksGitlabRunner() !== null) throw new Error(`${lacksGitlabRunner()}`);
  const gitlab = memoryGitlab();
  await using _server = await gitlab.serve(bridgeAddress());
  const queue = () => Array.from({ length: rounds + 1 }, () => gitlab.queue(job));
  const ours = await byOnejob(gitlab, queue());
  makeHelper(join(dir, 'helper'));
  try {
    const images = ['--docker-image', image, '--docker-helper-image', helper, '--docker-pull-policy', 'never'];
    const docker = await byItself(gitlab, queue(), 'docker', images, join(dir, 'docker'));
    return { ours, docker, floor: await byItself(gitlab, queue(), 'shell', ['--shell', 'bash'], join(dir, 'shell')) };
  } finally {
    execFileSync('docker', ['rmi', '-f', helper], { stdio: 'ignore' });
  }
}

const isOver = ({ state }: JobRow): boolean => state === 'success' || state === 'failed';

async function ended(gitlab: MemoryGitlab, jobs: readonly JobRow[]): Promise<Stats> {
  await gitlab.until(() => jobs.every(isOver), 20_000 * jobs.length);
  const failed = jobs.find(({ state }) => state === 'failed');
  if (failed !== undefined) throw new Error(`A job failed: ${failed.trace}`);
  const times = jobs.map(({ trace }) => {
    const at = (what: string) => Number(new RegExp(`${what} (\\d+\\.\\d+)\\s*$`, 'm').exec(trace.toString())?.[1]) * 1000;
    return { begin: at('BEGIN'), end: at('END') };
  });
  times.sort((a, b) => a.begin - b.begin);
  return stats(times.slice(1).map(({ begin }, at) => begin - (times[at]?.end ?? Number.NaN)));
}

async function byOnejob(gitlab: MemoryGitlab, jobs: readonly JobRow[]): Promise<Stats> {
  await using home = await onejob({
    config: `services:
  lab: { type: gitlab, url: "${gitlab.url}", token: { env: GITLAB_TOKEN }, agent: { from: ${gitlabRunner} } }
pools:
  ci: { service: lab, agents: 1, image: "${image}", network: default }
`,
    env: { GITLAB_TOKEN: runnerToken },
  });
  const daemon = await home.up();
  const found = await ended(gitlab, jobs);
  await daemon.stop();
  return found;
}

/** The runner alone, which asks for the next job as soon as one has ended. */
async function byItself(
  gitlab: MemoryGitlab,
  jobs: readonly JobRow[],
  executor: string,
  more: readonly string[],
  dir: string,
): Promise<Stats> {
  mkdirSync(dir);
  const places = ['--builds-dir', executor === 'docker' ? '/builds' : join(dir, 'builds'), '--cache-dir', join(dir, 'cache')];
  const ends = ['--max-builds', String(jobs.length), '--wait-timeout', '60'];
  const runner = ['--url', gitlab.url, '--token', runnerToken, '--executor', executor, ...more, ...places, ...ends];
  const env = { PATH: process.env.PATH, HOME: dir };
  const child = startChild(gitlabRunner, ['run-single', ...runner], { cwd: dir, env });
  try {
    return await ended(gitlab, jobs);
  } finally {
    await child.kill();
  }
}

/** The image in which the docker executor runs what is not the job's own: the runner's program also has those commands. */
function makeHelper(dir: string): void {
  mkdirSync(dir);
  writeFileSync(join(dir, 'gitlab-runner-build'), '#!/bin/sh\nexec bash "$@"\n');
  chmodSync(join(dir, 'gitlab-runner-build'), 0o755);
  const docker = (...args: string[]): string => execFileSync('docker', args, { encoding: 'utf8' }).trim();
  const id = docker('create', image);
  docker('cp', gitlabRunner, `${id}:/usr/bin/gitlab-runner-helper`);
  docker('cp', join(dir, 'gitlab-runner-build'), `${id}:/usr/bin/gitlab-runner-build`);
  docker('commit', id, helper);
  docker('rm', id);
}
