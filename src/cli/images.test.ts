/** `onejob image build` and its like: what a person reads, over a daemon's socket and without one. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { OnejobError } from '../base/errors.ts';
import { runCli } from '../cli.ts';
import type { ImageService } from '../contract/manager.ts';
import type { ImageOutcome, ImageView } from '../contract/schema.ts';
import { readVersion } from './session.ts';

const view: ImageView = {
  reference: 'onejob/azure-pipelines:0123456789ab',
  id: 'sha256:1',
  pools: ['ci', 'lab'],
  base: 'ubuntu:24.04',
  agent: '5.278.0',
  size: 3 * 2 ** 29,
  createdAt: Date.now() - 3 * 3_600_000,
  containers: 4,
};
const outcome = (more: Partial<ImageOutcome> = {}): ImageOutcome => ({
  pool: 'ci',
  image: view.reference,
  agent: '5.278.0',
  what: 'built',
  problem: null,
  ...more,
});
const failed = outcome({
  pool: 'lab',
  image: null,
  agent: null,
  what: 'failed',
  problem: { code: 'E_IMAGE_BUILD', message: 'It failed.\nIts last lines:\n  oh no', hint: 'Try again.', retry: false },
});

describe('through a daemon', () => {
  let dir: Scratch;
  let server: ApiServer;
  let desk: ImageService;
  let asked: unknown[];

  beforeEach(async () => {
    dir = scratch();
    asked = [];
    desk = {
      list: async () => [view, { ...view, reference: 'onejob/own-queue:ba', pools: [], agent: null, base: null, size: 2 ** 21 }],
      make: async (what, pools, progress) => {
        asked.push([what, pools]);
        for (const line of ['building the image', 'building the image', 'building the image: step 1/2 x']) progress('ci', line);
        return [outcome()];
      },
      prune: async () => [view.reference],
    };
    const images: ImageService = {
      list: (...given) => desk.list(...given),
      make: (...given) => desk.make(...given),
      prune: (...given) => desk.prune(...given),
    };
    const socket = { path: join(dir.path, 'onejob.sock'), access: 'owner' } as const;
    server = await startApi({ manager: createFakeManager(), images, socket, version: readVersion() });
  });
  afterEach(async () => {
    await server.close();
    dir[Symbol.dispose]();
  });

  async function image(...args: string[]) {
    const { context, stdout, stderr } = testContext(['image', ...args], dir.path);
    const code = await runCli(context);
    return { code, stdout: stdout(), stderr: stderr() };
  }

  test('build says each step once and what there is in the end', async () => {
    expect(await image('build', 'ci')).toEqual({
      code: 0,
      stdout: 'ci: onejob/azure-pipelines:0123456789ab (agent 5.278.0) was built\n',
      stderr: 'onejob: ci: building the image\nonejob: ci: building the image: step 1/2 x\n',
    });
    await image('refresh');
    expect(asked).toEqual([
      ['build', ['ci']],
      ['refresh', []],
    ]);
  });

  test('exits with 1 and the last lines of a failed pool, and reports the others', async () => {
    desk.make = async () => [outcome({ what: 'newer' }), failed];
    const said = await image('refresh');
    expect(said).toMatchObject({ code: 1, stdout: expect.stringContaining('is new: idle agents are replaced') });
    expect(said.stderr).toMatch(/pool lab: no image could be made\n.*It failed\.[\s\S]*oh no\n {2}Try again\.\n$/);
    expect(
      (await image('refresh', '--json')).stdout
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line)),
    ).toMatchObject([
      { pool: 'ci', what: 'newer' },
      { pool: 'lab', what: 'failed', problem: { code: 'E_IMAGE_BUILD' } },
    ]);
  });

  test('shows the daemon’s refusal with its hint', async () => {
    desk.make = () => Promise.reject(new OnejobError('E_POOL_UNKNOWN', 'There is no pool "x".', { hint: 'The pools are: ci.' }));
    expect(await image('build', 'x')).toEqual({
      code: 1,
      stdout: '',
      stderr: 'onejob: There is no pool "x".\n  The pools are: ci.\n',
    });
  });

  test('reports a daemon that ends meanwhile', async () => {
    desk.make = async (_what, _pools, progress, signal) => {
      progress('ci', 'building the image');
      // Not awaited: closing waits for this answer.
      void server.close();
      return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
    };
    const said = await image('build');
    expect([said.code, said.stderr]).toEqual([1, expect.stringContaining('The daemon ended before the images were built.')]);
  });

  test('list shows who uses what, for people and for programs', async () => {
    const { stdout } = await image('list');
    expect(
      stdout
        .trimEnd()
        .split('\n')
        .map((line) => line.split(/ {2,}/)),
    ).toEqual([
      ['IMAGE', 'AGENT', 'SIZE', 'AGE', 'CONTAINERS', 'POOLS', 'BUILT ON'],
      ['onejob/azure-pipelines:0123456789ab', '5.278.0', '1.5 GiB', '3 h', '4', 'ci,lab', 'ubuntu:24.04'],
      ['onejob/own-queue:ba', '-', '2 MiB', '3 h', '4', '-', 'a Dockerfile'],
    ]);
    expect(JSON.parse((await image('list', '--json')).stdout.split('\n')[0] ?? '')).toEqual(view);
    desk.list = async () => [];
    expect((await image('list')).stdout).toBe('The Engine has no image that onejob built.\n');
  });

  test('prune names what it removed', async () => {
    expect((await image('prune')).stdout).toBe(`removed ${view.reference}\n`);
    desk.prune = async () => [];
    expect((await image('prune')).stdout).toMatch(/^Nothing to remove/);
  });
});

describe('--print', () => {
  const config = `services:
  azure: { type: azure-pipelines, url: https://dev.azure.com/acme, token: { env: HOME }, agent: { version: "5.278.0" } }
defaults: { service: azure, runtime: docker }
pools:
  a: { agents: 1, image: { base: "ubuntu:24.04", packages: [jq, git] } }
  b: { agents: 1, image: { base: "ubuntu:24.04", packages: [git, jq] } }
  c: { agents: 1, service: own, image: "debian:12" }
`;

  async function print(...pools: string[]) {
    using dir = scratch();
    writeFileSync(join(dir.path, 'config.yml'), config);
    const { context, stdout, stderr } = testContext(['image', 'build', '--print', '--config', 'config.yml', ...pools], dir.path);
    const code = await runCli(context);
    return { code, stdout: stdout(), stderr: stderr() };
  }

  test('shows each image once, as Dockerfiles and how to build them, and asks nobody', async () => {
    const { code, stdout } = await print();
    expect(code).toBe(0);
    expect(stdout.match(/^# docker build .*$/gm)).toEqual([
      "# docker build -t layer:1 --build-arg BASE=ubuntu:24.04 --build-arg OWNER=by-hand --build-arg PACKAGES='git jq' .    (packages)",
      '# docker build -t layer:2 --build-arg BASE=layer:1 --build-arg OWNER=by-hand --build-arg AGENT_VERSION=5.278.0 --build-arg AGENT_TYPE=azure-pipelines .    (agent)',
    ]);
    expect(stdout).toMatch(/^# Pools a, b\n/);
    expect(stdout).toContain('COPY --chown=1000:1000 agent/ /opt/agent/');
    expect(stdout).toContain('# Pool c\n# Nothing is built: the image is debian:12.');
  });

  test('names the existing pools when the pool is unknown', async () => {
    expect(await print('d')).toMatchObject({ code: 1, stdout: '', stderr: expect.stringContaining('The pools are: a, b, c.') });
  });
});
