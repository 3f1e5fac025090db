import { spawnSync } from 'node:child_process';
import { chownSync, mkdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { emptyEnvironment, Folder, host } from '../../test/kit/config.ts';
import type { OnejobError } from '../base/errors.ts';
import { types } from '../cli/types.ts';
import { formatProblem } from '../schema/problem.ts';
import { makeKey } from '../secrets/keys.ts';
import type { Environment } from './environment.ts';
import { lookAtHost } from './host-look.ts';
import { checkConfig, loadConfig, loadPaths } from './load.ts';
import type { Flags } from './paths.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

describe('without a file', () => {
  it('there is the own queue with one pool of two agents on the best runtime', async () => {
    const { config, warnings } = await loadConfig({ types, look: lookAtHost, env: emptyEnvironment(), host });
    expect(warnings).toEqual([]);
    expect(config.path).toBeNull();
    expect(config.pools).toMatchObject([
      { name: 'default', service: 'own', agents: 2, runtime: null, devices: { count: 0 }, recipe: { image: 'debian:stable-slim' } },
    ]);
  });

  it('neither the YAML parser nor the schema is loaded', () => {
    const script = `
      import { registerHooks } from 'node:module';
      const seen = [];
      registerHooks({ load: (url, context, next) => { seen.push(url); return next(url, context); } });
      const { loadConfig } = await import(${JSON.stringify(new URL('./load.ts', import.meta.url).href)});
      const { readEnvironment } = await import(${JSON.stringify(new URL('./environment.ts', import.meta.url).href)});
      const { types } = await import(${JSON.stringify(new URL('../cli/types.ts', import.meta.url).href)});
      const { lookAtHost } = await import(${JSON.stringify(new URL('./host-look.ts', import.meta.url).href)});
      await loadConfig({ types, look: lookAtHost, env: readEnvironment({ HOME: '/nowhere' }, 1000) });
      process.stdout.write(seen.filter((url) => url.includes('node_modules')).join(' '));`;
    const ran = spawnSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8' });
    expect({ status: ran.status, packages: ran.stdout }).toEqual({ status: 0, packages: '' });
  });
});

describe('what is written', () => {
  it('defaults are under every pool: maps merge key by key, all else is replaced', async () => {
    const { config, errors } = await folder.load(`
defaults:
  cpus: 2
  timeout: 1h
  env: { A: 1, B: 2 }
  image: { base: "ubuntu:24.04", packages: [git] }
  volumes: ["/a:/a"]
  devices: { count: 2, model: A100 }
pools:
  one:
  two: { cpus: none, timeout: none, env: { B: 3 }, image: { base: "debian:12" }, volumes: ["/b:/b"], devices: 0 }
`);
    expect(errors).toEqual([]);
    const [one, two] = config.pools;
    expect(one).toMatchObject({
      timeout: 3_600_000,
      recipe: { cpus: 2, env: { A: '1', B: '2' } },
      devices: { count: 2, model: 'A100' },
    });
    expect(two).toMatchObject({
      timeout: null,
      devices: { count: 0, model: null },
      imageRecipe: { base: 'debian:12', packages: ['git'] },
      recipe: { image: null, cpus: null, env: { A: '1', B: '3' }, mounts: [{ host: '/b' }] },
    });
  });

  it('values of env and tags are text as written', async () => {
    const { config } = await folder.load(
      'pools: { a: { env: { V: 1.10, W: 007, X: true, Y: "", Z: 1e3 }, tags: { v: [1.10, x], w: 2 } } }\n',
    );
    expect(config.pools[0]?.recipe.env).toEqual({ V: '1.10', W: '007', X: 'true', Y: '', Z: '1e3' });
    expect(config.pools[0]?.tags).toEqual(['v=1.10', 'v=x', 'w=2']);
  });

  it('tags may be a list, in which a comma would make two of one', async () => {
    const { config } = await folder.load('pools: { a: { tags: [gpu, a100] } }\n');
    expect(config.pools[0]?.tags).toEqual(['gpu', 'a100']);
    expect((await folder.check('pools: { a: { tags: ["a,b"] } }\n')).join()).toContain('a tag without a comma');
  });

  it('tags may be the text of the service', async () => {
    const { config } = await folder.load('pools: { a: { tags: "cap=sm_80,gpu=a100, cap=recent" } }\n');
    expect(config.pools[0]?.tags).toEqual(['cap=sm_80', 'gpu=a100', 'cap=recent']);
  });

  it('limits, tmpfs, capabilities and users as a runtime wants them', async () => {
    const file =
      'pools: { a: { user: 1000, ulimits: { nofile: 9, memlock: unlimited }, tmpfs: { /tmp: 64MiB, /x: "size=1m,mode=1777" }, cap_add: [cap_sys_ptrace] } }\n';
    const { config, errors } = await folder.load(file);
    expect(errors).toEqual([]);
    expect(config.pools[0]?.recipe).toMatchObject({
      user: '1000',
      ulimits: [
        { name: 'nofile', soft: 9, hard: 9 },
        { name: 'memlock', soft: -1, hard: -1 },
      ],
      tmpfs: { '/tmp': 'size=67108864', '/x': 'size=1m,mode=1777' },
      capAdd: ['SYS_PTRACE'],
    });
  });

  it('aliases may be used', async () => {
    const { config, errors } = await folder.load('pools:\n  a: { env: &e { A: 1 } }\n  b: { env: *e }\n');
    expect(errors).toEqual([]);
    expect(config.pools[1]?.recipe.env).toEqual({ A: '1' });
  });

  it('a key that JavaScript objects have by birth is only an unknown key', async () => {
    expect(await folder.check('constructor: 1\n')).toEqual([expect.stringContaining('config.yml:1:1: constructor: unknown key')]);
    expect(await folder.check('defaults: { __proto__: { cpus: 1 } }\n')).toEqual([
      expect.stringContaining('defaults.__proto__: unknown key'),
    ]);
    expect(await folder.check('pools: { a: { service: constructor } }\n')).toEqual([
      expect.stringContaining('"services" has no "constructor"'),
    ]);
  });
});

describe('across keys, both are named', () => {
  it.each([
    ['{ agents: per-device }', 'pools.a.agents: is per-device, but "devices" is 0'],
    ['{ agents: 2, devices: all }', 'pools.a.agents: is 2, but "devices" is all'],
    ['{ agents: 2, devices: { uuid: GPU-1234 } }', 'pools.a.devices.uuid: names one device, but "agents" and "count" ask for 2'],
    ['{ memory: 1GiB, shm_size: 2GiB }', 'pools.a.shm_size: is 2GiB, more than "memory" (1GiB)'],
    ['{ image: { packages: [git] } }', 'pools.a.image: has neither "base" nor "dockerfile"'],
    ['{ image: { base: x, dockerfile: /x } }', 'pools.a.image.base: conflicts with "dockerfile"'],
    ['{ name: x, agents: 2 }', 'pools.a.name: "x" gives all slots of the pool the same name, but "agents" is 2'],
    ['{ volumes: ["/a:/x", "/b:/x"] }', 'pools.a.volumes[1]: uses the container path /x, which volumes[0] already uses'],
    ['{ volumes: ["/a:/x:V"], caches: ["/b:/y:V"] }', 'pools.a.caches[0]: sets the variable V, which volumes[0] already sets'],
    ['{ volumes: ["/a:/x:V"], env: { V: 1 } }', 'pools.a.volumes[0]: sets the variable V, which env.V already sets'],
    ['{ volumes: ["/a:/x"], tmpfs: { /x: 1MiB } }', 'pools.a.tmpfs./x: uses the container path /x, which volumes[0] already uses'],
    ['{ volumes: ["/state:/x"] }', 'pools.a.volumes[0]: shows jobs the state of onejob, because "state_dir" is /state/here'],
    ['{ volumes: ["/keys:/x"] }', 'pools.a.volumes[0]: would show jobs the secret file of services.s.token, /keys/token'],
    ['{ ulimits: { nofile: { soft: 2, hard: 1 } } }', 'pools.a.ulimits.nofile: "soft" is above "hard"'],
    ['{ ulimits: { nofiles: 1 } }', 'pools.a.ulimits.nofiles: unknown limit; did you mean "nofile"?'],
    ['{ env: { ONEJOB_X: 1 } }', 'pools.a.env.ONEJOB_X: names that begin with ONEJOB_ are set by onejob itself'],
    ['{ env: { a-b: 1 } }', 'pools.a.env.a-b: is not a valid variable name'],
    ['{ queue: q }', 'warning: pools.a.queue: is not used: "service" is the own queue'],
    ['{ runtime: process, image: x }', 'warning: pools.a.image: is not used: "runtime" is process'],
    ['{ env: { NPM_TOKEN: x } }', 'warning: pools.a.env.NPM_TOKEN: looks like a secret'],
    [
      '{ volumes: ["/var/run/docker.sock:/s"] }',
      'warning: pools.a.volumes[0]: gives every job of the pool all rights over this host',
    ],
  ])('%s', async (pool, line) => {
    const rest = 'state_dir: /state/here\nservices: { s: { type: buildkite, token: { file: /keys/token } } }\n';
    const lines = await folder.check(`pools:\n  a: ${pool}\n${rest}`);
    expect(lines).toEqual([expect.stringContaining(line)]);
  });

  describe('what only this host can tell', () => {
    const warned: readonly (readonly [string, string])[] = [
      ['{ agents: 33, cpus: 2 }', 'warning: pools: "cpus" and "agents" add up to 66 CPUs, but this host has 64'],
      ['{ agents: 3, memory: 512GiB }', 'warning: pools: "memory" and "agents" add up to 1536.0GiB, but this host has 1024.0GiB'],
      ['{ volumes: ["/no/such:/x"] }', 'warning: pools.a.volumes[0]: is /no/such, which does not exist on this host'],
      ['{ caches: ["/no/{name}:/x"], agents: 2, name: "x.{1..}" }', 'warning: pools.a.caches[0]: is /no/x.1, which does not exist'],
      ['{ hooks: /no/hooks }', 'warning: pools.a.hooks: is /no/hooks, which does not exist'],
    ];

    it.each(warned)('%s', async (pool, line) => {
      const lines = await folder.check(`pools:\n  a: ${pool}\n`, { look: lookAtHost });
      expect(lines).toContainEqual(expect.stringContaining(line));
    });

    it('is not said of the config of another host', async () => {
      for (const [pool] of warned) expect((await folder.check(`pools:\n  a: ${pool}\n`)).join()).not.toMatch(/this host/);
    });

    it('says nothing of what is there, of named caches, and of slots that nobody can count yet', async () => {
      folder.write('data', '');
      const volumes = `volumes: ["${folder.path}/data:/x"], caches: ["ccache:/y"]`;
      expect(await folder.check(`pools:\n  a: { ${volumes} }\n`, { look: lookAtHost })).toEqual([]);
      const perDevice = 'agents: per-device, devices: 1, caches: ["/no/{name}:/x"]';
      expect(await folder.check(`pools:\n  a: { ${perDevice} }\n`, { look: lookAtHost })).toEqual([]);
    });
  });

  it('two pools whose slots would have the same name', async () => {
    const lines = await folder.check('pools:\n  a: { name: "x.{1..}", agents: 3 }\n  b: { name: x.3 }\n');
    expect(lines).toEqual([
      'config.yml:3:14: pools.b.name: "x.3" gives a slot the name "x.3", which another slot already has: the names of pools.a and pools.b must differ',
    ]);
  });

  it('a name in defaults that all pools share', async () => {
    const lines = await folder.check('defaults: { name: "x.{n}" }\npools: { a: {}, b: {} }\n');
    expect(lines).toEqual([expect.stringMatching(/^config\.yml:1:19: pools\.b\.name: .* pools\.a and pools\.b must differ$/)]);
  });

  it('a key that is wrong itself brings no second problem', async () => {
    expect(await folder.check('pools: { a: { agents: per-device, devices: { cuont: 1 } } }\n')).toHaveLength(1);
  });
});

describe('include', () => {
  it('included files are read too; the including file overrides them', async () => {
    mkdirSync(join(folder.path, 'more'), { recursive: true });
    folder.write(
      'more/a.yml',
      'on_stop: drain\nkeep_jobs: 1d\ndefaults: { cpus: 1, env: { A: 1 } }\npools: { lab: { agents: 3 } }\n',
    );
    const { config, files } = await folder.load(
      'include: more/a.yml\non_stop: leave\ndefaults: { env: { B: 2 } }\npools: { own: {} }\n',
    );
    expect(config).toMatchObject({ onStop: 'leave', keepJobs: 86_400_000 });
    expect(config.pools.map((pool) => [pool.name, pool.agents, pool.recipe.cpus, pool.recipe.env])).toEqual([
      ['lab', 3, 1, { A: '1', B: '2' }],
      ['own', 1, 1, { A: '1', B: '2' }],
    ]);
    expect(files).toHaveLength(2);
  });

  it('a problem in an included file has that file and its line', async () => {
    folder.write('b.yml', 'pools:\n  lab: { agnets: 3 }\n');
    expect(await folder.check('include: [b.yml]\n')).toEqual(['b.yml:2:10: pools.lab.agnets: unknown key; did you mean "agents"?']);
  });

  it.runIf(process.getuid?.() === 0)('of a file that belongs to somebody else only the lines are told', async () => {
    folder.write('b.yml', 'root:$6$hash:20315:0:99999:7:::\npools: { lab: { agents: hush } }\n');
    chownSync(join(folder.path, 'b.yml'), 4_000, 4_000);
    const lines = await folder.check('include: [b.yml]\n');
    expect(lines.join('\n')).not.toMatch(/hash|hush|lab/);
    expect(lines[0]).toBe(
      'b.yml:1:1: is invalid here; its text is not shown, because this file belongs to a different user than the file that includes it',
    );
    chownSync(join(folder.path, 'config.yml'), 4_000, 4_000);
    expect((await folder.check('include: [b.yml]\n')).join('\n')).toContain('hush');
    chownSync(join(folder.path, 'config.yml'), 0, 0);
  });

  it.each([
    ['include: [no.yml]\n', 'config.yml:1:11: include[0]: no.yml does not exist'],
    ['include: config.yml\n', 'config.yml:1:10: include: config.yml is this file itself'],
    ['include: [c.yml, ./c.yml]\n', 'config.yml:1:18: include[1]: ./c.yml is included twice'],
    ['include: d.yml\n', 'd.yml:1:1: include: this file is included by config.yml, so it cannot include others; list them there'],
    ['include: 7\npools: [', 'config.yml:2:9: not valid YAML'],
    ['include: { a: b }\n', 'config.yml:1:10: include: expected a path, or a list of paths, found a map'],
    ['include: c.yml\npools: { c: {} }\n', 'config.yml:2:10: pools.c: is also written in c.yml; keep one of the two'],
    ['include: e.yml\n', 'e.yml:1:1: expected keys such as "pools:", found a list'],
  ])('%j', async (file, line) => {
    folder.write('c.yml', 'pools: { c: {} }\n');
    folder.write('d.yml', 'include: config.yml\n');
    folder.write('e.yml', '- a\n');
    expect(await folder.check(file)).toEqual([expect.stringContaining(line)]);
  });
});

describe('secrets', () => {
  const file = (path: string) => `services: { s: { type: buildkite, token: { file: ${path}, expires: 2030-01-31 } } }\n`;
  const now = Date.UTC(2029, 0, 1);

  it('a file that is not there is a problem with its path', async () => {
    const lines = await folder.check(file('/nowhere/token'), { look: lookAtHost, now });
    expect(lines).toEqual(['config.yml:1:50: services.s.token.file: /nowhere/token does not exist']);
  });

  it('a file that others can read, and one that soon expires, are warnings', async () => {
    const open = folder.write('open', 'x', 0o644);
    const lines = await folder.check(file(open), { look: lookAtHost, now: Date.UTC(2030, 0, 30) });
    expect(lines).toEqual(
      [
        'config.yml:1:50: warning: services.s.token.file: open can be used by every user of this host (mode 644); run "chmod 600 open"',
        expect.stringContaining('warning: services.s.token.file: expires on 2030-01-31, in a day'),
      ].toSorted(),
    );
  });

  it('a client of the manager need not see them', async () => {
    expect(await folder.check(file('/nowhere/token'), { look: null })).toEqual([]);
  });
});

describe('the file of 18 agents', () => {
  const example = readFileSync(new URL('../../docs/examples/eighteen-agents.yml', import.meta.url), 'utf8');

  it('is right, with its secrets in place', async () => {
    folder.write('buildkite.token', 'a');
    folder.write('azure.pat', 'b');
    folder.write('secrets.private.key', await makeKey('x25519', 'for a test'));
    const here = example.replaceAll('/etc/onejob/', `${folder.path}/`);
    const { config, errors, warnings } = await folder.load(here, { look: lookAtHost, now: Date.UTC(2026, 0, 1) });
    // The folders of that host are not here.
    expect([...errors, ...warnings.filter(({ message }) => !message.includes('on this host'))].map(formatProblem)).toEqual([]);
    expect(config.pools.map((pool) => [pool.name, pool.agents, pool.devices.count])).toEqual([
      ['upload', 1, 0],
      ['a100', 14, 1],
      ['rtx5000', 1, 1],
      ['multigpu', 1, 2],
      ['lab', 'per-device', 1],
    ]);
    expect(config.pools[0]).toMatchObject({
      imageRecipe: { base: 'ubuntu:24.04' },
      recipe: { env: { JULIA_CPU_THREADS: '1', LD_LIBRARY_PATH: '' } },
    });
    expect(config.pools[4]?.recipe.mounts[0]).toEqual({
      host: '/data/imagenet',
      container: '/datasets/imagenet',
      readOnly: true,
      variable: 'IMAGENET',
      cache: null,
    });
  });

  it('says which of its secrets are missing', async () => {
    const lines = await folder.check(example.replaceAll('/etc/onejob/', '/nowhere/'), {
      look: lookAtHost,
      now: Date.UTC(2026, 0, 1),
    });
    const errors = lines.filter((line) => !line.includes('on this host'));
    expect(errors.map((line) => line.split(' ').slice(1).join(' '))).toEqual([
      'services.julia.token.file: /nowhere/buildkite.token does not exist',
      'services.azure.token.file: /nowhere/azure.pat does not exist',
      'secrets.key.file: /nowhere/secrets.private.key does not exist',
    ]);
  });
});

it('a service that is the own queue by another name is the own queue', async () => {
  const { config } = await folder.load('services: { o: { type: own-queue } }\npools: { a: { service: o, network: internet } }\n');
  expect(config.pools[0]?.service).toBe('own');
});

it('an image that is chosen, and one that is built, can be had', async () => {
  const { config } = await folder.load(`pools:
  a: { image: auto }
  b: { image: { base: auto, flavour: runtime, distribution: ubuntu22.04 } }
  c: { image: { base: auto, packages: [git] } }
`);
  expect(config.pools[1]).toMatchObject({
    imageRecipe: { base: 'auto', flavour: 'runtime', distribution: 'ubuntu22.04' },
    recipe: { image: null },
  });
});

it('loadConfig throws all problems as one error', async () => {
  const config = folder.write('config.yml', 'on_stop: x\npools: { a: { cpus: -1 } }\n');
  await expect(loadConfig({ types, look: lookAtHost, flags: { config }, env: emptyEnvironment(), host })).rejects.toMatchObject({
    code: 'E_CONFIG',
    retry: false,
    message: expect.stringMatching(/2 problems:\n.*:1:10: on_stop: .*\n.*:2:21: pools\.a\.cpus: /),
    hint: `Fix the problems that are listed, then type "onejob config check ${config}".`,
  });
});

it('says how to check the config that was given, which a plain "config check" would not read', async () => {
  const config = folder.write('bad config.yml', 'pools: { a: { cpus: -1 } }\n');
  const hint = (env: Partial<Environment>, flags: Flags) =>
    loadConfig({ types, look: lookAtHost, flags, env: { ...emptyEnvironment(), ...env }, host }).catch(
      (error: OnejobError) => error.hint,
    );
  expect(await hint({}, { config })).toContain(`"onejob config check '${config}'".`);
  expect(await hint({ config }, {})).toContain(`"onejob config check '${config}'".`);
  mkdirSync(join(folder.path, 'onejob'));
  folder.write('onejob/config.yml', 'pools: { a: { cpus: -1 } }\n');
  expect(await hint({ configHome: folder.path }, {})).toContain('"onejob config check".');
});

describe('loadPaths, for those who only look', () => {
  it('is not kept from a manager by a mistake in a pool', async () => {
    const config = folder.write('config.yml', 'state_dir: /s\npools: { a: { agnets: 1 } }\n');
    const paths = await loadPaths({ flags: { config }, env: emptyEnvironment() });
    expect([paths.stateDir.path, paths.socket.path]).toEqual(['/s', '/s/onejob.sock']);
  });

  const unclosed = 'pools: { a: { agents: 1 }\n';

  it('is not kept from a manager by a syntax error in a file that does not say where it is', async () => {
    const config = folder.write('config.yml', `# state_dir: /var/lib/onejob\n${unclosed}`);
    const paths = await loadPaths({ flags: { config }, env: emptyEnvironment() });
    expect(paths.stateDir.from.source).toBe('default');
  });

  it.each(['state_dir: /s', 'socket: /s/x.sock', 'include: more.yml'])(
    'says so when only the broken file knows: %s',
    async (key) => {
      const config = folder.write('config.yml', `${key}\n${unclosed}`);
      await expect(loadPaths({ flags: { config }, env: emptyEnvironment() })).rejects.toMatchObject({
        code: 'E_CONFIG',
        message: expect.stringContaining('not valid YAML'),
        hint: expect.stringContaining('--state-dir'),
      });
      const named = await loadPaths({ flags: { config }, env: emptyEnvironment({ ONEJOB_STATE_DIR: '/var/s' }) });
      expect([named.stateDir.path, named.socket.path]).toEqual(['/var/s', '/var/s/onejob.sock']);
      const socket = await loadPaths({ flags: { config, socket: '/x/y.sock' }, env: emptyEnvironment() });
      expect(socket.socket.path).toBe('/x/y.sock');
    },
  );

  it('uses what a file says above a broken one that it includes', async () => {
    folder.write('more.yml', unclosed);
    const config = folder.write('config.yml', 'include: more.yml\nstate_dir: /s\n');
    expect((await loadPaths({ flags: { config }, env: emptyEnvironment() })).stateDir.path).toBe('/s');
  });

  it('says when a file that was named is missing, wherever the daemon is', async () => {
    const flags = { config: '/nowhere/config.yml', stateDir: '/s' };
    await expect(loadPaths({ flags, env: emptyEnvironment() })).rejects.toMatchObject({ code: 'E_CONFIG' });
  });

  it('agrees with the whole config', async () => {
    const config = folder.write('config.yml', 'socket: /x/y.sock\n');
    const options = { types, look: lookAtHost, flags: { config }, env: emptyEnvironment({ ONEJOB_STATE_DIR: '/var/s' }), host };
    const { paths } = await checkConfig(options);
    expect(await loadPaths(options)).toEqual(paths);
    expect([paths.stateDir.path, paths.socket.path]).toEqual(['/var/s', '/x/y.sock']);
  });
});
