/** The script in a real shell, with a runner that only shows what it was started with. */
import { spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { testPool } from '../../../test/kit/buildkite-manager.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { equippedForGitlab, type GitlabScript, gitlabScript } from './script.ts';

const url = 'http://172.18.0.1:7070/gitlab/ojf_sealed';

function run(
  env: Readonly<Record<string, string>> = {},
  notes: readonly string[] = [],
  container: GitlabScript['container'] = null,
  kept: GitlabScript['kept'] = null,
) {
  const dir = scratch();
  const bin = join(dir.path, 'bin');
  mkdirSync(bin);
  const fake = '#!/bin/sh\necho "ARGS $*"; env | grep -E "^(GO|CI_|RUNNER_|CONFIG)" | sort; echo DONE\n';
  writeFileSync(join(bin, 'gitlab-runner'), fake);
  chmodSync(join(bin, 'gitlab-runner'), 0o755);
  const text = gitlabScript({
    name: "box's-1",
    url,
    token: 'onejob001key',
    workspace: dir.path,
    ca: null,
    before: [],
    notes,
    container,
    kept,
  });
  const { status, stdout } = spawnSync('/bin/sh', ['-c', text], {
    env: { PATH: `${bin}:${process.env.PATH}`, ...env },
    encoding: 'utf8',
  });
  const path = join(dir.path, '.runner', 'config.toml');
  const found = { status, stdout, config: readFileSync(path, 'utf8'), mode: statSync(path).mode & 0o777, dir: dir.path };
  dir[Symbol.dispose]();
  return found;
}

it('writes the way to the filter into a file that only its user reads, and says it nowhere else', () => {
  const { status, stdout, config, mode, dir } = run();
  expect([status, mode]).toEqual([0, 0o600]);
  expect(stdout).toContain("ARGS --log-level warn run-single -c config.toml -r box's-1 --max-builds 1 --wait-timeout 20");
  expect(stdout).not.toMatch(/ojf_|onejob001/);
  expect(config.split('\n')).toEqual([
    ...['[[runners]]', `name = "box's-1"`, `url = "${url}"`, 'token = "onejob001key"', 'executor = "shell"'],
    ...[`builds_dir = "${dir}/builds"`, `cache_dir = "${dir}/cache"`, 'shell = "bash"'],
    ...['environment = ["GOGC=", "GOMEMLIMIT="]', ''],
  ]);
});

it('keeps caches at the filter, by an address that the runner signs itself and shows nowhere', () => {
  const { config, stdout } = run({}, [], null, {
    address: 'http://172.18.0.1:7070/onejob-cache/ojf_caches',
    secret: 'for this job',
  });
  const s3 =
    's3 = { ServerAddress = "172.18.0.1:7070", Insecure = true, AccessKey = "for this job", SecretKey = "for this job", BucketName = "onejob-cache", BucketLocation = "us-east-1", PathStyle = true }';
  expect(config).toContain(`\ncache = { Type = "s3v2", Path = "ojf_caches", Shared = true, RedactURL = true, ${s3} }\n`);
  expect(stdout).not.toContain('ojf_');
});

it('runs a job with an image in the engine of its sandbox, which may do anything there', () => {
  const { config } = run({}, [], { image: 'ci:3' });
  expect(config).toContain('executor = "docker"\n');
  expect(config).toMatch(/^docker = { image = "ci:3", privileged = true, .* }$/m);
  expect(config).not.toContain('builds_dir');
});

it('starts the runner faster, unless the pool has its own settings for Go', () => {
  expect(run().stdout).toContain('GOGC=off\nGOMEMLIMIT=128MiB');
  const own = run({ GOGC: '50' });
  expect(own.stdout).toContain('GOGC=50\nDONE');
  expect(own.config).not.toContain('GOGC');
});

it('ignores what an image has set for other runners', () => {
  expect(run({ CONFIG_FILE: '/etc/other.toml' }).stdout).not.toContain('CONFIG_FILE');
});

it('tells the notes in front of the job’s own commands, whatever is in them', () => {
  const notes = ['it\'s "quoted"', '$HOME `id` %s \\n'];
  const line = /^pre_build_script = (.*)$/m.exec(run({}, notes).config)?.[1] ?? '';
  expect(spawnSync('/bin/sh', ['-c', JSON.parse(line)], { encoding: 'utf8' }).stdout).toBe(`${notes.join('\n')}\n`);
});

it('mounts the program, and memory for its config', () => {
  const { mounts, tmpfs } = equippedForGitlab(testPool().recipe, '/state/tools/at-1');
  expect(mounts).toMatchObject([{ host: '/state/tools/at-1/gitlab-runner', container: '/onejob/gitlab-runner', readOnly: true }]);
  expect(tmpfs).toEqual({ '/onejob/run': expect.stringContaining('noexec') });
});
