/**
 * Machines in a cloud, from a waiting job to nothing and a receipt: the real onejob on a stand-in of AWS, with a stand-in of GitHub that
 * has the queue. The machines are played here: they join, work and drain as a real one does (test/long/cloud-boot.test.ts).
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { awsStandin } from '../support/cloud-standins.ts';
import { freePort } from '../support/free-port.ts';
import { startGitHub } from '../support/github-server.ts';
import { onejob } from '../support/onejob.ts';
import { playMachines } from '../support/played-machines.ts';

test('a waiting job makes a machine, and afterwards two lists show nothing of it', { timeout: 120_000 }, async () => {
  await using github = await startGitHub();
  const { machines, played, broken } = playMachines();
  await using cloud = await awsStandin(machines);
  const { aws } = cloud;
  const port = await freePort();
  await using here = await onejob({ config: '', env: cloud.env });
  const [key, archive] = [join(here.dir, 'app.pem'), join(here.dir, 'onejob.tgz')];
  writeFileSync(key, github.app.pem, { mode: 0o600 });
  writeFileSync(archive, 'a package');
  here.configure(`
services:
  hub: { type: github, url: "${github.origin}", app: { id: ${github.app.id}, private_key: { file: "${key}" } }, poll: 5s }
clouds:
  aws: { ${cloud.keys} }
hosts:
  burst:
    cloud: aws
    types: [g6.xlarge, g5.xlarge]
    idle: 1m
    pools: { gpu: { service: hub, queue: acme/demo, agents: 1, devices: 1 } }
join: { listen: "127.0.0.1:${port}", url: "http://127.0.0.1:${port}", package: "${archive}" }
pools: { local: { agents: 1, runtime: process } }
`);
  await here.up();
  const host = async () => (await here.api.machines())[0];
  expect(await host()).toMatchObject({ host: 'burst', machines: [], waiting: 0 });
  expect(aws.calls.filter(({ action }) => action === 'RunInstances')).toEqual([]);

  const job = github.queue({ labels: ['gpu'] });
  await expect.poll(async () => (await host())?.machines[0]?.state, { timeout: 60_000 }).toBe('joined');
  expect(job).toBeDefined();
  expect(broken).toEqual([]);
  const [machine] = played;
  // The daemon knows before the machine has its answer.
  await expect.poll(() => machine?.stages).toEqual(['booted', 'joined']);
  // Its config has the pool and the credential of the service, as a file in memory.
  const config = parse(machine?.config ?? '');
  expect(config.services.hub.app.private_key).toEqual({ file: '/run/onejob-cloud/secrets/hub.app.private_key' });
  expect(config.pools.gpu).toMatchObject({ service: 'hub', queue: 'acme/demo', agents: 1 });
  expect(config.defaults.name).toMatch(/^burst-[0-9a-f]{6}-\{pool\}-\{n\}$/);

  // What stays of its agents when it dies, and what others have.
  const token = github.userToken();
  const register = async (name: string) => {
    const body = JSON.stringify({ name, runner_group_id: 1, labels: ['gpu'] });
    const address = `${github.api}/repos/acme/demo/actions/runners/generate-jitconfig`;
    const answer = await fetch(address, { method: 'POST', body, headers: { authorization: `Bearer ${token}` } });
    return ((await answer.json()) as { encoded_jit_config: string }).encoded_jit_config;
  };
  const prefix = config.defaults.name.slice(0, 'burst-123456'.length);
  const names = () => [...github.runners.values()].map(({ name }) => name);
  const strangers = ['burst-000000-by-hand', 'box-1-0123abcd-a1'];
  for (const name of [`${prefix}-gpu-1-0123abcd-a1`, ...strangers]) await register(name);

  // Somebody needs it no more.
  const down = await here.cli(['cloud', 'down', 'burst']).ended;
  expect(down, down.stderr).toMatchObject({ code: 0 });
  expect(machine?.stages).toEqual(['booted', 'joined', 'drained']);
  expect((await host())?.machines).toEqual([]);
  await expect.poll(names, { timeout: 20_000 }).toEqual(strangers);
  const receipts = await here.cli(['cloud', 'receipts', '--json']).ended;
  expect(JSON.parse(receipts.stdout)).toMatchObject({
    run: machine?.run,
    host: 'burst',
    state: 'gone',
    absentAt: [expect.any(Number), expect.any(Number)],
    registrations: { removed: [`${prefix}-gpu-1-0123abcd-a1`], left: [], unknown: [], clearedAt: expect.any(Number) },
  });
  expect(cloud.left()).toEqual([]);
  // What no ledger knows is found by its names.
  await register('burst-000000-gpu-1-4567abcd-b1');
  const swept = await here.cli(['cloud', 'sweep', '--json']).ended;
  expect(swept, swept.stderr).toMatchObject({ code: 0 });
  const lines = swept.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  expect(lines.at(-1)).toEqual({ service: 'hub', removed: ['burst-000000-gpu-1-4567abcd-b1'], left: [], unknown: [] });
  expect(names()).toEqual(strangers);
});
