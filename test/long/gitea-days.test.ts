/** Bad days with the real Gitea: jobs through kills of everything, and what only real time shows. */
import { chmodSync, mkdirSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as after } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { GiteaClient } from '../../src/ci/gitea/client.ts';
import { systemClock } from '../../src/system/system-clock.ts';
import { dice } from '../support/dice.ts';
import { engineAt } from '../support/engine-http.ts';
import { startGitea } from '../support/gitea.ts';
import { giteaPrograms } from '../support/gitea-programs.ts';
import { type Daemon, type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

type Gitea = Awaited<ReturnType<typeof startGitea>>;

/** The server gives up a job that nobody reports on after 20 s instead of ten minutes. */
const soon = 'ZOMBIE_TASK_TIMEOUT = 20s\n[cron.stop_zombie_tasks]\nENABLED = true\nSCHEDULE = @every 5s';
const never = new AbortController().signal;

const serviceOf = ({ url }: Gitea) =>
  `forge: { type: gitea, url: "${url}", token: { env: GITEA_TOKEN }, poll: 1s, boot_timeout: 30s, agent: { from: ${giteaPrograms.runner} } }`;
const clientOf = ({ url, token }: Gitea) =>
  new GiteaClient({ url, token: async () => token, clock: systemClock, fetch, version: '0' });

/** Agents that the store still has at a service. */
async function registered(home: Home): Promise<string[]> {
  return (await home.census()).rows.flatMap(({ kind, id }) => (kind === 'registration' ? [id] : []));
}
/** The sweep tries again after five minutes at the latest. */
const swept = { timeout: 330_000, interval: 1_000 };

describe.skipIf(lacks('docker', 'image', 'gitea'))('bad days with the real Gitea', () => {
  test('two hundred jobs through kills of daemon, sandboxes and server: none lost, doubled or left', {
    timeout: 900_000,
  }, async () => {
    await using gitea = await startGitea({ more: soon });
    using shared = scratch();
    const marks = join(shared.path, 'marks');
    mkdirSync(marks);
    chmodSync(marks, 0o777);
    await gitea.repository('acme/demo', {
      '.gitea/workflows/a.yml': `on: workflow_dispatch
jobs:
  j:
    runs-on: gpu
    steps:
      - run: |
          echo begun >>${marks}/$GITHUB_RUN_ID
          sleep 0.$((RANDOM % 10))
          echo over >>${marks}/$GITHUB_RUN_ID
`,
    });
    await using home = await onejob({
      config: `services:\n  ${serviceOf(gitea)}\npools:\n  gpu: { service: forge, queue: acme, agents: 3, image: "debian:stable-slim", network: default, volumes: ["${marks}:${marks}:rw"] }\n`,
      env: { GITEA_TOKEN: gitea.token },
    });
    let daemon: Daemon = await home.up();
    const all = 200;
    const filling = (async () => {
      for (let n = 0; n < all; n++) {
        for (;;) {
          try {
            await gitea.dispatch('acme/demo', 'a.yml');
            break;
          } catch {
            // The server is being killed.
            await after(200);
          }
        }
      }
    })();
    const roll = dice();
    using engine = engineAt();
    const faults: Readonly<Record<string, () => Promise<void>>> = {
      daemon: async () => {
        await daemon.kill();
        await after(roll() * 2_000);
        daemon = await home.up();
      },
      sandbox: async () => {
        const list = (await engine.ok('GET', '/containers/json')) as { readonly Id: string; readonly Labels: object }[];
        const ours = list.filter(({ Labels: labels }) => JSON.stringify(labels).includes('"onejob.pool":"gpu"'));
        const one = ours[Math.floor(roll() * ours.length)];
        if (one !== undefined) await engine.call('POST', `/containers/${one.Id}/kill`);
      },
      server: () => gitea.restart(),
      freeze: async () => {
        daemon.freeze();
        await after(roll() * 3_000);
        daemon.thaw();
      },
    };
    const names = ['daemon', 'sandbox', 'sandbox', 'server', 'freeze'];
    const isOver = async (): Promise<boolean> => {
      const jobs = await gitea.jobs().catch(() => []);
      return jobs.length >= all && jobs.every(({ status }) => status === 'completed');
    };
    for (let round = 0; round < 25; round++) {
      await after(1_000 + roll() * 3_000);
      await faults[names[Math.floor(roll() * names.length)] ?? '']?.();
    }
    await filling;
    await expect.poll(isOver, { timeout: 400_000, interval: 1_000 }).toBe(true);
    const jobs = await gitea.jobs();
    // A server that dies may have dispatched one and not said so, which is then dispatched again.
    expect(jobs.length).toBeGreaterThanOrEqual(all);
    const marked = new Map(
      readdirSync(marks).map((run) => [Number(run), readFileSync(join(marks, run), 'utf8').trim().split('\n')]),
    );
    for (const lines of marked.values()) expect(['begun', 'begun over']).toContain(lines.join(' '));
    const passed = jobs.filter(({ conclusion }) => conclusion === 'success');
    for (const { run_id: run } of passed) expect(marked.get(run)).toEqual(['begun', 'over']);
    expect(passed.length).toBeGreaterThan(all / 2);
    // What could not be removed while something was down is removed by the sweep, which waits up to five minutes.
    await expect.poll(async () => (await registered(home)).length, swept).toBeLessThanOrEqual(6);
    await daemon.stop();
    expect(await gitea.runners()).toEqual([]);
    expect(readdirSync(join(home.stateDir, 'runners-forge'))).toEqual([]);
  });

  test('a runner that is disabled gets no job, or its job is seen: a thousand tries', { timeout: 600_000 }, async () => {
    await using gitea = await startGitea();
    await gitea.repository('acme/demo', {
      '.gitea/workflows/a.yml': 'on: workflow_dispatch\njobs:\n  j:\n    runs-on: gpu\n    steps:\n      - run: echo a\n',
    });
    const client = clientOf(gitea);
    const token = await client.registrationToken('orgs/acme', never);
    const roll = dice();
    let given = 0;
    const tries = async (n: number) => {
      const runner = await client.register({ name: `r${n}`, token, labels: ['gpu'], version: '0' }, never);
      if (runner === null) throw new Error('not registered');
      const asks = (async () => {
        await after(roll() * 60);
        const answer = await fetch(`${gitea.url}/api/actions/runner.v1.RunnerService/FetchTask`, {
          method: 'POST',
          body: '{"tasksVersion":"0"}',
          headers: { 'content-type': 'application/json', 'x-runner-uuid': runner.uuid, 'x-runner-token': runner.token },
        });
        return ((await answer.json()) as { task?: { id: string } }).task ?? null;
      })();
      const [task] = await Promise.all([asks, client.setDisabled('orgs/acme', String(runner.id), true, never)]);
      return { runner, task };
    };
    for (let round = 0; round < 50; round++) {
      const queued = (await client.jobs('orgs/acme', 'queued', never)).length;
      for (let n = queued; n < 20; n++) await gitea.dispatch('acme/demo', 'a.yml');
      const done = await Promise.all(Array.from({ length: 20 }, (_, n) => tries(round * 20 + n)));
      // What onejob waits before it looks.
      await after(1_000);
      const seen = new Set((await client.jobs('orgs/acme', 'in_progress', never)).map(({ runner_id }) => runner_id));
      for (const { runner, task } of done) {
        expect(seen.has(runner.id)).toBe(task !== null);
        if (task !== null) given += 1;
        if (task === null) await client.deleteRunner('orgs/acme', String(runner.id), never);
        else await client.fail(runner, Number(task.id), Date.now(), never);
      }
    }
    expect(given).toBeGreaterThan(20);
    expect(given).toBeLessThan(980);
    expect(await gitea.runners('/orgs/acme')).toEqual([]);
  });

  test('sixty jobs wait, and two pools with one label share them', { timeout: 300_000 }, async () => {
    await using gitea = await startGitea();
    await gitea.repository('acme/demo', {
      '.gitea/workflows/a.yml': 'on: workflow_dispatch\njobs:\n  j:\n    runs-on: gpu\n    steps:\n      - run: echo a; sleep 1\n',
    });
    for (let n = 0; n < 60; n++) await gitea.dispatch('acme/demo', 'a.yml');
    const pool = (name: string) =>
      `  ${name}: { service: forge, queue: acme, tags: "gpu", agents: 1, image: "debian:stable-slim", network: default }`;
    await using home = await onejob({
      config: `services:\n  ${serviceOf(gitea)}\npools:\n${pool('a')}\n${pool('b')}\n`,
      env: { GITEA_TOKEN: gitea.token },
    });
    const daemon = await home.up();
    await expect.poll(async () => (await home.api.status()).pools[0]?.waiting, { timeout: 20_000 }).toBeGreaterThan(50);
    const jobs = await gitea.until((all) => all.every(({ status }) => status === 'completed'), 200_000);
    expect(jobs.every(({ conclusion }) => conclusion === 'success')).toBe(true);
    const by = Map.groupBy(
      (await home.api.jobs({ all: true, pool: null })).map(({ pool: name }) => name),
      (name) => name,
    );
    expect([...by.keys()].toSorted()).toEqual(['a', 'b']);
    for (const rows of by.values()) expect(rows.length).toBeGreaterThan(15);
    await daemon.stop();
    expect(await gitea.runners()).toEqual([]);
  });

  test("a fork's pull request gets no secrets", { timeout: 120_000 }, async () => {
    await using gitea = await startGitea();
    const steps = '    steps:\n      - run: echo "secret [$KEY]"\n        env: { KEY: "${{ secrets.KEY }}" }\n';
    await gitea.repository('acme/demo', {
      '.gitea/workflows/a.yml': `on: [push, pull_request]\njobs:\n  j:\n    runs-on: gpu\n${steps}`,
    });
    await gitea.api('PUT', '/repos/acme/demo/actions/secrets/KEY', { data: 'sesame' });
    const password = 'Passw0rd!y';
    const user = { username: 'stranger', email: 's@example.org', password, must_change_password: false };
    expect((await gitea.api('POST', '/admin/users', user)).status).toBe(201);
    // Otherwise somebody had to approve the run first.
    await gitea.api('PUT', '/repos/acme/demo/collaborators/stranger', { permission: 'write' });
    expect((await gitea.api('POST', '/repos/acme/demo/forks?sudo=stranger', {})).status).toBe(202);
    await gitea.push('stranger/demo', { 'file.txt': 'x' }, 'patch', `stranger:${encodeURIComponent(password)}`);
    await using home = await onejob({
      config: `services:\n  ${serviceOf(gitea)}\npools:\n  gpu: { service: forge, queue: acme/demo, agents: 1, image: "debian:stable-slim", network: default }\n`,
      env: { GITEA_TOKEN: gitea.token },
    });
    const daemon = await home.up();
    const pull = { title: 'p', head: 'stranger:patch', base: 'main' };
    expect((await gitea.api('POST', '/repos/acme/demo/pulls?sudo=stranger', pull)).status).toBe(201);
    await gitea.push('acme/demo', { 'other.txt': 'y' });
    const scope = '/repos/acme/demo';
    const jobs = await gitea.until((all) => all.length >= 3 && all.every(({ status }) => status === 'completed'), 90_000, scope);
    const logs = await Promise.all(jobs.map(async ({ id }) => /Z secret \[(.*)\]/.exec(await gitea.log('acme/demo', id))?.[1]));
    expect(logs.toSorted()).toEqual(['', '***', '***']);
    await daemon.stop();
  });

  test('the server gives up a job whose agent nobody can speak for, and its slot continues', { timeout: 500_000 }, async () => {
    await using gitea = await startGitea({ more: soon });
    await gitea.repository('acme/demo', {
      '.gitea/workflows/long.yml': 'on: workflow_dispatch\njobs:\n  j:\n    runs-on: gpu\n    steps:\n      - run: sleep 600\n',
      '.gitea/workflows/a.yml': 'on: workflow_dispatch\njobs:\n  j:\n    runs-on: gpu\n    steps:\n      - run: echo a\n',
    });
    await using home = await onejob({
      config: `services:\n  ${serviceOf(gitea)}\npools:\n  gpu: { service: forge, queue: acme, agents: 1, image: "debian:stable-slim", network: default }\n`,
      env: { GITEA_TOKEN: gitea.token },
    });
    const first = await home.up();
    await gitea.dispatch('acme/demo', 'long.yml');
    await gitea.until(([one]) => one?.status === 'in_progress');
    await expect.poll(async () => (await home.api.status()).pools[0]?.slots[0]?.agent.state).toBe('busy');
    const agent = (await home.api.status()).pools[0]?.slots[0]?.agent.agent ?? '';
    await first.kill();
    const { rmSync } = await import('node:fs');
    rmSync(join(home.stateDir, 'runners-forge', `${agent}.json`));
    using engine = engineAt();
    const list = (await engine.ok('GET', '/containers/json')) as { readonly Id: string; readonly Names: string[] }[];
    const sandbox = list.find(({ Names: names }) => names.some((name) => name.includes(agent)))?.Id ?? '';
    await engine.ok('POST', `/containers/${sandbox}/kill`);
    const daemon = await home.up();
    await gitea.dispatch('acme/demo', 'a.yml');
    const jobs = await gitea.until(([one, two]) => one?.status === 'completed' && two?.status === 'completed', 120_000);
    expect(jobs.map(({ conclusion }) => conclusion)).toEqual(['failure', 'success']);
    await expect.poll(() => registered(home), swept).not.toContain(agent);
    await daemon.stop();
    expect(await gitea.runners()).toEqual([]);
  });
});
