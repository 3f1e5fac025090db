/** The other ways in which an agent becomes known, and the other places where the service can be. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { azureBench } from '../support/azure.ts';
import { azureImages } from '../support/azure-images.ts';
import { onejob } from '../support/onejob.ts';

const runs = async (bench: Awaited<ReturnType<typeof azureBench>>, config: string, script = 'echo hello') => {
  const { azure, pool } = bench;
  await using here = await onejob({ config });
  const daemon = await here.up();
  await azure.next('agentAdded', ({ name }) => name.startsWith('onejob-placeholder-'));
  const results = [];
  for (let n = 0; n < 2; n++) results.push(await azure.queue(pool, { script }).finished);
  const log = await here.cli(['logs', 'ci/1', '--previous']).ended;
  await daemon.stop();
  return { results, left: azure.agents(pool).map(({ name }) => name), log };
};
const onlyPlaceholder = [expect.stringMatching(/^onejob-placeholder-/)];

test('in-agent: config.sh makes it known, and the token is gone before the job', async () => {
  await using bench = await azureBench();
  const { pat } = bench.azure;
  const basic = Buffer.from(`:${pat}`).toString('base64');
  // The job's own script holds them too: it is told apart by being cut in two.
  const [half, rest] = [pat.slice(0, 40), pat.slice(40)];
  const look = `grep -rlF -e '${half}''${rest}' -e "${basic.slice(0, 60)}""${basic.slice(60)}" /proc/[0-9]*/environ /proc/[0-9]*/cmdline /opt /tmp /workspace /home /etc /go </dev/null 2>/dev/null; echo looked`;
  const { results, left } = await runs(bench, bench.config({ service: 'registration: in-agent' }), look);
  for (const { result, log } of results) {
    expect(result).toBe('succeeded');
    expect(log).toMatch(/Z looked$/m);
    expect(log).not.toMatch(/Z \//);
  }
  expect(left).toEqual(onlyPlaceholder);
});

test('an agent in the image is used, though the image has a start script as well', async () => {
  await using bench = await azureBench();
  const { results, left } = await runs(bench, bench.config({ image: azureImages.seed }), 'id -u; printenv AZP_TOKEN; true');
  expect(results.map(({ result }) => result)).toEqual(['succeeded', 'succeeded']);
  expect(results[0]?.log).not.toContain(bench.azure.pat);
  expect(left).toEqual(onlyPlaceholder);
});

test('image: a start script that downloads its agent is run as it expects', async () => {
  await using bench = await azureBench();
  const { packAgent } = await import('../standins/azure-devops/agent/pack.ts');
  await bench.azure.addPackage(await packAgent('5.300.0'));
  const { results, left } = await runs(bench, bench.config({ service: 'registration: image', image: azureImages.startOnly }));
  expect(results.map(({ result }) => result)).toEqual(['succeeded', 'succeeded']);
  expect(left).toEqual(onlyPlaceholder);
});

test('a Server, below a path of its own', async () => {
  await using bench = await azureBench({ collectionPath: 'tfs/Default Collection' });
  const { results, left } = await runs(bench, bench.config());
  expect(results.map(({ result }) => result)).toEqual(['succeeded', 'succeeded']);
  expect(left).toEqual(onlyPlaceholder);
});

test('a service principal instead of a token', async () => {
  await using bench = await azureBench();
  const { tenant, client, secret, authority } = bench.azure.principal;
  const file = join(bench.tokenFile, '..', 'secret');
  writeFileSync(file, secret, { mode: 0o600 });
  const principal = `principal: { tenant: ${tenant}, client: ${client}, authority: ${authority}, secret: { file: ${file} } }`;
  const { results } = await runs(bench, bench.config({ credential: principal }));
  expect(results.map(({ result }) => result)).toEqual(['succeeded', 'succeeded']);
  expect(bench.azure.log.filter(({ identity }) => identity === 'pat')).toEqual([]);
});
