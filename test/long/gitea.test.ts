/** Gitea from end to end: the real server, the real runner in containers of the real Engine, and the daemon between. */
import { setTimeout as after } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { engineAt } from '../support/engine-http.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

type Gitea = Awaited<ReturnType<typeof startGitea>>;

const workflow = (label: string, run: string, on = 'workflow_dispatch') =>
  `on: ${on}\njobs:\n  j:\n    runs-on: ${label}\n    steps:\n      - run: |\n${run.replaceAll(/^/gm, '          ')}\n`;

const configOf = ({ url, token }: Gitea, pool = '', service = '') => `
services:
  forge: { type: gitea, url: "${url}", token: { env: GITEA_TOKEN }, poll: 1s, agent: { from: ${giteaPrograms.runner} }${service} }
pools:
  gpu: { service: forge, queue: acme, agents: 1, image: "debian:stable-slim", network: default${pool} }
# ${token.slice(0, 0)}`;

const homeOf = (gitea: Gitea, ...more: [pool?: string, service?: string]): Promise<Home> =>
  onejob({ config: configOf(gitea, ...more), env: { GITEA_TOKEN: gitea.token } });

const isOver = ({ status }: { readonly status: string }): boolean => status === 'completed';

describe.skipIf(lacks('docker', 'image', 'gitea'))('with the real Gitea', () => {
  test('jobs run one after the other, each with a runner of its own, and nothing is left', async () => {
    await using gitea = await startGitea();
    await gitea.repository('acme/demo', {
      '.gitea/workflows/two.yml': workflow('gpu', 'echo hello from $GITHUB_REPOSITORY; test ! -e /tmp/before; touch /tmp/before'),
      '.gitea/workflows/bad.yml': workflow('gpu', 'echo about to fail; exit 7'),
    });
    await using here = await homeOf(gitea);
    const daemon = await here.up();
    for (const file of ['two.yml', 'bad.yml', 'two.yml']) await gitea.dispatch('acme/demo', file);
    const jobs = await gitea.until((all) => all.length === 3 && all.every(isOver));
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['success', 'failure', 'success']);
    expect(new Set(jobs.map(({ runner_id: id }) => id)).size).toBe(3);
    expect(await gitea.log('acme/demo', jobs[0]?.id ?? 0)).toContain('hello from acme/demo');
    const listed = async () => JSON.parse((await here.cli(['jobs', '--all', '--json']).ended).stdout.split('\n')[0] ?? '[]');
    await expect.poll(listed).toBeDefined();
    const shown = (await here.cli(['jobs', '--all']).ended).stdout;
    expect(shown).toMatch(/two\.yml #\d+ j/);
    await daemon.stop();
    expect(await gitea.runners()).toEqual([]);
  });

  test('a job that is cancelled ends at once, with its sandbox', async () => {
    await using gitea = await startGitea();
    const waits = `on: workflow_dispatch\nconcurrency: { group: c, cancel-in-progress: true }\n${workflow('gpu', 'for i in $(seq 600); do echo tick $i; sleep 1; done').replace('on: workflow_dispatch\n', '')}`;
    await gitea.repository('acme/demo', { '.gitea/workflows/long.yml': waits });
    await using here = await homeOf(gitea);
    await here.up();
    await gitea.dispatch('acme/demo', 'long.yml');
    await gitea.until(([first]) => first?.status === 'in_progress');
    const [old] = await here.api.status().then(({ pools }) => pools[0]?.slots.map(({ agent }) => agent.agent) ?? []);
    await gitea.dispatch('acme/demo', 'long.yml');
    const [first] = await gitea.until(([one, two]) => one?.conclusion === 'cancelled' && two?.status === 'in_progress');
    expect(first?.conclusion).toBe('cancelled');
    using engine = engineAt();
    const containers = await engine.ok('GET', '/containers/json');
    expect(JSON.stringify(containers)).not.toContain(old);
  });

  test('a job whose sandbox is killed ends at once, with the reason in its log', async () => {
    await using gitea = await startGitea();
    await gitea.repository('acme/demo', {
      '.gitea/workflows/eat.yml': workflow('gpu', 'echo begin; head -c 4G /dev/zero | tail -c 4G | wc -c; sleep 600'),
    });
    await using here = await homeOf(gitea, ', memory: 128m');
    await here.up();
    await gitea.dispatch('acme/demo', 'eat.yml');
    const [job] = await gitea.until(([first]) => first !== undefined && isOver(first));
    expect(job?.conclusion).toBe('failure');
    await after(0);
    expect(await gitea.log('acme/demo', job?.id ?? 0)).toMatch(/onejob: the sandbox was killed: out of memory/);
  });
});
