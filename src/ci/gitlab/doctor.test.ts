import { expect, it } from 'vitest';
import { testPool } from '../../../test/kit/buildkite-manager.ts';
import { gitlabService, patient } from '../../../test/kit/gitlab-service.ts';

const look = async (one: ReturnType<typeof gitlabService>) =>
  (await one.service.check(patient, { like: () => null })).map(({ level, message, hint }) => `${level}: ${message} ${hint ?? ''}`);

it('says whose runner it is', async () => {
  await using one = gitlabService({ pool: { trust: { ...testPool().trust, pipelines: ['acme/demo'] } } });
  expect(await look(one)).toEqual([
    'warning: onejob is downloading and checking the runner. Try again in a moment.',
    'ok: http://lab accepts the token, which is that of runner #12. ',
  ]);
});

it('says that a pool without the name of a project trusts those of the whole instance, if its runner is one of that', async () => {
  await using one = gitlabService();
  expect((await look(one)).join()).toMatch(
    /warning: Pool ci trusts jobs of every project .*No job has come since onejob started.*instance_type.*pipelines: \[acme\/demo\]/,
  );
});

it.each([
  [
    '3',
    /warning: Pool ci trusts jobs of every project .*\. As its jobs say, .* of the whole instance \(instance_type\).*a fork that anybody makes.*pipelines: \[acme\/demo\]/,
  ],
  ['0', /of the whole instance/],
  [
    '+Inf',
    /warning: Pool ci trusts .*As its jobs say, it is a runner of a group or a project.*If its group has forks, name the projects.*Else there is nothing to do/,
  ],
  [undefined, /Its jobs do not say whose runner it is\. .*If it is one of the whole instance.*Else there is nothing to do/],
])('says whose runner it is once a job has told it (%s)', async (runningOnInstance, said) => {
  await using one = gitlabService();
  const job = one.gitlab.queue({ script: ['make'], ...(runningOnInstance !== undefined && { runningOnInstance }) });
  one.jobs.offer('ci/1', 'open');
  await one.watch();
  await one.pass(5_000);
  expect(job.given).toBe(1);
  expect((await look(one)).join()).toMatch(said);
});

it('says what to do about a token that the server refuses, and about a server that is away', async () => {
  await using one = gitlabService();
  one.gitlab.renewToken();
  expect((await look(one)).join()).toMatch(
    /error: Cannot verify the token .* refuses the token of the runner .*Check that the runner still exists/,
  );
  one.gitlab.fail('away');
  expect((await look(one)).join()).toMatch(/error: The service cannot be reached at http:\/\/lab/);
});

it('says why there are no jobs now', async () => {
  await using one = gitlabService();
  one.jobs.offer('ci/1', 'open');
  const back = one.gitlab.fail('busy');
  await one.watch();
  await one.pass(5_000);
  back();
  expect((await look(one)).join()).toMatch(/error: Cannot ask for a job: http:\/\/lab\/ answered 503: busy/);
});
