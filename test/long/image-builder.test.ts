/** Images built on the real Engine, with an agent's package from a server on this host. */
import { randomBytes } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { buffer } from 'node:stream/consumers';
import { gzipSync } from 'node:zlib';
import { pack } from 'tar-stream';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createImageBuilder, type ImageWish } from '../../src/images/builder.ts';
import { BuiltImages } from '../../src/images/built.ts';
import { imageLabels } from '../../src/images/plan.ts';
import { settings } from '../kit/docker-runtime.ts';
import { engineAt } from '../support/engine-http.ts';
import { ensureImages, images } from '../support/images.ts';
import { lacks } from '../support/require.ts';
import { scratch } from '../support/scratch.ts';

/** A package whose agent says `version`, and leaves a log behind as the real one does. */
async function packageOf(version: string): Promise<Buffer> {
  const tar = pack();
  const listener = `#!/bin/sh\nmkdir -p /opt/agent/_diag && echo log >/opt/agent/_diag/Agent_1.log\necho ${version}\n`;
  tar.entry({ name: './bin/', type: 'directory', mode: 0o755, uid: 1001, gid: 1001 });
  tar.entry({ name: './bin/Agent.Listener', mode: 0o755, uid: 1001, gid: 1001 }, listener);
  tar.entry({ name: './run.sh', type: 'symlink', linkname: 'bin/Agent.Listener' });
  tar.finalize();
  return gzipSync(await buffer(tar));
}

const { signal: never } = new AbortController();
const quiet = () => {};

