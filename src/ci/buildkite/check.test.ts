import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../../test/kit/config.ts';
import { lookAtHost } from '../../config/host-look.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const service = (more = '') => `services: { s: { type: buildkite, token: { file: /keys/token }${more && `, ${more}`} } }\n`;
const pool = (more: string) => `pools: { lab: { service: s, ${more} } }\n`;

it('what holds of a service and its pools where little is written', async () => {
  const { config, errors, warnings } = await folder.load(service() + pool('queue: cuda'));
  expect([...errors, ...warnings]).toEqual([]);
  expect(config.services).toEqual([
    {
      name: 's',
      type: 'buildkite',
      endpoint: 'https://agent.buildkite.com/v3',
      token: { kind: 'file', path: '/keys/token', expires: null },
      metricsToken: null,
      pollEvery: 10_000,
      bootTimeout: 60_000,
      holdTimeout: 600_000,
      registration: 'manager',
      agentPackage: { version: '3.137.0', from: null, sha256: null },
    },
  ]);
  expect(config.pools[0]).toMatchObject({
    queue: 'cuda',
    runtime: 'docker',
    stopGrace: 35_000,
    imageRecipe: { base: 'auto' },
    isolation: 'full',
    hooks: null,
    plugins: null,
    cacheFor: 'slot',
    cacheLimit: 50 * 2 ** 30,
    trust: {
      forks: 'run-without-secrets',
      pipelines: null,
      branches: null,
      others: 'run-without-secrets',
      repositories: null,
      tags: null,
      sources: null,
      triggered: 'as-others',
      caches: 'none',
      image: null,
      network: 'internet',
    },
  });
});

it('and where all is written', async () => {
  const all = service(
    'metrics_token: { env: COUNTS }, endpoint: "https://bk.lab/api/v3//", poll: 2s, boot_timeout: 90s, hold_timeout: 1h, agent: { from: /opt/buildkite-agent, version: 4.0.3 }',
  );
  const lab = pool(
    'hooks: /srv/hooks, plugins: /srv/plugins, cache_limit: 2GiB, cpus: 2.5, cpu_env: JULIA_CPU_THREADS, isolation: none, runtime: process, trust: { forks: refuse, pipelines: [app, "acme/lib-*"], branches: [main, "release/**"], others: refuse, caches: private, network: internet }',
  );
  const { config, errors, warnings } = await folder.load(all + lab);
  expect([...errors, ...warnings]).toEqual([]);
  expect(config.services[0]).toMatchObject({
    metricsToken: { kind: 'env', variable: 'COUNTS' },
    endpoint: 'https://bk.lab/api/v3',
    pollEvery: 2000,
    bootTimeout: 90_000,
    holdTimeout: 3_600_000,
    agentPackage: { from: '/opt/buildkite-agent', version: '4.0.3' },
  });
  expect(config.pools[0]).toMatchObject({
    hooks: '/srv/hooks',
    plugins: '/srv/plugins',
    cacheFor: 'slot',
    cacheLimit: 2 ** 31,
    isolation: 'none',
    runtime: 'process',
    recipe: { env: { JULIA_CPU_THREADS: '2' } },
    trust: {
      forks: 'refuse',
      others: 'refuse',
      caches: 'private',
      network: 'internet',
      image: null,
      pipelines: ['app', 'acme/lib-*'],
      branches: ['main', 'release/**'],
    },
  });
});

it.each([
  ['from: image', null],
  ['from: /opt/buildkite-agent', null],
  ['from: /srv/buildkite-agent-linux-amd64-3.140.1.tar.gz', '3.140.1'],
  ['from: /srv/agent.tar.gz, version: 4.1.0', '4.1.0'],
  ['version: 4.1.0', '4.1.0'],
])('an agent of an owner has the version that it has: %s', async (agent, version) => {
  const { config, errors } = await folder.load(service(`agent: { ${agent} }`));
  expect(errors).toEqual([]);
  expect(config.services[0]).toMatchObject({ agentPackage: { version } });
});

