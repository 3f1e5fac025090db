/** Images that jobs have without pulling them: jobs use, change and attack them, on an Engine of the test's. */
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { inEngine } from '../../src/runtimes/docker/engine-program.ts';
import { build } from '../support/engine-base.ts';
import { heldEngine } from '../support/held-engine.ts';
import { images } from '../support/images.ts';
import { boxes, withImage } from '../support/job-containers.ts';
import { registryOf } from '../support/registry.ts';
import { lacks } from '../support/require.ts';

const tool = 'acme/tool:1';
const other = 'acme/other:2';

/** 20 MB, and a word to know it by. */
const dockerfileOf = (word: string) =>
  `FROM ${images.base}\nRUN head -c 20000000 /dev/urandom >/big\nRUN echo ${word} >/word\nCMD ["cat", "/word"]\n`;

describe.skipIf(lacks('docker', 'dockerd', 'busybox', 'engineBase'))('images for jobs', () => {
  const box = boxes(`containers: { images: ["${tool}", "${other}"] }`, {
    engine: { config: { 'insecure-registries': ['198.18.0.0/15'] } },
    make: async ({ api }) => {
      await build(api, tool, dockerfileOf('first'));
      await build(api, other, `FROM ${tool}\nCMD ["echo", "other"]\n`);
    },
  });

  const idOf = async (image: string) => ((await box.engine.api.ok('GET', `/images/${image}/json`)) as { readonly Id: string }).Id;
  const stores = () => {
    const root = join(box.engine.dataRoot, 'volumes');
    return readdirSync(root).flatMap((name) => (/-images-\w+$/.test(name) ? [join(root, name, '_data')] : []));
  };
  const contents = (store: string) =>
    execFileSync('sh', ['-c', 'tar -C "$0" --sort=name --numeric-owner -cf - . | sha256sum', store], { encoding: 'utf8' });

  const look = `docker image inspect -f '{{.Id}}' ${tool} ${other}; docker run --rm ${tool}; docker run --rm ${other}`;
  const asMade = async (word: string) => `${await idOf(tool)}\n${await idOf(other)}\n${word}\nother\n`;

  test('a job has them under their names, and each agent only their description', async () => {
    expect(await box.job(look)).toBe(await asMade('first'));
    const said = await box.job(
      `printf 'FROM ${tool}\\nRUN cat /word >/copy\\n' | docker build -q -t mine - >/dev/null`,
      'docker run --rm mine cat /copy',
      `docker run --rm -v ${inEngine.storage}/docker:/d ${tool} du -skx /d | cut -f 1`,
    );
    const [copy, size] = said.split('\n');
    expect(copy).toBe('first');
    expect(Number(size)).toBeLessThan(5_000);
  }, 240_000);

  test('a job with all rights cannot change them, and what it does to its own names is gone with it', async () => {
    await box.job('true');
    const [store = '', ...more] = stores();
    expect(more).toEqual([]);
    const before = contents(store);
    const ready = `/h${inEngine.ready}`;
    const said = await box.job(
      `docker run --rm --privileged --pid host --network host -v /:/h -v ${inEngine.ready}:${inEngine.ready} ${tool} sh -c '`,
      `for way in ${ready} ${inEngine.ready}; do [ -e $way/seed ] && echo reached; done`,
      `for way in ${ready} ${inEngine.ready} /h/proc/1/root${inEngine.ready}; do`,
      '  for file in $(find $way -name word -o -name repositories.json -o -name link 2>/dev/null); do',
      '    (echo evil >$file) 2>/dev/null && echo "wrote $file"; rm -f $file 2>/dev/null && echo "removed $file"',
      '    chmod 777 $file 2>/dev/null && echo "changed $file"',
      '  done',
      '  touch $way/new 2>/dev/null && echo "made $way/new"',
      '  mount -o remount,rw,bind $way 2>/dev/null && echo "remounted $way"',
      '  mount -o remount,rw $way 2>/dev/null && echo "remounted all of $way"',
      'done',
      `mkdir /m; mount --bind ${inEngine.ready} /m && mount -o remount,rw,bind /m 2>/dev/null && echo "mounted anew"`,
      'touch /m/new 2>/dev/null && echo "made a new one there"',
      `nsenter -t 1 -m touch ${inEngine.ready}/new 2>/dev/null && echo "went where it is mounted"`,
      // Its own copy of the description is its own.
      `for layer in /h${inEngine.storage}/docker/overlay2/*/diff; do [ -h $layer ] && (echo evil >$layer/word) 2>/dev/null && echo "wrote $layer"; done`,
      "echo end'",
      // What is written in a container goes above the layers.
      `docker run --name changed ${tool} sh -c 'echo evil >/word; rm /big'; docker commit changed ${other} >/dev/null; docker rm changed >/dev/null`,
      `docker tag ${other} ${tool}; docker run --rm ${tool} cat /word`,
      `docker rmi -f ${tool} ${other} >/dev/null; docker system prune -af >/dev/null; docker image ls -q`,
    );
    expect(said).toBe('reached\nreached\nend\nevil\n');
    expect(contents(store)).toBe(before);
    expect(await box.job(look)).toBe(await asMade('first'));
  }, 240_000);

  test('a newer image is there for the agents that are made after it, and the older ones go', async () => {
    const [old] = stores();
    await build(box.engine.api, tool, dockerfileOf('second'));
    // The agent that waits already has the older one.
    await box.job('true');
    await expect.poll(() => box.job(`docker run --rm ${tool}`), { timeout: 120_000 }).toBe('second\n');
    expect(await box.job(look)).toBe(await asMade('second'));
    const left = async () => {
      await box.job('true');
      return stores();
    };
    await expect.poll(left, { timeout: 60_000 }).not.toContain(old);
    expect(stores()).toHaveLength(1);
  }, 300_000);

  test('a daemon that was killed while it made them ready goes on with it, and leaves nothing', async () => {
    using held = await heldEngine(box.engine.socket);
    await using here = await withImage(await box.another(`containers: { images: ["${other}"] }`, { DOCKER_HOST: held.url }));
    const reads = /^GET \S*\/images\/\S+\/get/;
    const holding = held.hold(reads);
    const doomed = await here.up();
    const one = await holding;
    await doomed.kill();
    const next = await here.up();
    const run = here.run('--no-workspace', '--pool', 'box', '--', 'docker', 'run', '--rm', other);
    expect(await run.ended).toMatchObject({ code: 0, stdout: 'other\n' });
    await one.letGo();
    await next.stop();
    expect((await here.census()).left).toEqual([]);
  }, 240_000);

  test('a registry is asked with the password of the pool, and by digest; a mirror by the engines of jobs, without it', async () => {
    const { address } = box.engine;
    await using registry = await registryOf(box.engine.api, tool, 'robot:secret');
    await using mirror = await registryOf(box.engine.api, tool);
    const name = `${address}:${registry.port}/acme/private:1`;
    const logins = join(box.home.cwd, 'logins');
    mkdirSync(logins);
    const auths = { [`${address}:${registry.port}`]: { auth: Buffer.from('robot:secret').toString('base64') } };
    writeFileSync(join(logins, 'config.json'), JSON.stringify({ auths }));
    const containers = `{ images: ["${name}@${registry.digest}", "${tool}"], logins: "${logins}", mirrors: ["http://${address}:${mirror.port}"] }`;
    await using here = await box.another(`network: default, containers: ${containers}`);
    await here.up();
    const script = [
      `docker run --rm ${name}`,
      `docker pull -q ${tool}`,
      'docker rmi -f $(docker image ls -q) >/dev/null',
      'docker run --rm mirrored:1 echo from the mirror',
      `grep -r ${Buffer.from('robot:secret').toString('base64')} /proc/*/environ /root /tmp /workspace 2>/dev/null || echo no password`,
    ].join('\n');
    const { code, stdout, stderr } = await here.run('--no-workspace', '--pool', 'box', '--', 'sh', '-ec', script).ended;
    expect([code, stdout], stderr).toEqual([
      0,
      expect.stringMatching(/^(first|second)\ndocker.io\/acme\/tool:1\nfrom the mirror\nno password\n$/),
    ]);
    expect(registry.asked).toContain(`/v2/acme/private/manifests/${registry.digest}`);
    // What the job has already is not sent again.
    const first = (words: string) => mirror.asked.findIndex((path) => path.includes(words));
    expect(first(`/v2/${tool.replace(':', '/manifests/')}`)).toBeGreaterThan(-1);
    expect(first('/v2/library/mirrored/manifests/')).toBeGreaterThan(-1);
    expect(first('/blobs/')).toBeGreaterThan(first('/v2/library/mirrored/manifests/'));
  }, 240_000);

  test('a pool learns what a job pulls, and nothing from what a job plants; later jobs have it without a registry', async () => {
    const { engine } = box;
    const registry = await registryOf(engine.api, other);
    const mirror = `http://${engine.address}:${registry.port}`;
    writeFileSync(
      join(engine.dataRoot, '../daemon.json'),
      JSON.stringify({ 'insecure-registries': ['198.18.0.0/15'], 'registry-mirrors': [mirror] }),
    );
    process.kill(engine.pid ?? 0, 'SIGHUP');
    await expect.poll(() => engine.api.ok('GET', '/info')).toMatchObject({ RegistryConfig: { Mirrors: [`${mirror}/`] } });
    const containers = `{ images: ["${tool}"], learn: 1GiB, pull: ["docker.io/library/wanted*"], mirrors: ["${mirror}"] }`;
    await using here = await box.another(`network: default, containers: ${containers}`);
    await here.up();
    const run = async (script: string) => {
      const { code, stdout, stderr } = await here.run('--no-workspace', '--pool', 'box', '--', 'sh', '-ec', script).ended;
      expect(code, `${stdout}\n${stderr}`).toBe(0);
      return stdout;
    };
    const file = join(here.stateDir, 'learnt-images/box.json');
    const learnt = () =>
      existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Record<'images' | 'set', { readonly name: string }[]>) : null;
    const id = `sha256:${'1'.repeat(64)}`;
    const listOf = (name: string) => JSON.stringify({ Repositories: { x: { [`${name}:1`]: id, [`${name}@${id}`]: id } } });
    const wanted = listOf('wanted-too');
    const evil = listOf('evil.example/library/wanted');
    const planted: readonly (readonly [string, string])[] = [
      [`echo '${wanted}' >forged; ln -sf forged repositories.json; cat repositories.json`, wanted],
      [`(echo '${wanted}'; head -c 300000 /dev/zero | tr '\\0' ' ') >repositories.json; head -n 1 repositories.json`, wanted],
      ['rm repositories.json; mkfifo repositories.json; echo made', 'made'],
      [
        `rm repositories.json; mkdir repositories.json; cd repositories.json; echo '${wanted}' >repositories.json; echo made`,
        'made',
      ],
      [`echo '${evil}' >repositories.json; cat repositories.json`, evil],
      [`echo '${wanted.slice(1)}' >repositories.json; echo made`, 'made'],
    ];
    const list = `${inEngine.storage}/docker/image/overlay2`;
    for (const [plant, prints] of planted) {
      const quoted = `cd /list; ${plant}`.replaceAll("'", `'\\''`);
      expect(await run(`docker run --rm --privileged -v ${list}:/list ${tool} sh -c '${quoted}'`)).toBe(`${prints}\n`);
    }
    await run('docker pull -q wanted:1; docker pull -q unwanted:1');
    // A new set is begun when an agent is made.
    const later = async () => {
      await run('true');
      return learnt()?.set.map(({ name }) => name);
    };
    await expect.poll(later, { timeout: 120_000 }).toEqual(['wanted:1']);
    expect(registry.asked).toContain(`/v2/library/wanted/manifests/${registry.digest}`);
    await registry[Symbol.asyncDispose]();
    const last = () => run('docker run --rm wanted:1 2>/dev/null || echo not yet');
    await expect.poll(last, { timeout: 120_000 }).toBe('other\n');
    expect(learnt()?.images.map(({ name }) => name)).toEqual(['wanted:1']);
    // Names on the Engine of the host stay what they were.
    expect((await engine.api.call('GET', '/images/wanted:1/json')).status).toBe(404);
    const { stdout: said } = await here.cli(['doctor']).ended;
    expect(said).toMatch(/Jobs of pool box have taught it wanted:1 \([\d.]+ MiB of 1 GiB\)/);
  }, 400_000);

  test('an image that nobody has keeps the pool from starting, and says why', async () => {
    await using here = await box.another('pull: never, containers: { images: ["acme/none:1"] }');
    await here.up();
    await expect
      .poll(async () => (await here.cli(['status']).ended).stdout, { timeout: 60_000 })
      .toMatch(/waits for image "acme\/none:1" on docker, next try in \d+s: Image "acme\/none:1" is not on the Engine/);
  }, 120_000);
});
