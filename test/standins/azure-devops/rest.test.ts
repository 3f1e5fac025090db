import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { scratch } from '../../support/scratch.ts';
import { asking, basic } from './asking.ts';
import { registerByHand } from './hand-agent.ts';
import { type AzureDevOps, startAzureDevOps } from './standin.ts';

const PACKAGES = '_apis/distributedtask/packages';
let azure: AzureDevOps;
beforeEach(async () => {
  azure = await startAzureDevOps();
});
afterEach(() => azure[Symbol.asyncDispose]());

test('packages come newest first, with their checksum, and are downloaded without a credential', async () => {
  using folder = scratch();
  for (const version of ['5.9.0', '5.10.0']) {
    const file = join(folder.path, `${version}.tar.gz`);
    writeFileSync(file, `agent ${version}`);
    await azure.addPackage({ version, file });
  }
  const ask = asking(azure);
  const [first, second] = (await ask('GET', `${PACKAGES}/agent?platform=linux-x64`)).list;
  expect([first?.version, second?.version]).toEqual([
    { major: 5, minor: 10, patch: 0 },
    { major: 5, minor: 9, patch: 0 },
  ]);
  expect((await ask('GET', `${PACKAGES}/agent/linux-x64?$top=1`)).json?.count).toBe(1);
  expect(first?.downloadUrl).toBe(`${new URL(azure.url).origin}/agent/5.10.0/vsts-agent-linux-x64-5.10.0.tar.gz`);
  const bytes = await (await fetch(String(first?.downloadUrl))).text();
  expect(bytes).toBe('agent 5.10.0');
  expect(first?.hashValue).toBe(createHash('sha256').update(bytes).digest('hex'));
  expect(azure.log.at(-1)).toMatchObject({ route: 'download', identity: 'none', status: 200 });
});

test('a version that is only listed cannot be had', async () => {
  const { json } = await asking(azure)('GET', `${PACKAGES}/agent/linux-arm64/5.278.0`);
  expect((await fetch(String(json?.downloadUrl))).status).toBe(404);
});

test('feature flags are absent, telemetry is swallowed', async () => {
  expect(await asking(azure, null)('GET', '_apis/FeatureFlags/DistributedTask.Agent.X?checkFeatureExists=false')).toMatchObject({
    status: 404,
  });
  expect((await asking(azure)('POST', '_apis/customerintelligence/Events', [])).status).toBe(204);
});

test('a build says where a job comes from, and cancelling it needs the right to run builds', async () => {
  const pool = azure.addPool('gpu');
  await registerByHand(azure, pool, 'placeholder');
  const job = azure.queue(pool, { fork: true, definition: 'nightly', repository: 'acme/models' });
  const path = `demo/_apis/build/builds/${job.view().buildId}`;
  expect((await asking(azure)('GET', path)).json).toMatchObject({
    status: 'notStarted',
    reason: 'pullRequest',
    triggerInfo: { 'pr.isFork': 'True' },
  });
  expect((await asking(azure)('PATCH', path, { status: 'cancelling' })).status).toBe(403);
  const allowed = asking(azure, basic(azure.addPat({ scopes: ['build_execute'] })));
  expect((await allowed('PATCH', path, { status: 'cancelling' })).json).toMatchObject({ status: 'completed', result: 'canceled' });
  await expect(job.finished).resolves.toMatchObject({ result: 'canceled' });
});
