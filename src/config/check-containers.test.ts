/** Pools whose jobs run containers with an engine of their own. */
import { afterAll, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const errors = (pool: string, more = '') => folder.check(`pools: { p: { containers: true, ${pool} } }\n${more}`);

it('a pool with containers alone is one of Docker', async () => {
  expect(await errors('agents: 2')).toEqual([]);
  expect((await folder.load('pools: { p: { containers: true } }\n')).config.pools[0]).toMatchObject({
    runtime: 'docker',
    recipe: { containers: { image: null } },
  });
});

it('a pool without has nothing of it in its recipe, so that earlier sandboxes stay what they are', async () => {
  const { config } = await folder.load('pools: { p: { containers: false } }\n');
  expect(config.pools[0]?.recipe).not.toHaveProperty('containers');
});

it.each([
  ['runtime: process', '"runtime" is process, which cannot give jobs an engine for containers; write "runtime: docker"'],
  ['runtime: c', '"runtime" is c, which cannot give jobs an engine', 'runtimes: { c: { type: slurm, folder: /s } }\n'],
  ['runtime: c', '"runtime" is c, which cannot give jobs an engine', 'runtimes: { c: { type: kubernetes } }\n'],
  ['network: host', '"network" is host: containers of jobs would open ports of this host'],
  ['hold_failed: 30m', '"hold_failed" is set'],
])('%s is refused: %s', async (pool, why, more = '') => {
  const found = (await errors(pool, more)).filter((line) => line.includes('containers'));
  expect(found).toEqual([expect.stringContaining(`pools.p.containers: is true, but ${why}`)]);
});

it.each([
  ['volumes: ["/tmp:/t:rw"]', 'pools.p.volumes: /tmp must be open to others'],
  ['caches: ["/tmp:/t"]', 'pools.p.caches: /tmp must be open to others'],
])('%s is written to by users that own nothing: %s', async (pool, why) => {
  expect(await errors(pool)).toEqual([expect.stringContaining(why)]);
});

it('named caches go with containers', async () => {
  expect(await errors('caches: ["a:/c"]')).toEqual([]);
});

it('a map says which images jobs have, and how they are pulled is what the pool says', async () => {
  const about = async (written: string) =>
    (await folder.load(`pools: { p: { pull: always, containers: ${written} } }\n`)).config.pools[0]?.recipe.containers;
  const ready = { images: ['node:22', `acme/tool:1@sha256:${'a'.repeat(64)}`], pull: 'always', logins: null };
  expect(await about(JSON.stringify({ images: ready.images }))).toEqual({ image: null, ready });
  expect(await about('{}')).toEqual({ image: null });
  expect(await about('{ images: [] }')).toEqual({ image: null });
});

it.each([
  ['[onejob/engine:1]', 'images[0]: onejob/engine:1 has the name of images that onejob builds itself'],
  ['["node:22", "docker.io/onejob/a"]', 'images[1]: docker.io/onejob/a has the name of images'],
  [`["r.io:5000/node@sha256:${'a'.repeat(64)}"]`, `images[0]: r.io:5000/node@sha256:${'a'.repeat(64)} has no tag, by which`],
  ['[Node]', 'images[0]: "Node" is not an image such as "postgres:16"'],
])('of images for jobs, %s is refused', async (images, why) => {
  const [line, ...others] = await folder.check(`pools: { p: { containers: { images: ${images} } } }\n`);
  expect(line).toContain(`pools.p.containers.${why}`);
  expect(others).toEqual([]);
});

it('a map says where credentials and mirrors are; credentials without images, or that are not there, are warned of', async () => {
  const pool = (keys: string) => `pools: { p: { containers: { ${keys} } } }\n`;
  const logins = `logins: ${folder.path}`;
  const { config } = await folder.load(pool(`images: [a], ${logins}, mirrors: ["https://m.example:5000"]`));
  expect(config.pools[0]?.recipe.containers).toMatchObject({ ready: { logins: folder.path }, mirrors: ['https://m.example:5000'] });
  const [missing] = await folder.check(pool(`images: [a], ${logins}`));
  expect(missing).toContain('config.json does not exist: images would be pulled as by a stranger');
  folder.write('config.json', '{}');
  expect(await folder.check(pool(`images: [a], ${logins}`))).toEqual([]);
  const [unused] = await folder.check(pool(logins));
  expect(unused).toContain('pools.p.containers.logins: is not used: there are no "images"');
});

it('a map says what jobs may teach their pool, and up to which size', async () => {
  const written = 'learn: 20GiB, pull: ["docker.io/library/*", "ghcr.io/acme/**", "localhost:5000/a"]';
  const { config } = await folder.load(`pools: { p: { containers: { ${written} } } }\n`);
  const learn = { limit: 20 * 2 ** 30, pull: ['docker.io/library/*', 'ghcr.io/acme/**', 'localhost:5000/a'] };
  expect(config.pools[0]?.recipe.containers).toEqual({
    image: null,
    ready: { images: [], pull: 'missing', logins: null, learn },
  });
});

it.each([
  ['learn: 1GiB', ': has only one of "learn" and "pull"; write what jobs may teach, such as pull: ["docker.io/library/*"]'],
  ['learn: 1GiB, pull: []', ': has only one of "learn" and "pull"'],
  ['pull: ["docker.io/library/*"]', '.pull: is not used: there is no "learn"'],
  ['learn: 1GiB, pull: [node]', '.pull[0]: "node" must begin with a registry, as in "docker.io/library/*"'],
  ['learn: 1GiB, pull: ["**"]', '.pull[0]: "**" must begin with a registry'],
  ['learn: 1GiB, pull: ["*.io/a"]', '.pull[0]: "*.io/a" must begin with a registry'],
  ['learn: 1GiB, pull: ["docker.io/{1..3}"]', '.pull[0]: "docker.io/{1..3}" is not a valid pattern: ranges'],
  ['learn: 1KiB, pull: ["docker.io/a/*"]', '.learn: must be at least 1MiB'],
])('of learning, { %s } is refused or warned of', async (written, why) => {
  const [line, ...others] = await folder.check(`pools: { p: { containers: { ${written} } } }\n`);
  expect(line).toContain(`pools.p.containers${why}`);
  expect(others).toEqual([]);
});

it('a pool that pulls nothing does not learn', async () => {
  const [line] = await folder.check('pools: { p: { pull: never, containers: { learn: 1GiB, pull: ["docker.io/a/*"] } } }\n');
  expect(line).toContain('pools.p.containers.learn: is set, but "pull" of the pool is never, so nothing would be pulled');
});

it.each(['m.example', 'https://u:p@m.example', 'https://m.example/a', 'https://$(id)'])(
  'a mirror is refused that is written as %s',
  async (mirror) => {
    const [line] = await folder.check(`pools: { p: { containers: { mirrors: ["${mirror}"] } } }\n`);
    expect(line).toContain('is not an address such as "https://mirror.example.org"');
  },
);

it('what does not go with a map says so', async () => {
  const [line] = await folder.check('pools: { p: { network: host, containers: { images: [a] } } }\n');
  expect(line).toContain('pools.p.containers: is set, but "network" is host');
});

it('a pool must not be named like the image of the engines', async () => {
  const [line] = await folder.check('pools: { engine: { containers: true } }\n');
  expect(line).toContain('the pool is named "engine", like the image of such engines; give the pool another name');
});

it.each([
  '/usr/local',
  '/usr/local/share/perl',
  '/etc',
  '/usr/bin',
  '/usr/lib/x86_64-linux-gnu/perl',
  '/home',
  '/home/engine/.ssh',
])('root of an engine runs no file of a job: nothing is mounted at %s', async (path) => {
  const found = await errors(`volumes: ["/opt:${path}:ro"]`);
  expect(found).toEqual([expect.stringContaining(`pools.p.volumes: uses the container path ${path}, but with "containers", `)]);
});

it('other places of an image may be mounted over', async () => {
  const paths = [
    '/usr/local/cargo',
    '/usr/lib/jvm',
    '/lib/modules',
    '/etc/ssl/certs',
    '/home/runner/.cache',
    '/usr/local/share/data',
  ];
  for (const path of paths) expect(await errors(`volumes: ["/opt:${path}:ro"]`), path).toEqual([]);
});