describe('keys of a service that do not go together, or are not what they should be', () => {
  it.each([
    ['mode: acquire', 'services.s.mode: was removed: onejob now reserves jobs through the Stacks API'],
    ['binding: early', 'services.s.binding: was removed'],
    ['poll: 1s', 'services.s.poll: must be at least 2s'],
    ['endpoint: agent.buildkite.com', 'services.s.endpoint: expected a web address such as'],
    ['endpoint: "https://me:hunter2@x/v3"', 'services.s.endpoint: contains a user or a password'],
    [
      'endpoint: "http://bk.lab/v3"',
      'warning: services.s.endpoint: is not encrypted: onejob would send the token in clear text to bk.lab',
    ],
    ['metrics_token: hunter2', 'services.s.metrics_token: name the place of the secret, not its value'],
    ['agent: { version: latest }', 'services.s.agent.version: "latest" is not a version such as "3.137.0"'],
    ['agent: { form: image }', 'services.s.agent.form: unknown key; did you mean "from"?'],
    ['agent: { from: "http://x/a.tar.gz" }', 'services.s.agent.from: "http://x/a.tar.gz" is not an https address'],
    ['agent: { from: "https://x/a.tar.gz" }', 'services.s.agent.from: does not contain the version in its name'],
    ['agent: { from: "https://x/a-3.1.2.tar.gz" }', 'warning: services.s.agent.from: has no "sha256": '],
    ['agent: { from: /a/../b }', 'services.s.agent.from: must not contain ".."'],
    [`agent: { from: image, sha256: ${'ab'.repeat(32)} }`, 'warning: services.s.agent.sha256: is not used: "from" is image'],
  ])('%s', async (keys, line) => {
    const lines = await folder.check(service(keys));
    expect(lines).toContainEqual(expect.stringContaining(line));
    expect(lines.join('\n')).not.toContain('hunter2');
  });

  it('a service on this host needs no encryption, and the default package no checksum', async () => {
    expect(await folder.check(service('endpoint: "http://127.0.0.1:1234/v3", agent: { version: 3.137.0 }'))).toEqual([]);
  });
});

describe('pools that its agents could not work in', () => {
  it.each([
    ['network: none', 'pools.lab.network: is "none", but "service" is s, whose agents must reach the service'],
    ['standby: false, devices: 1', 'pools.lab.standby: is false, but "devices" are asked for and "service" is s'],
    [
      'runtime: process, trust: { forks: refuse, others: refuse }',
      'warning: pools.lab.runtime: is process, which keeps credentials from other jobs only as root with bubblewrap',
    ],
    [
      'tags: "gpu=a100,queue=cuda"',
      'pools.lab.tags: contain "queue=cuda": a pool has one queue, and a separate key for it; write queue: cuda',
    ],
    ['tags: { queue: cuda }', 'write queue: cuda'],
    ['tags: queue', 'write queue: NAME'],
    ['tags: { gpu: "a100,h100" }', 'pools.lab.tags: contain "gpu=a100,h100", but "service" is s, where a comma ends a tag'],
    ['queue: "a,b"', 'pools.lab.queue: is "a,b", but "service" is s'],
    ['hooks: hooks', 'pools.lab.hooks: must be absolute'],
    ['hooks: /keys', 'pools.lab.hooks: would show jobs the secret file of services.s.token, /keys/token'],
    ['plugins: /keys/token', 'pools.lab.plugins: would show jobs the secret file'],
  ])('%s', async (keys, line) => {
    expect(await folder.check(service() + pool(keys))).toEqual([expect.stringContaining(line)]);
  });

  it.each([
    'tags: "cap=sm_80,cap=recent,multigpu,queued=1"',
    'timeout: 2h',
    'standby: false',
    'read_only: true',
    'runtime: process, isolation: none',
    'runtime: best',
  ])('but with %s they can', async (keys) => expect(await folder.check(service() + pool(keys))).toEqual([]));
});

