/** What people are told of jobs, from what Azure DevOps says of them. */
import { expect, it } from 'vitest';
import { patient } from '../../../test/kit/azure.ts';
import { type World, worlds } from '../../../test/kit/azure-service.ts';
import type { Scope } from '../../../test/standins/azure-devops/standin.ts';
import { OnejobError } from '../../base/errors.ts';
import { JobEnds } from './job-end.ts';
import { Builds } from './registry.ts';
import { type Build, build, jobRequest, timeline } from './wire.ts';

const open = worlds();
const spec = { name: 'test', definition: 'app', repository: 'acme/app', branch: 'refs/heads/main', reason: 'individualCI' };

/** A manager with a token of these scopes whose agent has a job. */
async function busy(scopes: readonly Scope[], before?: (world: World) => void) {
  const { world, one, agent } = await open.online({ pat: { scopes } });
  before?.(world);
  const queued = world.azure.queue(world.pool, spec);
  const job = await agent.take();
  await one.watch();
  return { world, one, agent, job, id: `azure-${queued.requestId}` };
}

it('tells everything with the right to read builds, and asks once for each', async () => {
  const { world, one, id } = await busy(['agentpools_manage', 'build']);
  await world.pass(60_000);
  const link = expect.stringMatching(/_build\/results\?buildId=\d+$/);
  const facts = { definition: 'app', repository: 'acme/app', branch: 'main', reason: 'individualCI', link };
  expect(one.store.serviceJobs.get(id)).toMatchObject({ ...facts, state: 'running', pool: 'ci', agent: 'a1', service: 'azure' });
  expect(one.store.serviceJobs.get(id)?.title).toMatch(/^app #\d+\.1 test$/);
  expect(one.service.serviceJobs()).toHaveLength(1);
  expect(world.asked(0, 'builds/{buildId}')).toBe(1);
});

it('tells the rest without that right, asks no more than once, and doctor says it', async () => {
  const { world, one, id } = await busy(['agentpools_manage']);
  await world.pass(60_000);
  expect(one.store.serviceJobs.get(id)).toMatchObject({ definition: 'app', repository: null, branch: null, reason: null });
  expect(world.asked(0, 'builds/{buildId}')).toBe(1);
  const said = (await one.service.check(patient)).map(({ message }) => message).join('\n');
  expect(said).toContain('not allowed to read builds');
});

it('gives a build up that cannot be read after a few tries', async () => {
  const { world } = await busy(['agentpools_manage', 'build'], ({ azure }) => {
    azure.faults.add({ kind: 'broken' }, { route: 'builds/{buildId}' });
  });
  await world.pass(600_000);
  expect(world.asked(0, 'builds/{buildId}')).toBe(3);
});

it('writes down how a job ended whose agent went without a word, and does not go back behind it', async () => {
  const { one, agent, job, id } = await busy(['agentpools_manage', 'build']);
  await agent.complete(job, 'canceled');
  await one.end('a1');
  expect(one.store.serviceJobs.get(id)).toMatchObject({ state: 'done', result: 'canceled' });
  expect(one.service.serviceJobs()).toEqual([]);
});

it('keeps what one look has found of a build when another look at it fails later', async () => {
  const found = build.parse({ id: 3, repository: { id: 'r', name: 'acme/app' } });
  const late = Promise.withResolvers<Build | null>();
  const answers = [late.promise, Promise.resolve(found)];
  const builds = new Builds({ build: () => answers.shift() ?? Promise.resolve(null) });
  const request = jobRequest.parse({
    requestId: 7,
    receiveTime: '2030-01-01T00:00:00Z',
    scopeId: 'p',
    owner: { id: 3, name: '1' },
  });
  const first = builds.of(request, patient);
  expect(await builds.of(request, patient)).toBe(found);
  late.reject(new Error('cut off'));
  expect([await first, builds.known(request)]).toEqual([found, found]);
});

it('a project where the credential may read nothing hides no other one', async () => {
  const denied = new OnejobError('E_CI_DENIED', 'no right');
  const requestIn = (project: string, id: number) =>
    jobRequest.parse({
      requestId: id,
      jobId: `job-${id}`,
      scopeId: project,
      planType: 'Build',
      result: 'failed',
      owner: { id, name: 'app' },
    });
  const [closed, free] = [requestIn('closed', 1), requestIn('free', 2)];
  const refuse = (project: string) => {
    if (project === 'closed') throw denied;
  };
  const builds = new Builds({
    async build(project, id) {
      refuse(project);
      return build.parse({ buildNumber: String(id) });
    },
  });
  const record = { id: 'job-2', type: 'Job', state: 'completed' };
  const step = { id: 's', parentId: 'job-2', type: 'Task', name: 'make', result: 'failed', task: { id: 'x', name: 'Bash' } };
  const ends = new JobEnds(
    {
      async timeline(project) {
        refuse(project);
        return timeline.parse({ records: [record, step] });
      },
    },
    'azure',
  );
  for (const request of [closed, free]) {
    await builds.of(request, patient);
    await ends.ask(request, patient);
  }
  expect([builds.known(closed), builds.known(free)?.buildNumber]).toEqual([null, '2']);
  expect(ends.of(closed)).toMatchObject({ failedIn: null, note: expect.stringContaining('Build (Read)') });
  expect(ends.of(free)).toEqual({ failedIn: 'script', note: null });
  expect([builds.isDenied, ends.isDenied], 'doctor says it').toEqual([true, true]);
});
