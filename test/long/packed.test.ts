/** The package as it would be published, installed outside of any clone with production dependencies only. */
import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { dashboard, dashboardAt } from '../support/dashboard-files.ts';
import { onejob } from '../support/onejob.ts';
import { installedUnder } from '../support/packages.ts';

const root = join(import.meta.dirname, '..', '..');
const run = promisify(execFile);
// An installed onejob has no Node of its own: the host's has to be new enough.
const env = { ...process.env, PATH: [dirname(process.execPath), process.env.PATH].join(delimiter) };
/** Packages that onejob may bring along: each is code that somebody has to trust. Today there are 40. */
const mostPackages = 45;

let work: string;
let installed: string;
let packed: readonly string[];

beforeAll(async () => {
  work = mkdtempSync(join(tmpdir(), 'onejob-packed-'));
  // In a copy, because packing builds, and other tests run in the clone.
  const copy = join(work, 'copy');
  const { stdout: files } = await run('git', ['-C', root, 'ls-files', '-z', '--', ':!test', ':!bench'], { maxBuffer: 2 ** 24 });
  for (const file of files.split('\0').filter((name) => name !== '')) {
    mkdirSync(dirname(join(copy, file)), { recursive: true });
    cpSync(join(root, file), join(copy, file));
  }
  // The build leaves tests out, but what `src` has of them looks for the rest.
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));
  const { stdout } = await run('npm', ['pack', '--json', '--pack-destination', work], { cwd: copy, env, maxBuffer: 2 ** 24 });
  // Vite's messages stand before it, some of them in brackets.
  const [about] = z
    .array(z.object({ filename: z.string(), files: z.array(z.object({ path: z.string() })) }))
    .parse(JSON.parse(stdout.slice(stdout.search(/^\[$/m))));
  if (about === undefined) throw new Error(`npm pack said: ${stdout}`);
  packed = about.files.map(({ path }) => path);
  const prefix = join(work, 'prefix');
  mkdirSync(prefix);
  const flags = ['--omit=dev', '--no-audit', '--no-fund', '--prefer-offline', '--prefix', prefix];
  await run('npm', ['install', ...flags, join(work, about.filename)], { cwd: prefix, env, maxBuffer: 2 ** 24 });
  installed = join(prefix, 'node_modules');
}, 300_000);

afterAll(() => rmSync(work, { recursive: true, force: true }));

describe('npm pack', () => {
  test('has the program and its docs, and no tests', () => {
    expect(packed).toEqual(expect.arrayContaining(['bin/onejob', 'dist/main.js', 'README.md', 'LICENSE', 'CHANGELOG.md']));
    const dockerfiles = readdirSync(join(root, 'src/images/dockerfiles'));
    expect(packed).toEqual(expect.arrayContaining(dockerfiles.map((name) => `dist/images/dockerfiles/${name}`)));
    // What docs tell people to take from there, and what a clone needs a build for.
    const others = [
      'deploy/grafana/onejob.json',
      'deploy/prometheus/rules.yml',
      'docs/openapi.json',
      'dist/share/man/man1/onejob.1',
    ];
    expect(packed).toEqual(
      expect.arrayContaining([
        ...others,
        ...['web', 'docs'].flatMap((site) => [`dist/${site}/index.html`, `dist/${site}/bundled.json`]),
      ]),
    );
    expect(
      packed.filter((path) =>
        /\.test\.[jt]sx?$|^dist\/(?!docs\/).*(testing|\.contract\.|fake-engine)|^(test|tools|bench|src)\//.test(path),
      ),
    ).toEqual([]);
  });

  test('brings few packages, and none of them runs a script when it is installed', () => {
    const all = installedUnder(installed).filter(({ name }) => name !== 'onejob');
    expect(all.length).toBeGreaterThan(5);
    expect(all.length).toBeLessThanOrEqual(mostPackages);
    // The dashboard is built: what it was made with is not needed any more.
    expect(all.map(({ name }) => name).filter((name) => /^(react|vite|uplot|playwright|marked|minisearch)/.test(name))).toEqual([]);
    expect(all.filter(({ installScripts }) => installScripts.length > 0)).toEqual([]);
  });

  test('runs: a job, the daemon, and what it reads from its own folder', async () => {
    const program = join(installed, '.bin', 'onejob');
    await using home = await onejob({
      program,
      config: 'pools: { build: { agents: 1, runtime: process } }',
      env: { PATH: env.PATH },
    });
    const { version } = z.object({ version: z.string() }).parse(JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')));
    expect((await home.cli(['--version']).ended).stdout).toContain(version);
    const daemon = await home.up();
    const job = await home.run('--no-workspace', '--', 'sh', '-c', 'echo hello; exit 3').ended;
    expect(job).toMatchObject({ code: 3, stdout: 'hello\n' });
    expect(await home.cli(['status']).ended).toMatchObject({ code: 0, stdout: expect.stringContaining('build') });
    expect(await daemon.stop()).toMatchObject({ code: 0 });
  });

  test('serves the dashboard with all of its files, and the description of its API', async () => {
    const program = join(installed, '.bin', 'onejob');
    await using home = await onejob({
      program,
      config: 'pools: { build: { agents: 1, runtime: process } }',
      env: { PATH: env.PATH },
    });
    await home.up();
    const { stdout } = await home.cli(['dashboard', '--json']).ended;
    const { origin } = new URL(z.object({ url: z.string() }).parse(JSON.parse(stdout)).url);
    expect(await dashboardAt(origin)).toEqual(dashboard);
    const token = readFileSync(join(home.stateDir, 'api', 'read.token'), 'utf8').trim();
    const described = await fetch(`${origin}/v1/openapi.json`, { headers: { authorization: `Bearer ${token}` } });
    expect(await described.json()).toEqual(JSON.parse(readFileSync(join(root, 'docs/openapi.json'), 'utf8')));
  });
});