describe('agents that make themselves known', () => {
  const inAgent = (more = '') => service(`registration: in-agent${more}`);
  const strict = 'forks: refuse, others: refuse';
  const warned = expect.stringContaining(
    'warning: services.s.registration: is in-agent: the agent token enters every sandbox, and every job can read it',
  );

  it('hold the token where nobody but trusted people has jobs, which has to be written', async () => {
    const file = inAgent() + pool(`hooks: /srv/hooks, trust: { ${strict} }`);
    const { config, errors } = await folder.load(file);
    expect(errors).toEqual([]);
    expect(config.services[0]).toMatchObject({ registration: 'in-agent' });
    expect(await folder.check(file)).toEqual([warned]);
  });

  it.each([
    [
      '',
      'pools.lab.trust: accepts untrusted jobs, because of "forks" and "others", but "service" is s with "registration: in-agent"',
    ],
    ['trust: { forks: refuse }', 'pools.lab.trust: accepts untrusted jobs, because of "others", but'],
    ['trust: { others: refuse }', 'write trust: { forks: refuse, others: refuse }, and build no forks in pipelines of this queue'],
    [`trust: { ${strict}, branches: [main] }`, 'pools.lab.trust.branches: cannot be enforced: "service" is s'],
    [`trust: { ${strict}, tags: ["v*"] }`, 'pools.lab.trust.tags: cannot be enforced'],
    [`trust: { ${strict}, pipelines: [app] }`, 'restrict at the service which pipelines use this queue'],
    [`trust: { ${strict}, sources: [webhook] }`, 'pools.lab.trust.sources: cannot be enforced'],
    [`trust: { ${strict}, repositories: ["github.com/acme/*"] }`, 'pools.lab.trust.repositories: cannot be enforced'],
    [`trust: { ${strict}, triggered: trust }`, 'pools.lab.trust.triggered: cannot be enforced'],
  ])('and nowhere else: %s', async (keys, line) => {
    const { errors } = await folder.load(inAgent() + pool(keys === '' ? 'queue: q' : keys));
    expect(errors).toHaveLength(1);
    expect(await folder.check(inAgent() + pool(keys === '' ? 'queue: q' : keys))).toEqual(
      expect.arrayContaining([warned, expect.stringContaining(line)]),
    );
  });

  it('have no secrets opened, and no job reserved', async () => {
    const key = 'secrets: { key: { file: /keys/private } }\n';
    const [line = '', ...more] = (await folder.check(inAgent() + key)).filter((one) => !one.includes('warning'));
    expect(more).toEqual([]);
    expect(line).toContain('secrets.key: would decrypt nothing: agents of s take their jobs themselves ("registration: in-agent")');
    const both =
      'services: { s: { type: buildkite, token: { env: T }, registration: in-agent }, t: { type: buildkite, token: { env: U } } }\n';
    expect(await folder.check(both + key)).toEqual([
      warned,
      expect.stringContaining('warning: services.s.registration: is in-agent: "secrets.key" decrypts no secrets for its jobs'),
    ]);
    expect(await folder.check(inAgent(', hold_timeout: 1h'))).toEqual([
      warned,
      expect.stringContaining(
        'warning: services.s.hold_timeout: is not used: with "registration: in-agent" onejob reserves no jobs',
      ),
    ]);
    expect(await folder.check(service('registration: auto'))).toEqual([
      expect.stringContaining('services.s.registration: expected "manager" or "in-agent", found "auto"'),
    ]);
  });
});

describe('a number of threads in the environment', () => {
  const one = (keys: string) => folder.load(`pools: { a: { ${keys} } }\n`);

  it.each([
    ['0.5', '1'],
    ['1', '1'],
    ['3.99', '3'],
    ['16', '16'],
  ])('of %s CPUs is %s', async (cpus, threads) => {
    const { config, errors } = await one(`cpus: ${cpus}, cpu_env: OMP_NUM_THREADS, env: { A: 1 }`);
    expect(errors).toEqual([]);
    expect(config.pools[0]?.recipe.env).toEqual({ A: '1', OMP_NUM_THREADS: threads });
  });

  it.each([
    ['cpu_env: T', 'pools.a.cpu_env: is T, but "cpus" is not set'],
    ['cpus: none, cpu_env: T', 'pools.a.cpu_env: is T, but "cpus" is not set'],
    ['cpus: 2, cpu_env: T, env: { T: 4 }', 'pools.a.cpu_env: is T, which "env" sets too'],
    ['cpus: 2, cpu_env: 2T', 'pools.a.cpu_env: "2T" is not the name of a variable'],
    ['cpus: 2, cpu_env: ONEJOB_X', 'pools.a.cpu_env: names that begin with ONEJOB_ are set by onejob itself'],
    ['cpus: 2, cpu_env: T, volumes: ["/d:/d:T"]', 'pools.a.volumes[0]: sets the variable T, which cpu_env already sets'],
  ])('%s is invalid', async (keys, line) => {
    expect(await folder.check(`pools: { a: { ${keys} } }\n`)).toEqual([expect.stringContaining(line)]);
  });

  it('a pool can take back what the defaults say', async () => {
    const file = 'defaults: { cpu_env: T }\npools: { a: { cpus: 2 }, b: { cpu_env: none } }\n';
    const { config, errors } = await folder.load(file);
    expect(errors).toEqual([]);
    expect(config.pools.map(({ recipe }) => recipe.env)).toEqual([{ T: '2' }, {}]);
  });
});

