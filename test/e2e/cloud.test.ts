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
    pools: { gpu: { service: hub, queue: acme/demo, agents: 1, devices: 1, tags: gpu } }
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
  expect(machine?.stages).toEqual(['booted', 'joined']);
  // Its config has the pool and the credential of the service, as a file in memory.
  const config = parse(machine?.config ?? '');
  expect(config.services.hub.app.private_key).toEqual({ file: '/run/onejob-cloud/secrets/hub.app.private_key' });
  expect(config.pools.gpu).toMatchObject({ service: 'hub', queue: 'acme/demo', agents: 1 });
  expect(config.defaults.name).toMatch(/^burst-[0-9a-f]{6}-\{pool\}-\{n\}$/);

  // Somebody needs it no more.
  const down = await here.cli(['cloud', 'down', 'burst']).ended;
  expect(down, down.stderr).toMatchObject({ code: 0 });
  expect(machine?.stages).toEqual(['booted', 'joined', 'drained']);
  expect((await host())?.machines).toEqual([]);
  const receipts = await here.cli(['cloud', 'receipts', '--json']).ended;
  expect(JSON.parse(receipts.stdout)).toMatchObject({
    run: machine?.run,
    host: 'burst',
    state: 'gone',
    absentAt: [expect.any(Number), expect.any(Number)],
  });
  expect(cloud.left()).toEqual([]);
});