describe.skipIf(lacks('docker', 'busybox'))('on the Engine', () => {
  const dir = scratch();
  const served = new Map<string, Buffer>();
  const server = createServer((request, reply) => reply.end(served.get(request.url ?? '')));
  let url = '';

  beforeAll(async () => {
    await ensureImages();
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    served.set('/agent.tar.gz', await packageOf('5.278.0'));
  });
  afterAll(() => {
    server.close();
    dir[Symbol.dispose]();
  });

  /** A builder with an owner of its own, whose images are gone in the end, with all they were made from. */
  async function bench() {
    const owner = `t${randomBytes(5).toString('hex')}`;
    const builder = await createImageBuilder({
      environment: settings(),
      owner,
      packages: join(dir.path, owner),
      built: new BuiltImages(join(dir.path, `${owner}-built`)),
    });
    onTestFinished(async () => {
      await builder.prune(() => false, never);
      builder.close();
      expect(await leftovers()).toEqual([]);
    });
    const leftovers = async (): Promise<unknown> => {
      using engine = engineAt();
      const filters = JSON.stringify({ label: [`${imageLabels.owner}=${owner}`] });
      return await engine.ok('GET', `/images/json?${new URLSearchParams({ filters })}`);
    };
    return { builder, owner };
  }

  /** A hash of its own for each test: what another one has built is not its own. */
  const wish = (more: Partial<ImageWish> = {}, version = '5.278.0'): ImageWish => ({
    type: 'azure-pipelines',
    base: null,
    packages: [],
    pull: 'never',
    dockerfile: dockerfile('RUN true'),
    agent: async () => ({ type: 'azure-pipelines', version, from: `${url}/agent.tar.gz`, sha256: null }),
    ...more,
  });
  function dockerfile(...lines: string[]): string {
    const path = join(dir.path, `${randomBytes(5).toString('hex')}.Dockerfile`);
    writeFileSync(path, [`FROM ${images.base}`, `ENV MARK=${randomBytes(5).toString('hex')}`, ...lines, ''].join('\n'));
    return path;
  }

  test('has the agent in its place, its user and its labels; the second time nothing is built', async () => {
    const { builder, owner } = await bench();
    const said: string[] = [];
    const asked = wish();
    expect(await builder.find(asked, never)).toBeNull();
    const built = await builder.get(asked, (line) => said.push(line), never);
    expect(built).toMatchObject({ agentVersion: '5.278.0', pull: 'never' });
    expect(said).toEqual(
      expect.arrayContaining([
        'fetching the agent 5.278.0',
        'building the image (your Dockerfile): step 4/5 true',
        expect.stringMatching(/^building the image \(agent\): step \d+\/\d+ COPY --chown=1000:1000 agent\/ \/opt\/agent\/$/),
      ]),
    );
    using engine = engineAt();
    const { Config } = (await engine.ok('GET', `/images/${built.reference}/json`)) as { Config: { User: string; Labels: object } };
    expect(Config.User).toBe('1000');
    expect(Config.Labels).toMatchObject({
      [imageLabels.owner]: owner,
      'io.onejob.agent.type': 'azure-pipelines',
      [imageLabels.agentVersion]: '5.278.0',
      'io.onejob.agent.root': '/opt/agent',
      [imageLabels.agentHash]: expect.stringMatching(/^[0-9a-f]{64}$/),
    });
    const shown = await run(
      built.reference,
      'id -u; cd /opt/agent; stat -c "%u %a %n" . bin/Agent.Listener; ls _diag; ./run.sh; touch x',
    );
    expect(shown.split('\n')).toEqual(expect.arrayContaining(['1000', '1000 755 bin/Agent.Listener', '5.278.0']));
    expect(shown).toContain('ls: _diag: No such file or directory');

    const again: string[] = [];
    expect(await builder.get(asked, (line) => again.push(line), never)).toEqual(built);
    expect([again, await builder.find(asked, never), await builder.isThere(built, never)]).toEqual([[], built, true]);
    expect(await builder.list(never)).toMatchObject([{ reference: built.reference, id: built.id, containers: 0 }]);
    expect(await builder.prune(({ id }) => id === built.id, never)).toEqual([]);
    expect(await builder.prune(() => false, never)).toEqual([built.reference]);
  });

  test('two who want the same at one moment share one build', async () => {
    const { builder } = await bench();
    const asked = wish();
    const heard: string[][] = [[], []];
    const both = await Promise.all(heard.map((lines) => builder.get(asked, (line) => lines.push(line), never)));
    expect(both[0]).toEqual(both[1]);
    expect(heard[0]?.filter((line) => line.includes('step'))).toEqual(heard[1]?.filter((line) => line.includes('step')));
  });

  test('an agent of another version than its package was said to have fails the build, with its last lines', async () => {
    const { builder } = await bench();
    const error = await builder.get(wish({}, '5.279.0'), quiet, never).catch((each: unknown) => each);
    expect(error).toMatchObject({ code: 'E_IMAGE_BUILD', retry: false });
    expect(String(error)).toMatch(
      /failed at step 12\/\d+ asking the agent for its version: its command returned a non-zero code: 1\./,
    );
    expect(String(error)).toContain("The agent says that it is version '5.278.0', not '5.279.0'.");
    expect(await builder.list(never)).toEqual([]);
  });

  test.each<[string, () => Partial<ImageWish>, RegExp]>([
    ['a step that fails', () => ({ dockerfile: dockerfile('RUN echo oh no; exit 7') }), /code: 7\.\nIts last lines:\n {2}oh no$/],
    ['an invalid Dockerfile', () => ({ dockerfile: dockerfile('RUM x') }), /unknown instruction: RUM/],
    ['files beside a Dockerfile, which are not sent', () => ({ dockerfile: dockerfile('COPY secrets /') }), /COPY failed/],
    ['a Dockerfile that is not there', () => ({ dockerfile: '/nowhere/Dockerfile' }), /Cannot read the Dockerfile \/nowhere/],
    [
      'packages on a base without a package manager',
      () => ({ packages: ['git'] }),
      /installing packages.*\n.*\n {2}This base has neither apt-get/,
    ],
  ])('%s: says what it was', async (_, more, why) => {
    const { builder } = await bench();
    await expect(builder.get(wish(more()), quiet, never)).rejects.toMatchObject({
      code: 'E_IMAGE_BUILD',
      message: expect.stringMatching(why),
      hint: expect.stringMatching(/./),
    });
  });

  test('a base that is not there and may not be fetched is said', async () => {
    const { builder } = await bench();
    const asked = wish({ dockerfile: null, base: 'onejob-test/none:1' });
    await expect(builder.get(asked, quiet, never)).rejects.toMatchObject({ code: 'E_IMAGE_NOT_FOUND' });
  });

  test('one that nobody wants any more is ended on the Engine, and leaves no container', async () => {
    const { builder } = await bench();
    using engine = engineAt();
    const mark = randomBytes(5).toString('hex');
    const stop = new AbortController();
    const slow = Promise.withResolvers<void>();
    const building = builder.get(
      wish({ dockerfile: dockerfile(`RUN sleep 600 # ${mark}`) }),
      (line) => line.includes('sleep 600') && slow.resolve(),
      stop.signal,
    );
    building.catch(quiet);
    await slow.promise;
    const mine = async () => JSON.stringify(await engine.ok('GET', '/containers/json?all=true')).includes(mark);
    await expect.poll(mine).toBe(true);
    stop.abort(new Error('enough'));
    await expect(building).rejects.toThrow('enough');
    await expect.poll(mine).toBe(false);
  });

  test('what others made on one of these images is theirs', async () => {
    const { builder } = await bench();
    const built = await builder.get(wish(), quiet, never);
    using engine = engineAt();
    const { Id } = (await engine.ok('POST', '/containers/create', { Image: built.reference, Cmd: ['true'] })) as { Id: string };
    expect(await builder.list(never)).toMatchObject([{ containers: 1 }]);
    expect(await builder.prune(() => false, never)).toEqual([]);
    const mine = `onejob-test/theirs-${randomBytes(5).toString('hex')}`;
    await engine.ok('POST', `/commit?${new URLSearchParams({ container: Id, repo: mine, tag: '1' })}`, {});
    await engine.ok('DELETE', `/containers/${Id}`);
    expect(await builder.list(never)).toMatchObject([{ reference: built.reference }]);
    expect(await builder.prune(() => false, never)).toEqual([built.reference]);
    expect((await engine.call('GET', `/images/${mine}:1/json`)).status).toBe(200);
    await engine.ok('DELETE', `/images/${mine}:1`);
  });

  test('an image that only says that it was built for a recipe is not used for it, whatever its labels and name', async () => {
    const { builder } = await bench();
    const asked = wish();
    const built = await builder.get(asked, quiet, never);
    using engine = engineAt();
    const { Id } = (await engine.ok('POST', '/containers/create', { Image: built.reference, Cmd: ['true'] })) as { Id: string };
    // The labels of the recipe come along; the newest of them used to win.
    const forge = (repo: string, tag: string, hash: string) =>
      engine.ok(
        'POST',
        `/commit?${new URLSearchParams({ container: Id, repo, tag, changes: `LABEL ${imageLabels.hash}=${hash}` })}`,
        {},
      );
    const [name = '', tag = ''] = built.reference.split(':');
    await forge(name, 'a'.repeat(12), 'a'.repeat(64));
    expect(await builder.find(asked, never)).toEqual(built);
    const hash = (await engine.ok('GET', `/images/${built.reference}/json`)) as { Config: { Labels: Record<string, string> } };
    const forged = (await forge(name, tag, hash.Config.Labels[imageLabels.hash] ?? '')) as { Id: string };
    expect([await builder.find(asked, never), await builder.isThere(built, never)]).toEqual([null, false]);
    expect((await builder.get(asked, quiet, never)).id).toBe(built.id);
    await engine.ok('DELETE', `/containers/${Id}`);
    await engine.ok('DELETE', `/images/${forged.Id}`);
  });

  /** What a script prints, both streams, in a container of the image. */
  async function run(image: string, script: string): Promise<string> {
    using engine = engineAt();
    const body = { Image: image, Entrypoint: ['sh', '-c', `(${script}) >/tmp/said 2>&1`], Cmd: [] };
    const { Id } = (await engine.ok('POST', '/containers/create', body)) as { Id: string };
    try {
      await engine.ok('POST', `/containers/${Id}/start`);
      await engine.ok('POST', `/containers/${Id}/wait`);
      return String((await engine.call('GET', `/containers/${Id}/archive?path=/tmp/said`)).body).slice(512);
    } finally {
      await engine.ok('DELETE', `/containers/${Id}?force=true`);
    }
  }
});
