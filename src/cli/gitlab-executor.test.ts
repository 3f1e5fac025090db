import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { scratch } from '../../test/support/scratch.ts';
import { driverConfig, gitlabJob, jobResponse } from './gitlab-executor.ts';

const called = {
  CUSTOM_ENV_CI_JOB_ID: '4711',
  CUSTOM_ENV_CI_JOB_NAME: 'train: [a100, 1/2]',
  CUSTOM_ENV_CI_PROJECT_PATH: 'lab/nets',
  CUSTOM_ENV_CI_SERVER_URL: 'https://gitlab.example',
  CUSTOM_ENV_CI_RUNNER_ID: '3',
  CUSTOM_ENV_CI_JOB_TIMEOUT: '3600',
  CUSTOM_ENV_CI_JOB_IMAGE: 'pytorch:2',
  CUSTOM_ENV_CI_JOB_SERVICES: '',
  CUSTOM_ENV_GITLAB_USER_LOGIN: 'ada',
  CUSTOM_ENV_SECRET: 'hunter2',
  JOB_RESPONSE_FILE: '/tmp/custom-executor1/response.json',
  BUILD_FAILURE_EXIT_CODE: '11',
  SYSTEM_FAILURE_EXIT_CODE: '12',
  BUILD_EXIT_CODE_FILE: '/tmp/custom-executor1/build_exit_code',
};

const answer = {
  job_info: { name: 'train: [a100, 1/2]', project_full_path: 'lab/nets' },
  runner_info: { timeout: 3600 },
  variables: [{ key: 'GITLAB_USER_LOGIN', value: 'ada' }],
};

describe('what gitlab-runner says of a job', () => {
  test('is read from its environment, without anything secret', () => {
    const job = gitlabJob(called, answer);
    expect(job).toEqual({
      id: expect.stringMatching(/^[0-9a-f]{12}$/),
      name: 'GitLab job 4711 train: [a100, 1/2] (lab/nets)',
      user: 'ada',
      image: 'pytorch:2',
      services: [],
      timeout: 3_600_000,
      codes: { build: 11, system: 12 },
      codeFile: '/tmp/custom-executor1/build_exit_code',
    });
  });

  test('gives the same id in each of its calls, and another one for another attempt, job, runner or GitLab', () => {
    const { id } = gitlabJob(called);
    expect(gitlabJob({ ...called, CUSTOM_ENV_CI_JOB_STATUS: 'success' }).id).toBe(id);
    const others = [
      { JOB_RESPONSE_FILE: '/tmp/custom-executor2/response.json' },
      { CUSTOM_ENV_CI_JOB_ID: '4712' },
      { CUSTOM_ENV_CI_RUNNER_ID: '4' },
      { CUSTOM_ENV_CI_SERVER_URL: 'https://other.example' },
    ].map((more) => gitlabJob({ ...called, ...more }).id);
    expect(new Set([id, ...others]).size).toBe(5);
  });

  test('may be odd: names are made fit for lists', () => {
    const odd = gitlabJob({ CUSTOM_ENV_CI_JOB_ID: '1', CUSTOM_ENV_CI_JOB_NAME: `a\u001b[31m\n${'x'.repeat(200)}` });
    expect(odd.name).toMatch(/^\P{Cc}{1,100}$/u);
    expect(odd).toMatchObject({ user: null, image: null, timeout: 86_400_000, codes: { build: 1, system: 2 }, codeFile: null });
  });

  test('names its services', () => {
    const CUSTOM_ENV_CI_JOB_SERVICES = '[{"name":"redis:7","alias":"","entrypoint":null,"command":null},{"name":"postgres:17"}]';
    expect(gitlabJob({ ...called, CUSTOM_ENV_CI_JOB_SERVICES }).services).toEqual(['redis:7', 'postgres:17']);
  });

  test('must be there', () => {
    expect(() => gitlabJob({})).toThrow(/CUSTOM_ENV_CI_JOB_ID is not set/);
  });
});

describe('a pipeline that sets variables of GitLab', () => {
  const forged = {
    ...called,
    CUSTOM_ENV_CI_PROJECT_PATH: 'acme/prod',
    CUSTOM_ENV_CI_JOB_NAME: 'deploy',
    CUSTOM_ENV_GITLAB_USER_LOGIN: 'root',
    CUSTOM_ENV_CI_JOB_TIMEOUT: '',
  };

  test('forges neither project, name and user, nor leaves the limit out', () => {
    const { name, user, timeout } = gitlabJob(forged, answer);
    expect([name, user, timeout]).toEqual(['GitLab job 4711 train: [a100, 1/2] (lab/nets)', 'ada', 3_600_000]);
    const doubled = { ...answer, variables: [...answer.variables, { key: 'GITLAB_USER_LOGIN', value: 'root' }] };
    expect(gitlabJob(forged, doubled).user).toBe(null);
  });

  test('is not believed without the answer of the server', () => {
    const { name, user, timeout } = gitlabJob(forged);
    expect([name, user, timeout]).toEqual(['GitLab job 4711 deploy (acme/prod, says the job)', null, 86_400_000]);
  });

  test.each(['', '0', '-1', 'NaN', '1e99', 'Infinity', '86401'])('has the safe limit for %j', (CUSTOM_ENV_CI_JOB_TIMEOUT) => {
    expect(gitlabJob({ ...called, CUSTOM_ENV_CI_JOB_TIMEOUT }).timeout).toBe(86_400_000);
    const odd = {
      ...answer,
      runner_info: { timeout: CUSTOM_ENV_CI_JOB_TIMEOUT === '86401' ? 1e9 : Number(CUSTOM_ENV_CI_JOB_TIMEOUT) },
    };
    expect(gitlabJob(called, odd).timeout).toBe(86_400_000);
  });
});

test('the answer of the server is read from the file of gitlab-runner', async () => {
  using dir = scratch();
  const path = join(dir.path, 'response.json');
  expect(await jobResponse({})).toBe(null);
  expect(await jobResponse({ JOB_RESPONSE_FILE: path })).toBe(null);
  writeFileSync(path, JSON.stringify({ id: 4711, token: 'glcbt-secret', ...answer }));
  expect(await jobResponse({ JOB_RESPONSE_FILE: path })).toEqual(answer);
});

test('gitlab-runner is told to use the workspace of the sandbox', () => {
  expect(driverConfig('1.2.3')).toEqual({
    driver: { name: 'onejob', version: '1.2.3' },
    builds_dir: '/workspace/builds',
    cache_dir: '/workspace/cache',
    builds_dir_is_shared: false,
    shell: 'bash',
  });
});
