/** Caches of services that outlive their single-use agents, with the real runners: who reads them, and who never writes them. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type JobRow, type JobSpec, type MemoryGitlab, memoryGitlab, runnerToken } from '../kit/gitlab.ts';
import { bridgeAddress } from '../support/buildkite-host.ts';
import { gitlabRunner } from '../support/gitlab-programs.ts';
import { type Home, onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';

describe.skipIf(lacks('docker', 'image', 'gitlabRunner'))('cache: of GitLab', () => {
  let gitlab: MemoryGitlab;
  let server: AsyncDisposable;
  beforeEach(async () => {
    gitlab = memoryGitlab();
    server = await gitlab.serve(bridgeAddress());
  });
  afterEach(() => server[Symbol.asyncDispose]());

  const bench = (more = ''): Promise<Home> =>
    onejob({
      config: `services:
  lab: { type: gitlab, url: "${gitlab.url}", token: { env: GITLAB_TOKEN }, poll: 1s, agent: { from: ${gitlabRunner} } }
pools:
  ci: { service: lab, agents: 1, image: "debian:stable-slim", network: default${more} }
`,
      env: { GITLAB_TOKEN: runnerToken },
    });
  const cache = (key: string, more = {}) => [
    { key, paths: ['kept'], policy: 'pull-push', when: 'on_success', untracked: false, ...more },
  ];
  const log = ({ trace }: JobRow) => trace.toString();
  async function run(spec: JobSpec): Promise<string> {
    const job = gitlab.queue(spec);
    await gitlab.until(() => ['success', 'failed'].includes(job.state));
    expect(job.state, log(job)).toBe('success');
    expect(log(job)).not.toContain('ojf_');
    return log(job);
  }
  const look = 'echo "has: $(cat kept/* 2>/dev/null | tr "\\n" " ")"';
  const has = (text: string): string => / has: (.*)$/m.exec(text)?.[1]?.trim() ?? 'no such line';
  const write = (what: string) => [look, `mkdir -p kept; echo ${what} >kept/${what}`];

  test('reaches the next job of its project, by key, fallback and policy', async () => {
    await using home = await bench();
    const daemon = await home.up();
    expect(has(await run({ script: write('one'), cache: cache('npm-non_protected') }))).toBe('');
    expect(has(await run({ script: write('two'), cache: cache('npm-non_protected') }))).toBe('one');
    expect(has(await run({ script: [look], cache: cache('npm-non_protected', { policy: 'pull' }) }))).toBe('one two');
    expect(has(await run({ script: write('lost'), cache: cache('npm-non_protected', { policy: 'push' }) }))).toBe('');
    expect(has(await run({ script: [look], cache: cache('npm-non_protected') }))).toBe('lost');
    const other = cache('pip-non_protected', { fallback_keys: ['cargo-non_protected', 'npm-non_protected'] });
    expect(has(await run({ script: [look], cache: other }))).toBe('lost');
    expect(has(await run({ script: [look], cache: cache('npm-non_protected'), project: 'acme/other' }))).toBe('');
    await daemon.stop();
    await home.up();
    expect(has(await run({ script: [look], cache: cache('npm-non_protected') }))).toBe('lost');
  });

  test('a job of a ref that is not protected cannot write what protected ones read, even under their key', async () => {
    await using home = await bench();
    await home.up();
    await run({ script: write('good'), cache: cache('npm-protected'), isProtected: true });
    expect(has(await run({ script: write('poison'), cache: cache('npm-protected'), isProtected: false }))).toBe('');
    expect(has(await run({ script: [look], cache: cache('npm-protected'), isProtected: true }))).toBe('good');
  });

  test('a named cache for each project is warm for the next job of its project only, and read-only for untrusted ones', async () => {
    const rules = 'pipelines: ["acme/*"], branches: [main], caches: read';
    await using home = await bench(`, standby: false, caches: ["depot:/depot"], cache_for: project, trust: { ${rules} }`);
    await home.up();
    const list = 'echo "has: $(ls /depot | tr "\\n" " ")"';
    await run({ script: ['touch /depot/one'] });
    expect(has(await run({ script: [list], project: 'acme/other' }))).toBe('');
    expect(has(await run({ script: [list, 'if touch /depot/poison; then exit 1; fi'], ref: 'other' }))).toBe('one');
    expect(has(await run({ script: [list] }))).toBe('one');
    const projects = (await home.cli(['caches', '--json']).ended).stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line).project);
    expect(projects.sort()).toEqual(['acme/demo', 'acme/other']);
  });

  test('an untrusted job reads what trusted ones wrote if the config says so, and writes nothing', async () => {
    await using home = await bench(', trust: { pipelines: [acme/demo], branches: [main], caches: read }');
    await home.up();
    await run({ script: write('good'), cache: cache('npm-protected'), isProtected: true });
    const other = { ref: 'other', isProtected: false };
    expect(has(await run({ ...other, script: write('poison'), cache: cache('npm-non_protected') }))).toBe('good');
    expect(has(await run({ script: [look], cache: cache('npm-protected'), isProtected: true }))).toBe('good');
    const [kept, ...more] = (await home.cli(['caches', '--json']).ended).stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect([kept.name, kept.project, kept.trusted, more]).toEqual(['npm-protected', 'acme/demo', true, []]);
    expect((await home.cli(['caches', 'clear', '--project', 'acme/demo']).ended).stdout).toMatch(/^Cleared 1 cache, /);
    expect((await home.cli(['caches']).ended).stdout).toBe('There are no caches.\n');
  });
});
