import { afterAll, describe, expect, it } from 'vitest';
import { Folder } from '../../test/kit/config.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

/** Given this file, exactly these lines. */
const cases: Record<string, [file: string, ...lines: unknown[]]> = {
  'broken YAML': ['pools: [1, 2', expect.stringMatching(/^config\.yml:1:\d+: not valid YAML: Flow sequence/)],
  'an open quote': ['socket: "abc', expect.stringMatching(/^config\.yml:1:\d+: not valid YAML: Missing closing/)],
  'a key twice': ['on_stop: end\non_stop: drain\n', 'config.yml:2:1: on_stop: is already given in line 1; keep one of the two'],
  'a pool twice, and other mistakes': [
    'pools:\n  build: { agnets: 1 }\n  "build": { agents: 2 }\n  test: { agnets: 1 }\non_stpo: end\n',
    expect.stringMatching(/^config\.yml:2:12: pools\.build\.agnets: unknown key/),
    'config.yml:3:3: pools.build: is already given in line 2; keep one of the two',
    expect.stringMatching(/^config\.yml:4:11: pools\.test\.agnets: unknown key/),
    expect.stringMatching(/^config\.yml:5:1: on_stpo: unknown key/),
  ],
  'a key twice behind an alias': [
    'defaults: &d\n  agents: 1\n  agents: 2\npools: { a: *d, b: *d }\n',
    'config.yml:3:3: defaults.agents: is already given in line 2; keep one of the two',
  ],
  'a tab': ['pools:\n\tlab: {}\n', 'config.yml:2:1: YAML is not indented with tabs; use spaces'],
  'two documents': [
    'on_stop: end\n---\non_stop: end\n',
    'config.yml:2:1: a config is one document; remove the "---" that begins the second',
  ],
  'a tag': [
    'on_stop: !secret end\n',
    'config.yml:1:10: tags such as !name are not used in a config; quote the value if it begins with "!"',
  ],
  'a merge key': [
    'pools:\n  a: { <<: { agents: 1 } }',
    'config.yml:2:8: pools.a.<<: YAML 1.2 has no merge keys; put what pools share under "defaults"',
  ],
  'a key that is a list': ['? [a, b]\n: 1\n', 'config.yml:1:3: a key must be a plain word'],
  'an alias without an anchor': [
    'on_stop: *no\n',
    'config.yml:1:10: on_stop: *no refers to an anchor that is not defined above it',
  ],
  'an alias without an anchor for a whole value': [
    'defaults: { image: *no }\n',
    'config.yml:1:20: defaults.image: *no refers to an anchor that is not defined above it',
  ],
  'a name that no Engine takes for an image': [
    'pools:\n  lab: { image: "Bad:Image:x" }\n',
    'config.yml:2:17: pools.lab.image: "Bad:Image:x" is not an image such as "debian:stable-slim", "auto" or a map',
  ],
  'an empty file': ['', 'config.yml: warning: is empty; onejob runs as if there were no file'],
  'only comments': ['# nothing\n', 'config.yml: warning: is empty; onejob runs as if there were no file'],
  'a list for the whole file': ['- pools\n', 'config.yml:1:1: expected keys such as "pools:", found a list'],
  'a word for the whole file': ['pools\n', 'config.yml:1:1: expected keys such as "pools:", found a single value'],
  'a list for pools': ['pools: [a]\n', 'config.yml:1:8: pools: expected a map, found a list'],
  'a list for a pool': ['pools:\n  lab: [a]\n', 'config.yml:2:8: pools.lab: expected a map of keys, found a list'],
  'a map for a list': [
    'pools:\n  lab: { volumes: { a: b } }\n',
    'config.yml:2:19: pools.lab.volumes: expected a list, found a map',
  ],
  'no pool at all': ['pools: {}\n', 'config.yml:1:1: pools: is empty: onejob would run nothing; write a pool, or remove the key'],
  'a key without a value': [
    'pools:\n  lab:\n    cpus:\n',
    'config.yml:3:5: pools.lab.cpus: is empty; give it a value or remove the key',
  ],
  'an unknown key on top': ['pool: {}\n', 'config.yml:1:1: pool: unknown key; did you mean "pools"?'],
  'an unknown key in a pool': [
    'pools:\n  lab:\n    agnets: 2\n',
    'config.yml:3:5: pools.lab.agnets: unknown key; did you mean "agents"?',
  ],
  'an unknown key in defaults': [
    'defaults: { shmSize: 1GiB }\n',
    'config.yml:1:13: defaults.shmSize: unknown key; did you mean "shm_size"?',
  ],
  'an unknown key in devices': [
    'defaults: { devices: { modle: A100 } }\n',
    'config.yml:1:24: defaults.devices.modle: unknown key; did you mean "model"?',
  ],
  'an unknown key in an image': [
    'defaults: { image: { base: a, package: [] } }\n',
    'config.yml:1:31: defaults.image.package: unknown key; did you mean "packages"?',
  ],
  'an unknown key in unsafe': [
    'defaults: { unsafe: { priviledged: true } }\n',
    'config.yml:1:23: defaults.unsafe.priviledged: unknown key; did you mean "privileged"?',
  ],
  'an unknown key in disk': ['disk: { minfree: 10% }\n', 'config.yml:1:9: disk.minfree: unknown key; did you mean "min_free"?'],
  'an unknown key in a service': [
    'services: { b: { type: buildkite, token: { env: T }, tokn: 1 } }',
    'config.yml:1:54: services.b.tokn: unknown key; did you mean "token"?',
  ],
  'an unknown key in a secret': [
    'secrets: { key: { exec: pass } }',
    'config.yml:1:25: secrets.key.exec: unknown key; name the place of the secret, not its value: { file: /path } or { env: NAME }, and its last day with expires: YYYY-MM-DD',
  ],
  'a pool key on top': ['cpus: 2\n', 'config.yml:1:1: cpus: unknown key here; it belongs to a pool or to "defaults"'],
  'a top key in a pool': [
    'defaults: { on_stop: end }\n',
    'config.yml:1:13: defaults.on_stop: unknown key here; it belongs to the top level of the file',
  ],
  'a key of Slurm, one level too high': [
    'pools: { a: { partition: gpu } }\n',
    'config.yml:1:15: pools.a.partition: unknown key here; it belongs to the pool\'s "slurm": slurm: { partition: … }',
  ],
  'GPUs under the name that Slurm has for them': [
    'pools: { a: { gpus: 1 } }\n',
    'config.yml:1:15: pools.a.gpus: unknown key; a pool asks for GPUs with "devices"',
  ],
  'the beginning of a key': ['pools: { a: { que: gpu } }\n', 'config.yml:1:15: pools.a.que: unknown key; did you mean "queue"?'],
  ...Object.fromEntries(
    ['endpoint', 'token'].map((key) => [
      `${key}, a key of a service, in a pool`,
      [
        `pools: { a: { ${key}: x } }\n`,
        `config.yml:1:15: pools.a.${key}: unknown key here; it belongs to the service that the pool names, under "services"`,
      ] as const,
    ]),
  ),
  'a key of a pool in a service': [
    'services: { b: { type: buildkite, token: { file: /t }, cpus: 2 } }\n',
    'config.yml:1:56: services.b.cpus: unknown key here; it belongs to a pool or to "defaults"',
  ],
  'a key nobody knows': ['disk: { colour: red }\n', 'config.yml:1:9: disk.colour: unknown key; expected one of: min_free'],
  'a duration without a unit': [
    'keep_jobs: 10\n',
    'config.yml:1:12: keep_jobs: "10" has no unit; write "10s", "10m", "10h" or "10d"',
  ],
  'a size in letters of others': [
    'log_limit: 64m\n',
    'config.yml:1:12: log_limit: "64m" has an unknown unit; write for example "64MiB" (B, KiB, MiB, GiB, TiB)',
  ],
  'a share without percent': [
    'disk: { min_free: 0.1 }\n',
    'config.yml:1:19: disk.min_free: "0.1" is not a share; write a percentage from "0%" to "100%"',
  ],
  'a share over all': [
    'disk: { min_free: 101% }\n',
    'config.yml:1:19: disk.min_free: "101%" is not a share; write a percentage from "0%" to "100%"',
  ],
  'a negative duration': ['defaults: { timeout: -5m }\n', 'config.yml:1:22: defaults.timeout: "-5m" is negative'],
  'a negative size': ['defaults: { memory: -1GiB }\n', 'config.yml:1:21: defaults.memory: "-1GiB" is negative'],
  'a negative number': [
    'defaults: { agents: -1 }\n',
    'config.yml:1:21: defaults.agents: must be from 0 to 512, or "per-device", found -1',
  ],
  'a broken number': [
    'defaults: { agents: 1.5 }\n',
    'config.yml:1:21: defaults.agents: expected a whole number or "per-device", found 1.5',
  ],
  'no number': ['defaults: { cpus: .nan }\n', 'config.yml:1:19: defaults.cpus: expected a number, found NaN'],
  'a word for a truth': ['defaults: { standby: yes }\n', 'config.yml:1:22: defaults.standby: expected true or false, found "yes"'],
  'a word that is not one of them': [
    'on_stop: stop\n',
    'config.yml:1:10: on_stop: expected "end", "drain" or "leave", found "stop"',
  ],
  'memory that no sandbox starts with': [
    'defaults: { memory: 1MiB }\n',
    'config.yml:1:21: defaults.memory: must be at least 6MiB, found "1MiB"',
  ],
  'a relative path': ['state_dir: state\n', 'config.yml:1:12: state_dir: must be absolute, found "state"'],
  'a bad pool name': [
    'pools: { "a/b": { name: x } }\n',
    'config.yml:1:10: pools.a/b: a name is 1 to 32 letters, digits, "-" or "_", and begins with a letter or a digit',
  ],
  'an unknown service': [
    'pools: { a: { service: juila } }\nservices: { julia: { type: own-queue } }\n',
    'config.yml:1:24: pools.a.service: "services" has no "juila"; did you mean "julia"?',
  ],
  'an unknown type of service': [
    'services: { a: { type: buildkit } }\n',
    'config.yml:1:24: services.a.type: unknown service type; did you mean "buildkite"?',
  ],
  'a service without a type': [
    'services: { a: {} }\n',
    'config.yml:1:13: services.a: has no "type"; expected one of: own-queue, azure-pipelines, buildkite, gitea, github, gitlab',
  ],
  'a service without what it needs': [
    'services: { a: { type: azure-pipelines } }\n',
    'config.yml:1:13: services.a: "url" is missing; a service of type azure-pipelines needs it',
    'config.yml:1:13: services.a: "token" or "principal" is missing; a service of type azure-pipelines needs one of them',
  ],
  'a service that takes the name of the own queue': [
    'services: { own: { type: own-queue } }\n',
    'config.yml:1:13: services.own: "own" is the name of the own queue; choose another',
  ],
};