describe('caches by name', () => {
  it('have a folder for each slot below the state directory, where no other volume may be', async () => {
    const { config, errors } = await folder.load(
      'state_dir: /state\npools: { a: { caches: ["depot:/root/.julia:DEPOT", "/var/c/{name}:/c:ro"] } }\n',
    );
    expect(errors).toEqual([]);
    expect(config.pools[0]?.recipe.mounts).toEqual([
      {
        host: '/state/caches/a/{name}/depot',
        container: '/root/.julia',
        readOnly: false,
        variable: 'DEPOT',
        cache: { name: 'depot' },
      },
      { host: '/var/c/{name}', container: '/c', readOnly: true, variable: null, cache: { name: null } },
    ]);
    const lines = await folder.check('state_dir: /state\npools: { a: { volumes: ["/state/caches/a/x/depot:/d"] } }\n');
    expect(lines).toEqual([expect.stringContaining('pools.a.volumes[0]: shows jobs the state of onejob')]);
  });

  it('no slot is called as the folder of untrusted jobs is', async () => {
    expect(await folder.check('pools: { a: { name: untrusted, caches: ["depot:/d"] } }\n')).toEqual([
      expect.stringContaining('pools.a.name: is untrusted, which is reserved for the folder with the caches of untrusted jobs'),
    ]);
    expect(await folder.check('pools: { a: { name: untrusted } }\n')).toEqual([]);
  });
});

describe('its secrets', () => {
  const both = service('metrics_token: { file: /keys/counts }').concat('secrets: { key: { file: /keys/private } }\n');

  it('no volume may show one, and one that is not there is said', async () => {
    const { config } = await folder.load(both);
    const keys = ['secrets.key', 'services.s.token', 'services.s.metrics_token'];
    expect(config.secrets.map(([name]) => name)).toEqual(keys);
    for (const file of ['private', 'token', 'counts']) {
      const [line] = await folder.check(both + pool(`volumes: ["/keys/${file}:/x"]`));
      expect(line).toContain('would show jobs the secret file');
    }
    const lines = await folder.check(both, { look: lookAtHost });
    for (const key of keys) expect(lines).toContainEqual(expect.stringMatching(`: ${key}.file: /keys/\\w+ does not exist`));
  });

  it('reports an invalid key file by line, before any job needs it, and shows nothing of it', async () => {
    const key = folder.write('bad.key', '# mine\nAGE-SECRET-KEY-1HUNTER2\n');
    folder.write('tok', 'bkct_x');
    const file = (name: string) =>
      `services: { s: { type: buildkite, token: { file: ${folder.path}/tok } } }\nsecrets: { key: { file: ${name} } }\n`;
    const [line = '', ...more] = await folder.check(file(key), { look: lookAtHost });
    expect(more).toEqual([]);
    expect(line).toMatch(/: secrets\.key\.file: file bad\.key cannot be used: line 2: is a damaged private key/);
    expect(line).not.toContain('HUNTER2');
    expect(await folder.check(file(key))).toEqual([]);
  });

  it('a pool of a service with a problem of its own is not told that it has no use for what only Buildkite knows', async () => {
    const lines = await folder.check(
      `services: { s: { type: buildkite, tokn: { file: /t } } }\n${pool('hooks: /h, trust: { forks: refuse }')}`,
    );
    expect(lines.join('\n')).not.toContain('is not used');
    expect(lines.join('\n')).toContain('did you mean "token"?');
    const other = await folder.check(`services: { s: { type: azure-pipelines } }\n${pool('hooks: /h')}`);
    expect(other).toContainEqual(expect.stringContaining('hooks: is not used'));
  });

  it('an encrypted value in the environment of a pool is warned of', async () => {
    const lines = await folder.check(service('') + pool('env: { SECRET_A: "x;y" }'));
    expect(lines).toEqual([
      expect.stringMatching(/warning: pools\.\w+\.env\.SECRET_A: is passed to every job of the pool still encrypted/),
    ]);
  });

  it('a key that nothing could need, and one that others can read, are warnings', async () => {
    const open = folder.write('private.key', 'x', 0o644);
    const lines = await folder.check(`secrets: { key: { file: ${open} } }\n`, { look: lookAtHost });
    expect(lines).toEqual([
      expect.stringContaining('warning: secrets.key: is not used: only jobs of a service of type buildkite'),
      expect.stringContaining('warning: secrets.key.file: private.key can be used by every user of this host (mode 644)'),
    ]);
  });
});
