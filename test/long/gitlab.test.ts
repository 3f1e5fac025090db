/** GitLab from end to end: the real runner in containers of the real Engine, the daemon, and a GitLab that is acted out. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type JobRow, type MemoryGitlab, memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { bridgeAddress } from '../support/gitea.ts';
import { gitlabRunner } from '../support/gitlab-programs.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

describe.skipIf(lacks('docker', 'image', 'gitlabRunner'))('with the real gitlab-runner', () => {
  let gitlab: MemoryGitlab;
  let server: AsyncDisposable;
  beforeEach(async () => {
    gitlab = memoryGitlab();
    server = await gitlab.serve(bridgeAddress());
  });
  afterEach(() => server[Symbol.asyncDispose]());

  const bench = (more = ''): Promise<Home> =>
    onejob({
      config: `services:
  lab: { type: gitlab, url: "${gitlab.url}", token: { env: GITLAB_TOKEN }, poll: 1s, agent: { from: ${gitlabRunner} } }
pools:
  ci: { service: lab, agents: 1, image: "debian:stable-slim", network: default${more} }
`,
      env: { GITLAB_TOKEN: runnerToken },
    });
  const isOver = ({ state }: JobRow) => ['success', 'failed', 'canceled'].includes(state);
  const log = ({ trace }: JobRow) => trace.toString();

  test('jobs run one after the other, each in a sandbox of its own', async () => {
    await using home = await bench();
    const again = ['echo hello from $CI_PROJECT_PATH; test ! -e /tmp/before; touch /tmp/before'];
    const jobs = [{ script: again }, { script: ['echo about to fail', 'exit 7'] }, { script: again }].map(gitlab.queue);
    const daemon = await home.up();
    await gitlab.until(() => jobs.every(isOver));
    expect(jobs.map(({ state }) => state)).toEqual(['success', 'failed', 'success']);
    expect(jobs.map(({ reason, exitCode }) => [reason, exitCode])[1]).toEqual(['script_failure', 7]);
    expect(log(jobs[0] as JobRow)).toContain('hello from acme/demo');
    await daemon.stop();
  });
});
