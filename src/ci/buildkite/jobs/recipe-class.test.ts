import { once } from 'node:events';
import { mkdirSync, symlinkSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../../../test/kit/config.ts';
import { scratch } from '../../../../test/support/scratch.ts';
import type { PoolConfig } from '../../../config/config.ts';
import type { Mount, Recipe } from '../../../ports/runtime.ts';
import { expandRecipe } from '../../../schema/template.ts';
import { cacheKeyOf, recipeOf, untrustedRecipe, wantsOther } from '../../kit/admission.ts';
import { jobFacts } from './job-facts.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const fork = 'https://github.com/mallory/app';
/** Of a job of that repository. */
const keyOf = (repository: string | null, more = {}) =>
  cacheKeyOf({
    facts: jobFacts({ id: 'j', env: { BUILDKITE_PULL_REQUEST: '1', BUILDKITE_PULL_REQUEST_REPO: repository ?? '', ...more } }),
  });
const all =
  'image: "debian:12", volumes: ["/srv/in:/in:IN", "/srv/out:/out:rw"], caches: ["depot:/depot:DEPOT", "/var/c/{name}:/c"], env: { A: 1 }, cpus: 2, memory: 2GiB, user: "1000", network: wide, cap_add: [SYS_PTRACE], unsafe: { privileged: true, pid_host: true, seccomp_unconfined: true }';

async function poolOf(keys: string): Promise<{ pool: PoolConfig; recipe: Recipe }> {
  const { config, errors } = await folder.load(
    `state_dir: /state\nservices: { s: { type: buildkite, token: { env: T } } }\npools: { lab: { service: s, ${keys} } }\n`,
  );
  expect(errors).toEqual([]);
  const [pool] = config.pools;
  if (pool === undefined) throw new Error('no pool');
  return { pool, recipe: expandRecipe(pool, 'gpu.1') };
}

describe('an untrusted job', () => {
  it('has no caches, can write to no volume, and nothing that weakens its sandbox', async () => {
    const { pool, recipe } = await poolOf(all);
    const made = untrustedRecipe(recipe, pool, null, '/state', new Map());
    expect(made).toEqual({
      ...recipe,
      mounts: [
        { host: '/srv/in', container: '/in', readOnly: true, variable: 'IN', cache: null },
        { host: '/srv/out', container: '/out', readOnly: true, variable: null, cache: null },
      ],
      network: 'internet',
      capAdd: [],
      unsafe: { privileged: false, pidHost: false, seccompUnconfined: false },
    });
    // Limits stay, and the trusted recipe is as it was.
    expect(made).toMatchObject({ cpus: 2, memory: 2 ** 31, user: '1000', env: { A: '1' }, image: 'debian:12' });
    expect(recipe.unsafe.privileged).toBe(true);
  });

  it('has the image and the network that the owner wants', async () => {
    const { pool, recipe } = await poolOf(`${all}, trust: { image: "plain:1", network: lab }`);
    expect(untrustedRecipe(recipe, pool, null, '/state', new Map())).toMatchObject({ image: 'plain:1', network: 'lab' });
    const { pool: chosen, recipe: open } = await poolOf('image: auto, trust: { image: "plain:1" }');
    expect(untrustedRecipe(open, chosen, null, '/state', new Map()).image).toBe('plain:1');
    const process = await poolOf('runtime: process, isolation: none, trust: { image: "plain:1" }');
    expect(untrustedRecipe(process.recipe, process.pool, null, '/state', new Map()).image).toBeNull();
  });

  it('has an engine for containers only if the owner says so', async () => {
    const engine = async (rules: string) => {
      const { pool, recipe } = await poolOf(`image: "debian:12", containers: true, trust: { ${rules} }`);
      return untrustedRecipe(recipe, pool, null, '/state', new Map()).containers;
    };
    expect(await engine('')).toBeUndefined();
    expect(await engine('containers: refuse')).toBeUndefined();
    expect(await engine('containers: allow')).toEqual({ image: null, untrusted: true });
  });

  it('is started by the OCI runtime that the owner wants for strangers', async () => {
    const of = async (keys: string) => {
      const { pool, recipe } = await poolOf(`image: "debian:12", ${keys}`);
      return [recipe.ociRuntime, untrustedRecipe(recipe, pool, null, '/state', new Map()).ociRuntime];
    };
    expect(await of('trust: { oci_runtime: runsc }')).toEqual([undefined, 'runsc']);
    expect(await of('oci_runtime: kata, trust: { oci_runtime: runsc }')).toEqual(['kata', 'runsc']);
    expect(await of('oci_runtime: kata')).toEqual(['kata', 'kata']);
  });

  it("may have named caches of its repository, never the slot's or the owner's own", async () => {
    const { pool, recipe } = await poolOf(`${all}, trust: { caches: private }`);
    const caches = (repository: string | null) =>
      untrustedRecipe(recipe, pool, keyOf(repository), '/state', new Map()).mounts.filter(({ cache }) => cache !== null);
    const key = keyOf(fork);
    expect(caches(fork)).toEqual([
      {
        host: `/state/caches/lab/untrusted/${key}/depot`,
        container: '/depot',
        readOnly: false,
        variable: 'DEPOT',
        cache: { name: 'depot' },
      },
    ]);
    expect(key).toMatch(/^[0-9a-f]{32}$/);
    expect(caches('git@github.com:Mallory/app.git')).toEqual(caches(fork));
    expect(caches('https://github.com/acme/app')).not.toEqual(caches(fork));
    // What a fork's job has triggered may claim to be of any repository.
    expect(keyOf(fork, { BUILDKITE_SOURCE: 'trigger_job' })).toMatch(/^[0-9a-f]{32}$/);
    expect(keyOf(fork, { BUILDKITE_SOURCE: 'trigger_job' })).not.toBe(key);
    expect(caches(null)).toEqual([]);
    expect(caches('what is this')).toEqual([]);
    expect(recipe.mounts.find(({ cache }) => cache?.name === 'depot')?.host).toBe('/state/caches/lab/gpu.1/depot');
  });

  it('may read the caches of trusted jobs, and never write them', async () => {
    const { pool, recipe } = await poolOf(`${all}, trust: { caches: read }`);
    const named = ({ cache }: Mount) => cache !== null && cache.name !== null;
    const made = untrustedRecipe(recipe, pool, keyOf(fork), '/state', new Map());
    expect(made.mounts.filter(named)).toEqual(recipe.mounts.filter(named).map((mount) => ({ ...mount, readOnly: true })));
    expect(made.mounts.every(({ readOnly }) => readOnly)).toBe(true);
  });

  it('is not shown sockets, run-time folders, or homes of this host, wherever they lie', async () => {
    const { pool, recipe } = await poolOf('trust: { forks: refuse }');
    using dir = scratch();
    const socket = join(dir.path, 'srv/own.sock');
    mkdirSync(join(dir.path, 'srv'));
    mkdirSync(join(dir.path, 'data'));
    mkdirSync(join(dir.path, 'home/.ssh'), { recursive: true });
    symlinkSync(join(dir.path, 'srv'), join(dir.path, 'link'));
    const server = createServer().listen(socket);
    await once(server, 'listening');
    const at = (host: string): Mount => ({ host, container: '/x', readOnly: true, variable: null, cache: null });
    const left = (...hosts: string[]) =>
      untrustedRecipe({ ...recipe, mounts: hosts.map(at) }, pool, null, '/state', new Map()).mounts;
    const away = ['/run/user/1000/docker.sock', '/run/user/1000', '/run/libvirt', '/var/run/x', '/proc', '/var/lib/docker', '/var'];
    const homes = [
      '/root',
      '/root/.ssh',
      '/home',
      '/home/ci',
      '/home/ci/.ssh',
      '/home/ci/.aws/credentials',
      join(dir.path, 'home/.ssh'),
    ];
    const sockets = [socket, join(dir.path, 'srv'), join(dir.path, 'link'), dir.path];
    expect(left(...away, ...homes, ...sockets)).toEqual([]);
    expect(left(join(dir.path, 'data'), '/home/ci/data', '/srv/nowhere').map(({ host }) => host)).toHaveLength(3);
    server.close();
    await once(server, 'close');
  });

  it('is not shown what the link of a file server leads to, if that is a home', async () => {
    const { pool, recipe } = await poolOf('volumes: ["/srv/in:/in"], trust: { forks: refuse }');
    const left = (real: string) =>
      untrustedRecipe(recipe, pool, null, '/state', new Map([['/srv/in', { near: '/srv/in', real, exists: true }]])).mounts;
    expect(left('/root')).toEqual([]);
    expect(left('/srv/v2')).toHaveLength(1);
  });

  it('keeps what onejob adds itself, also from a file server that has not answered', async () => {
    const { pool, recipe } = await poolOf('volumes: ["/srv/in:/in"], trust: { forks: refuse }');
    const own = { host: '/srv/hooks', container: '/onejob/hooks', readOnly: true, variable: null, cache: null };
    const unknown = { near: '/srv', real: null, exists: null };
    const given = { ...recipe, mounts: [...recipe.mounts, own] };
    const places = new Map([
      ['/srv/in', unknown],
      ['/srv/hooks', unknown],
    ]);
    const shown = untrustedRecipe(given, pool, null, '/state', places).mounts.map(({ container }) => container);
    expect(shown).toContain('/onejob/hooks');
  });

  it('has a sandbox of its own where it is not known yet what a volume holds', async () => {
    const { pool } = await poolOf('volumes: ["/srv/{name}:/in"]');
    const admission = { kind: 'run', trusted: false, secrets: [], facts: jobFacts({ id: 'j', env: {} }) } as never;
    expect(wantsOther(pool, admission, '/state', new Map())).toBe(true);
  });

  it('never has a way to the Engine, be it read-only', async () => {
    const { pool, recipe } = await poolOf('volumes: ["/srv/in:/in"], trust: { forks: refuse }');
    const open = { readOnly: true, variable: null, cache: null };
    for (const host of ['/var/run/docker.sock', '/run', '/var/run/', '/']) {
      const given = { ...recipe, mounts: [...recipe.mounts, { ...open, host, container: '/x' }] };
      expect(untrustedRecipe(given, pool, null, '/state', new Map()).mounts.map((mount) => mount.container)).toEqual(['/in']);
    }
  });
});

describe('caches for each project', () => {
  const run = (trusted: boolean, env: Readonly<Record<string, string>>) =>
    ({ kind: 'run', trusted, why: null, facts: jobFacts({ id: 'j', env }), secrets: [] }) as const;
  const of = (pipeline: string, more = {}) => ({ BUILDKITE_ORGANIZATION_SLUG: 'acme', BUILDKITE_PIPELINE_SLUG: pipeline, ...more });

  it('are of the slot and the project, and need a sandbox of their own', async () => {
    const { pool, recipe } = await poolOf(`${all}, cache_for: project`);
    const hosts = (pipeline: string) =>
      recipeOf(recipe, pool, run(true, of(pipeline)), '/state', new Map())?.mounts.flatMap(({ cache, host }) =>
        cache?.name ? [host] : [],
      );
    expect(hosts('app')).toEqual(['/state/caches/lab/gpu.1@acme%2Fapp/depot']);
    expect(hosts('../../etc')).toEqual(['/state/caches/lab/gpu.1@acme%2F..%2F..%2Fetc/depot']);
    expect(wantsOther(pool, run(true, of('app')), '/state', new Map())).toBe(true);
    // A job of nobody knows which project has none.
    expect(recipeOf(recipe, pool, run(true, {}), '/state', new Map())?.mounts.some(({ cache }) => cache?.name)).toBe(false);
    const shared = await poolOf(`${all}, cache_for: slot`);
    expect(recipeOf(shared.recipe, shared.pool, run(true, of('app')), '/state', new Map())).toBeNull();
  });

  it('a fork reads those of the project that it wants to change, and chooses no other', async () => {
    const { pool, recipe } = await poolOf(`${all}, cache_for: project, trust: { caches: read }`);
    const forked = of('app', { BUILDKITE_PULL_REQUEST: '1', BUILDKITE_PULL_REQUEST_REPO: fork });
    const mounts = recipeOf(recipe, pool, run(false, forked), '/state', new Map())?.mounts ?? [];
    expect(mounts.filter(({ cache }) => cache?.name)).toMatchObject([
      { host: '/state/caches/lab/gpu.1@acme%2Fapp/depot', readOnly: true },
    ]);
  });
});
