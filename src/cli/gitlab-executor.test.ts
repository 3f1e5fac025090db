import { describe, expect, test } from 'vitest';
import { driverConfig, gitlabJob } from './gitlab-executor.ts';

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

describe('what gitlab-runner says of a job', () => {
  test('is read from its environment, without anything secret', () => {
    const job = gitlabJob(called);
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
    expect(odd).toMatchObject({ user: null, image: null, timeout: null, codes: { build: 1, system: 2 }, codeFile: null });
  });

  test('names its services', () => {
    const CUSTOM_ENV_CI_JOB_SERVICES = '[{"name":"redis:7","alias":"","entrypoint":null,"command":null},{"name":"postgres:17"}]';
    expect(gitlabJob({ ...called, CUSTOM_ENV_CI_JOB_SERVICES }).services).toEqual(['redis:7', 'postgres:17']);
  });

  test('must be there', () => {
    expect(() => gitlabJob({})).toThrow(/CUSTOM_ENV_CI_JOB_ID is not set/);
  });
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