describe('each mistake is told with its place and what to do', () => {
  for (const [name, [file, ...lines]] of Object.entries(cases)) {
    it(name, async () => expect(await folder.check(file)).toEqual(lines));
  }
});

describe('files that are not a config', () => {
  it('a byte order mark is not a mistake, nor are Windows line ends', async () => {
    const { config, errors } = await folder.load('\uFEFFpools:\r\n  lab: { agents: 3 }\r\n');
    expect(errors).toEqual([]);
    expect(config.pools.map((pool) => pool.agents)).toEqual([3]);
  });

  it('Latin-1', async () => {
    expect(await folder.check(new Uint8Array([0x61, 0x3a, 0x20, 0xe4, 0x0a]))).toEqual(['config.yml: is not UTF-8 text']);
  });

  it('over 1 MiB', async () => {
    const lines = await folder.check(`# ${'x'.repeat(1024 * 1024)}\n`);
    expect(lines).toEqual(['config.yml: is larger than 1 MiB (1048579 bytes); a config is a few pages of text']);
  });

  it('just under 1 MiB is read', async () => {
    expect(await folder.check(`on_stop: end\n${`# ${'x'.repeat(97)}\n`.repeat(10_000)}`)).toEqual([]);
  });

  it('a hundred thousand brackets', async () => {
    const [line] = await folder.check('['.repeat(100_000));
    expect(line).toMatch(/nested too deeply|not valid YAML/);
  });

  it('a bomb of aliases', async () => {
    const names = 'abcdefghij'.split('');
    const bomb = names.map((name, i) => `${name}: &${name} [${Array(10).fill(i === 0 ? 'x' : `*${names[i - 1]}`)}]`).join('\n');
    const lines = await folder.check(bomb);
    expect(lines.some((line) => line.includes('aliases add more than 10000 values, or contain themselves'))).toBe(true);
  });

  it('an alias that contains itself', async () => {
    const lines = await folder.check('defaults: &a { env: *a }\n');
    expect(lines.some((line) => line.includes('aliases add more than 10000 values, or contain themselves'))).toBe(true);
  });

  it('a folder, and a file that is not there', async () => {
    const named = { flags: { config: folder.path } };
    expect(await folder.check('', named)).toEqual([`${folder.path}: is not a file (named by --config)`]);
    const lines = await folder.check('', { flags: { config: 'no.yml' }, cwd: folder.path });
    expect(lines).toEqual(['no.yml: does not exist (named by --config)']);
  });
});

describe('what stands where a secret belongs', () => {
  it.each([
    'services: { a: { type: buildkite, token: hunter2 } }',
    'services: { a: { type: buildkite, token: [hunter2] } }',
    'services: { a: { type: buildkite, token: { file: hunter2 } } }',
    'services: { a: { type: buildkite, token: { env: "hunter2!" } } }',
    'services: { a: { type: buildkite, token: { file: /x, expires: hunter2 } } }',
    'services: { a: { type: buildkite, token: "hunter2 } }',
    'services: { a: { type: buildkite, token: *hunter2 } }'.replace('*', '!'),
  ])('%s: a problem, and the value in no message', async (file) => {
    const lines = await folder.check(file);
    expect(lines.length).toBeGreaterThan(0);
    expect(lines.join('\n')).not.toContain('hunter2');
  });
});

it('many mistakes are told at once, in the order of the file', async () => {
  const lines = await folder.check(
    'on_stop: x\npools:\n  a: { agnets: 1 }\n  b: { cpus: -1, volumes: ["/a", "b:/c"] }\nsokcet: /a\n',
  );
  expect(lines.map((line) => line.split(': ').slice(0, 2).join(' '))).toEqual([
    'config.yml:1:10 on_stop',
    'config.yml:3:8 pools.a.agnets',
    'config.yml:4:14 pools.b.cpus',
    'config.yml:4:28 pools.b.volumes[0]',
    'config.yml:4:34 pools.b.volumes[1]',
    'config.yml:5:1 sokcet',
  ]);
});
