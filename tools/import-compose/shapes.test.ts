/** The ways in which people write agents down with Compose, and what each becomes. */
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { HostRule } from '../../src/cli/compose-import.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { composeOf, type Tried, tryImport, writeFleet } from './fleets.ts';

let home: Scratch;
beforeEach(() => {
  home = scratch();
});
afterEach(() => home[Symbol.dispose]());

async function imported(files: Readonly<Record<string, string>>, rules: readonly HostRule[] = []): Promise<Tried> {
  const root = join(home.path, 'fleet');
  writeFleet(root, files);
  const found = await tryImport(root, rules);
  expect(found.refused).toEqual([]);
  return found;
}
const range = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, at) => from + at);
const gpu = (uuid: string) => `runtime: nvidia\nenvironment:\n  NVIDIA_VISIBLE_DEVICES: "${uuid}"`;

describe('devices that are named twice, and encrypted values', () => {
  const reserved = (id: string) =>
    `runtime: nvidia\ndeploy: { resources: { reservations: { devices: [ { driver: nvidia, device_ids: [ "${id}" ], capabilities: [gpu] } ] } } }\n`;

  test.each([
    ['0', 'MIG-aaaa-1', ['MIG-aaaa-1'], true],
    ['GPU-bbbb-2', 'MIG-aaaa-1', ['MIG-aaaa-1'], true],
    ['0', 'GPU-aaaa-1', ['GPU-aaaa-1'], true],
    ['GPU-bbbb-2', '0', ['GPU-bbbb-2'], false],
  ])('device_ids %s and NVIDIA_VISIBLE_DEVICES=%s', async (id, visible, uuid, said) => {
    const more = `${reserved(id)}environment: { NVIDIA_VISIBLE_DEVICES: "${visible}" }\n`;
    const found = await imported({ 'a/compose.yml': composeOf('a.1', more) });
    expect(Object.values(found.pools())).toMatchObject([{ devices: { uuid } }]);
    expect(found.warnings).toEqual(said ? [expect.stringContaining(`${visible} is named here and ${id} in "device_ids"`)] : []);
  });

  test('an encrypted value is not copied, whatever it begins with', async () => {
    const found = await imported({ 'a/compose.yml': composeOf('a.1', 'environment: { SECRET_A: "/abc=;def" }\n') });
    expect(found.hosts[0]?.config).not.toContain('abc');
    expect(found.warnings).toEqual([expect.stringContaining('SECRET_A is not carried over')]);
  });
});

describe('one agent', () => {
  test('lists, a command as one text, quotes, and a priority as a text', async () => {
    const found = await imported({
      'box/docker-compose.yaml': `services:
  worker:
    image: "buildkite/agent:3-ubuntu"
    runtime: 'nvidia'
    environment:
      - NVIDIA_VISIBLE_DEVICES=GPU-aaaa-1,GPU-aaaa-2
      - NVIDIA_DRIVER_CAPABILITIES=all
      - "EMPTY="
      - OMP_NUM_THREADS=8
    command: buildkite-agent start --tags "queue=big,os=linux,os=any,solo" --name 'box.7' --priority="3" --ping-mode poll-only
    volumes:
      - /data/sets:/sets:ro
      - { type: bind, source: /srv/scratch, target: /scratch }
      - { type: bind, source: /srv/box.7/home, target: /root }
    deploy: { resources: { limits: { cpus: '8', memory: 16g } } }
    shm_size: 512m
    pids_limit: 900
`,
    });
    expect(found.pools()).toEqual({
      solo: {
        name: 'box.7',
        service: 'buildkite',
        queue: 'big',
        agents: 1,
        devices: { count: 2, capabilities: ['graphics', 'video', 'display'], uuid: ['GPU-aaaa-1', 'GPU-aaaa-2'] },
        priority: 3,
        tags: 'os=linux,os=any,solo',
        image: 'buildkite/agent:3-ubuntu',
        cpus: 8,
        cpu_env: 'OMP_NUM_THREADS',
        memory: '16GiB',
        shm_size: '512MiB',
        pids: 900,
        env: { EMPTY: '' },
        caches: ['/srv/{name}/home:/root'],
        volumes: ['/data/sets:/sets', '/srv/scratch:/scratch:rw'],
        trust: { forks: 'run-without-secrets' },
      },
    });
    expect(found.warnings).toEqual([]);
  });

  test('anchors, merge keys, x- parts, extends and an override file', async () => {
    const found = await imported({
      'common/base.yml': `services:\n  gpu:\n    image: reg.example.org/a:1\n    env_file: ./agent.env\n    volumes: [ "./hooks:/hooks:ro" ]\n    environment: { A: 1, B: 2 }\n`,
      'm.1/compose.yml': `x-common: &common
  runtime: nvidia
services:
  buildkite:
    <<: *common
    extends: { file: ../common/base.yml, service: gpu }
    environment: [ B=3, NVIDIA_VISIBLE_DEVICES=GPU-bbbb-1 ]
    command: [ start, --name=m.1, --hooks-path=/hooks, "--tags=queue=q" ]
`,
      'm.1/compose.override.yml': 'services:\n  buildkite:\n    environment: [ C=4 ]\n',
    });
    const hooks = join(home.path, 'fleet/common/hooks');
    expect(found.pools().q).toMatchObject({
      devices: { count: 1, uuid: ['GPU-bbbb-1'] },
      image: 'reg.example.org/a:1',
      env: { A: 1, B: 3, C: 4 },
      hooks,
    });
    expect(found.pools().q).not.toHaveProperty('volumes');
    expect(found.hosts[0]?.config).toContain('common/agent.env');
  });

  test('what the variables of the agent say, unless the command says otherwise', async () => {
    const environment =
      'BUILDKITE_AGENT_NAME: nine\nBUILDKITE_AGENT_TAGS: "queue=v,a=b"\nBUILDKITE_AGENT_PRIORITY: 9\nBUILDKITE_GIT_CLONE_FLAGS: -v';
    const found = await imported({
      'v/compose.yml': `services:\n  buildkite:\n    image: x/y\n    environment:\n${environment.replaceAll(/^/gm, '      ')}\n    command: start --priority 2 --no-plugins\n`,
    });
    const env = { BUILDKITE_GIT_CLONE_FLAGS: '-v', BUILDKITE_NO_PLUGINS: 'true' };
    expect(found.pools().v).toMatchObject({ name: 'nine', queue: 'v', tags: 'a=b', priority: 2, env });
  });

  test('no value that looks like a secret is taken, whatever its name', async () => {
    const found = await imported({
      's/.env': 'REGISTRY=https://u:p4ss-canary@reg.example.org\nBASE=x/y\n',
      's/compose.yml': `services:
  buildkite:
    image: "\${BASE}"
    environment:
      MYSQL_PWD: p4ss-canary
      DB_PASS: p4ss-canary
      DATABASE: "postgres://u:p4ss-canary@db.example.org/x"
      NPM: npm_p4sscanary0123456789
      FROM_FILE: "\${REGISTRY}"
      KEY: "-----BEGIN RSA PRIVATE KEY----- p4ss-canary"
      PWD: /work
      PLAIN: "postgres://db.example.org/x"
    command: start --queue v
`,
    });
    expect(JSON.stringify(found)).not.toContain('canary');
    expect(Object.values(found.pools())[0]).toMatchObject({
      image: 'x/y',
      env: { PWD: '/work', PLAIN: 'postgres://db.example.org/x' },
    });
    for (const name of ['MYSQL_PWD', 'DB_PASS', 'DATABASE', 'NPM', 'KEY'])
      expect(found.warnings.join('\n')).toMatch(new RegExp(`${name} is not carried over: it`));
  });

  test('what jobs without secrets have otherwise than before is said once, and what was guessed', async () => {
    const service = (name: string) =>
      `  ${name}:\n    build: ./image\n    volumes: [ "./${name}/home:/root" ]\n    command: start --name ${name} --hooks-path=/hooks\n`;
    const found = await imported({ 'f/compose.yml': `services:\n${service('a')}${service('b')}` });
    const count = (text: string) => found.notes.filter((note) => note.includes(text)).length;
    expect(count('builds of tags, and builds that another build triggered, run without secrets')).toBe(1);
    expect(count('have "network: internet"')).toBe(1);
    expect(count('jobs without secrets have no "caches"')).toBe(1);
    expect(count('if they decrypt variables (SECRET_…), set "secrets" in the config')).toBe(2);
    expect(found.warnings.join('\n')).toContain('"base" is a guess, ubuntu:24.04');
  });

  test('values of a file .env and defaults are filled in; what only a shell knows is said', async () => {
    const found = await imported({
      'z.1/.env': 'CARD="GPU-cccc-1"\r\nNAME=zed # the last\r\n',
      'z.1/compose.yml': composeOf('${NAME}', `${gpu('${CARD}')}\n  X: "\${NONE:-a}$$"\n  Y: \${SHELL_ONLY}`),
    });
    expect(found.pools().gpu).toMatchObject({ name: 'zed', devices: { uuid: ['GPU-cccc-1'] }, env: { X: 'a$', Y: '' } });
    expect(found.warnings).toEqual([expect.stringMatching(/^z\.1\/compose\.yml:\d+: \$SHELL_ONLY has no value/)]);
  });

  test.each([
    [
      'deploy:\n  resources:\n    reservations:\n      devices: [ { driver: nvidia, device_ids: [ GPU-dddd ], capabilities: [ gpu ] } ]',
      { count: 1, uuid: ['GPU-dddd'] },
    ],
    [
      'deploy:\n  resources:\n    reservations:\n      devices: [ { driver: nvidia, count: 2, capabilities: [ gpu ] } ]',
      { count: 2, vendor: 'nvidia' },
    ],
    ['deploy:\n  resources:\n    reservations:\n      devices: [ { capabilities: [ gpu ] } ]', { count: 'all', vendor: 'nvidia' }],
    ['gpus: all', { count: 'all', vendor: 'nvidia' }],
    ['devices: [ "nvidia.com/gpu=GPU-eeee" ]', { count: 1, uuid: ['GPU-eeee'] }],
    ['runtime: nvidia', { count: 'all', vendor: 'nvidia' }],
    [gpu('none'), 0],
    [gpu('1'), { count: 1, vendor: 'nvidia' }],
    [gpu('0:1'), { count: 1, vendor: 'nvidia', mig: true }],
    [gpu('MIG-ffff'), { count: 1, mig: true, uuid: ['MIG-ffff'] }],
    [gpu('GPU-1234,MIG-ffff'), { count: 2, uuid: ['GPU-1234', 'MIG-ffff'] }],
    ['devices: [ /dev/kfd, /dev/dri ]', { count: 'all', vendor: 'amd' }],
    ['devices: [ /dev/kfd, /dev/dri ]\nenvironment: { ROCR_VISIBLE_DEVICES: "0,2" }', { count: 2, vendor: 'amd' }],
    ['devices: [ "/dev/dri/renderD128:/dev/dri/renderD128" ]', { count: 1, vendor: 'intel' }],
    ['', 0],
  ])('devices by %j', async (more, devices) => {
    const found = await imported({ 'd/docker-compose.yml': composeOf('d', more) });
    expect(found.pools().gpu?.devices).toEqual(devices);
    expect(JSON.stringify(found.pools())).not.toContain('VISIBLE');
  });

  test('rights that weaken the sandbox are kept, spelled out, at the pool and nowhere else', async () => {
    const more = (n: number) =>
      `${gpu(`GPU-000${n}`)}\npid: host\nprivileged: true\nsecurity_opt: [ "seccomp=unconfined" ]\ncap_add: [ CAP_SYS_PTRACE ]`;
    const found = await imported({
      'u.1/compose.yml': composeOf('u.1', more(1)),
      'u.9/compose.yml': composeOf('u.9', more(9), ['--priority=1']),
    });
    const unsafe = { privileged: true, pid_host: true, seccomp_unconfined: true };
    for (const pool of Object.values(found.pools())) expect(pool).toMatchObject({ unsafe });
    expect(JSON.stringify(found.file().defaults)).not.toContain('unsafe');
  });

  test('line ends of Windows and a mark at the start change nothing', async () => {
    const text = composeOf('w.1', gpu('GPU-9999'));
    const [plain, windows] = [
      await imported({ 'w/compose.yml': text }),
      await imported({ 'w/compose.yml': `\ufeff${text.replaceAll('\n', '\r\n')}` }),
    ];
    expect(windows.hosts).toEqual(plain.hosts);
  });
});

describe('secrets', () => {
  test('that stand in the open come out nowhere, and their place is said', async () => {
    const more =
      'environment:\n  BUILDKITE_AGENT_TOKEN: canary-1\n  AWS_SECRET_ACCESS_KEY: canary-2\n  SSH_KEY: /root/.ssh/id\n  DEPLOY_TOKEN: "canary-3"';
    const found = await imported({ 's/compose.yml': composeOf('s', more, ['--token=canary-4']), 'token.env': 'canary-5' });
    expect(JSON.stringify(found)).not.toContain('canary');
    expect(found.warnings.filter((line) => /^s\/compose\.yml:\d+: /.test(line)).length).toBe(3);
  });

  test('each token has its own service', async () => {
    const found = await imported({
      't.1/compose.yml': composeOf('t.1'),
      't.2/compose.yml': composeOf('t.2').replace('../token.env', '../token-other.env'),
    });
    expect(found.file().services).toEqual({
      buildkite: { type: 'buildkite', token: { file: '/etc/onejob/buildkite.token' } },
      'token-other': { type: 'buildkite', token: { file: '/etc/onejob/token-other.token' } },
    });
  });
});

describe('pools', () => {
  test('count without a gap; a gap, another tag and a leading zero begin another one', async () => {
    const agents = [...range(1, 4), ...range(6, 7)].map((n) => [`p.${n}/compose.yml`, composeOf(`p.${n}`, gpu(`GPU-000${n}`))]);
    const padded = range(8, 11).map((n) => [`q-${n}/compose.yml`, composeOf(`q-${String(n).padStart(2, '0')}`, gpu(`GPU-00${n}`))]);
    const found = await imported(Object.fromEntries([...agents, ...padded]));
    const names = (host: string) => Object.values(found.pools(host)).map(({ name, agents: count }) => [name, count]);
    expect(names('p')).toEqual([
      ['p.{1..}', 4],
      ['p.{6..}', 2],
    ]);
    expect(names('q')).toEqual([
      ['q-0{8..}', 2],
      ['q-{10..}', 2],
    ]);
  });

  test('devices stand in the order of the agents, also when the number is inside the name', async () => {
    const found = await imported(
      Object.fromEntries(range(9, 11).map((n) => [`n${n}/compose.yml`, composeOf(`gpu${n}.lab.example.org`, gpu(`GPU-00${n}`))])),
      [{ name: 'lab', glob: '*.lab.example.org' }],
    );
    expect(found.pools().gpu).toMatchObject({
      name: 'gpu{9..}.lab.example.org',
      agents: 3,
      devices: { uuid: ['GPU-009', 'GPU-0010', 'GPU-0011'] },
    });
  });

  test('what one pool lacks is not put upon it by defaults', async () => {
    const found = await imported({
      'k.1/compose.yml': composeOf('k.1', 'environment: { A: 1 }\nmem_limit: 1g', ['--priority=5']),
      'k.2/compose.yml': composeOf('k.2', 'environment: { A: 1 }\nmem_limit: 1g', ['--priority=5', '--tags=x']),
      'k.3/compose.yml': composeOf('k.3'),
    });
    const { defaults } = found.file();
    expect(defaults).toMatchObject({ priority: 5, memory: '1GiB' });
    expect(JSON.stringify(defaults)).not.toContain('"env"');
    expect(Object.values(found.pools())[2]).toMatchObject({ name: 'k.3', priority: 0, memory: 'none' });
  });

  test('a name that two have, and a device that two claim, leave a config that can be loaded', async () => {
    const found = await imported({
      'c.1/compose.yml': composeOf('c.1', gpu('GPU-0001')),
      'c.2/compose.yml': composeOf('c.1', gpu('GPU-0002')),
      'c.3/compose.yml': composeOf('c.3', gpu('gpu-0001')),
    });
    const pools = Object.values(found.pools());
    expect(pools.map(({ name, agents }) => [name, agents])).toEqual([
      ['c.1', 1],
      ['c.1-2', 1],
      ['c.3', 0],
    ]);
    expect(found.warnings).toEqual([
      'c.2/compose.yml:2: c.1/compose.yml:2 also has the name c.1: this one becomes c.1-2',
      expect.stringMatching(
        /^c\.3\/compose\.yml:2: gpu-0001 of host c is claimed twice, here and by c\.1 \(c\.1\/compose\.yml:2\)/i,
      ),
    ]);
  });

  test('replicas and --spawn are agents that count, and share what one of them named', async () => {
    const found = await imported({
      'r/compose.yml': composeOf('many', 'deploy: { replicas: 2 }', ['--spawn=3']),
      's/compose.yml': composeOf('both', `${gpu('GPU-0001')}\ndeploy: { replicas: 2 }`),
    });
    expect(found.pools('r').gpu).toMatchObject({ name: 'many-{1..}', agents: 6 });
    expect(found.pools('s').gpu).toMatchObject({ agents: 2, devices: { count: 1, uuid: ['GPU-0001'], share: 2 } });
  });
});

describe('hosts', () => {
  const groups = async (names: readonly string[], more: (name: string, at: number) => string = () => '') =>
    (
      await imported(
        Object.fromEntries(
          names.map((name, at) => [`${name}/compose.yml`, composeOf(name.split('/').at(-1) ?? '', more(name, at))]),
        ),
      )
    ).groups;

  test('by the folder without its number', async () => {
    expect(await groups(['amdci2-1', 'amdci2-2', 'gpuci.1', 'gpuci1', 'lab_rtx_3', 'plain'])).toEqual([
      'amdci2: amdci2-1 amdci2-2',
      'gpuci: gpuci.1',
      'gpuci1: gpuci1',
      'lab_rtx: lab_rtx_3',
      'plain: plain',
    ]);
  });

  test('numbers without a separator are one host when each names a card of its own', async () => {
    expect(await groups(['gpu0', 'gpu1', 'gpu2'], (_, at) => gpu(`GPU-000${at}`))).toEqual(['gpu: gpu0 gpu1 gpu2']);
  });

  test('agents that all have all cards are one host each', async () => {
    expect(await groups(['box0', 'box1'], () => 'runtime: nvidia')).toEqual(['box0: box0', 'box1: box1']);
  });

  test('by a host name that several have, and by the folder of several, whatever number these end with', async () => {
    const at = (name: string) => `hostname: ${name}`;
    expect(await groups(['a.1', 'a.2', 'b.1', 'b.2'], (_, n) => at(n < 2 ? 'rack-12' : 'rack-13'))).toEqual([
      'rack-12: a.1 a.2',
      'rack-13: b.1 b.2',
    ]);
    const two = (name: string) =>
      ['services:', ...['x', 'y'].map((one) => `  ${one}: { image: a/b, command: [ start, --name=${name}-${one} ] }`), ''].join(
        '\n',
      );
    rmSync(join(home.path, 'fleet'), { recursive: true });
    const found = await imported({ 'rig-1/compose.yml': two('rig-1'), 'rig-2/compose.yml': two('rig-2') });
    expect(found.groups).toEqual(['rig-1: rig-1-x rig-1-y', 'rig-2: rig-2-x rig-2-y']);
  });

  test('by the folder above, and all of one file', async () => {
    expect(await groups(['agents/west/a', 'agents/west/b', 'agents/east/a'])).toEqual(['east: a', 'west: a b']);
  });

  test('the same number of a card under different host names is of different hosts; under the same name it is claimed twice', async () => {
    const amd = (_: string, at: number) =>
      `hostname: m${at}.example.org\ndevices: [ /dev/kfd ]\nenvironment: { ROCR_VISIBLE_DEVICES: 0 }`;
    expect(await groups(['amd.1', 'amd.2'], amd)).toEqual(['m0.example.org: amd.1', 'm1.example.org: amd.2']);
  });

  test('a copied UUID under names that only count is a mistake, not another host', async () => {
    const found = await imported({
      'g.1/compose.yml': composeOf('g.1', `hostname: g.1\n${gpu('GPU-0001')}`),
      'g.2/compose.yml': composeOf('g.2', `hostname: g.2\n${gpu('GPU-0001')}`),
    });
    expect(found.groups).toEqual(['g: g.1 g.2']);
    expect(found.warnings.join()).toContain('claimed twice');
  });
});

test('several agents in one file, and services that are not agents', async () => {
  const found = await imported({
    'big/compose.yml': `x-base: &base { image: reg.example.org/a:1, runtime: nvidia, env_file: ../token.env }
services:
  gpu0: { <<: *base, environment: [ NVIDIA_VISIBLE_DEVICES=GPU-0000 ], command: [ start, --name=big-gpu0, "--tags=queue=g" ] }
  gpu1: { <<: *base, environment: [ NVIDIA_VISIBLE_DEVICES=GPU-0001 ], command: [ start, --name=big-gpu1, "--tags=queue=g" ] }
  redis: { image: "redis:7", profiles: [ cache ] }
`,
  });
  expect(found.groups).toEqual(['big: big-gpu0 big-gpu1']);
  expect(found.pools().g).toMatchObject({ name: 'big-gpu{0..}', agents: 2, devices: { uuid: ['GPU-0000', 'GPU-0001'] } });
  expect(found.warnings).toEqual([
    'big/compose.yml:5: the service "redis" is not carried over: nothing shows that it starts a Buildkite agent',
  ]);
});

test('reports what cannot be read with its place, and reads the rest', async () => {
  const found = await imported({
    'a.1/compose.yml': composeOf(
      'a.1',
      'cpu_shares: 4\ndevices: [ /dev/fuse ]\nvolumes: [ "/var/run/docker.sock:/var/run/docker.sock", "data:/data:ro" ]',
    ),
    'a.2/compose.yml': 'services:\n  x: [\n',
    'a.3/': '',
    'a.4/README.md': 'soon',
    'a.5/compose.yml': '',
    'a.6/compose.yml': 'version: "3"\n',
    'a.7/compose.yml': 'services:\n  buildkite:\n    command: start\n    command: start\n',
  });
  expect(found.groups).toEqual(['a: a.1']);
  const places = found.warnings.map((line) => line.replace(/^(\S+): (.{12}).*$/s, '$1 $2'));
  expect(places).toEqual([
    'a.1/compose.yml:6 "cpu_shares"',
    'a.1/compose.yml:7 /dev/fuse is',
    'a.1/compose.yml:8 /var/run/doc',
    'a.1/compose.yml:8 the volume "',
    expect.stringMatching(/^a\.2\/compose\.yml:\d is not YAML/),
    'a.3 is empty: an',
    'a.4 has no Compo',
    'a.5/compose.yml is empty: no',
    'a.6/compose.yml:1 is not a kno',
    'a.7/compose.yml:4 is not YAML:',
  ]);
});

describe('what Compose means, kept or remarked', () => {
  const one = async (more: string) => {
    const found = await imported({ 'a/compose.yml': composeOf('a.1', more) });
    return { pool: Object.values(found.pools())[0] ?? {}, warnings: found.warnings.map((line) => line.replace(/^\S+ /, '')) };
  };

  test('numbers of any length, as Compose reads them', async () => {
    const { pool, warnings } = await one(`environment:
  LONG: 1234567890123456789
  NEGATIVE: -9223372036854775808
  OCTAL: 0755
  QUOTED: "0755"
  SHORT: 7
  BARE: true
  TEXT: "true"`);
    const env = { LONG: '1234567890123456789', NEGATIVE: '-9223372036854775808', OCTAL: 493, QUOTED: '0755', SHORT: 7 };
    expect(pool.env).toEqual({ ...env, BARE: 'true', TEXT: 'true' });
    expect(warnings).toEqual([]);
  });

  test.each(['"true"', '"yes"', 'on', "'1'"])('a boolean written as %s', async (yes) => {
    const { pool } = await one(
      `privileged: ${yes}\nread_only: ${yes}\nvolumes: [ { type: bind, source: /x, target: /x, read_only: ${yes} } ]`,
    );
    expect(pool).toMatchObject({ read_only: true, unsafe: { privileged: true }, volumes: ['/x:/x'] });
  });

  test('and "no" means no', async () => {
    const { pool } = await one('privileged: "false"\nread_only: "no"');
    expect([pool.read_only, pool.unsafe]).toEqual([undefined, undefined]);
  });

  test.each([
    ['volumes: [ "/data:/data:ro,z" ]', /mount option "z" of \/data is not carried over/],
    ['volumes: [ "/data:/data:rslave" ]', /mount option "rslave" of \/data/],
    [
      'volumes: [ { type: bind, source: /x, target: /x, bind: { propagation: rshared } } ]',
      /"bind" of the volume \/x is not carried over/,
    ],
    ['memswap_limit: 8g', /"memswap_limit" is not carried over/],
    ['mem_reservation: 2g', /"mem_reservation" is not carried over/],
    ['mem_swappiness: 0', /"mem_swappiness" is not carried over/],
    ['deploy: { resources: { reservations: { cpus: "1", memory: 1g } } }', /reservations of CPUs and memory are not carried over/],
    ['stop_grace_period: soon', /"stop_grace_period" is not carried over: .*"soon"/],
    ['cpus: many', /"cpus" is not carried over: "many" is not a number/],
    ['pids_limit: 10', /"pids_limit: 10" becomes 32/],
    ['environment: { NVIDIA_VISIBLE_DEVICES: GPU-27b94a00 }\nruntime: nvidia', /GPU-27b94a00 is only the beginning of a UUID/],
    ['environment: { WHO: "a{name}b" }', /WHO: "\{name\}" becomes the agent's name/],
    ['environment: { OTHER: "${MY_TOKEN}" }', /OTHER is not carried over: \$MY_TOKEN/],
    ['environment: [ "OTHER=a-${MY_TOKEN}" ]', /OTHER is not carried over: \$MY_TOKEN/],
    ['environment: { PATH: "/opt/bin:$PATH" }', /PATH is not carried over: \$PATH/],
  ])('%s', async (more, remark) => {
    const { warnings, pool } = await one(more);
    expect(warnings).toEqual([expect.stringMatching(remark)]);
    expect(JSON.stringify(pool.env ?? {})).not.toMatch(/OTHER|"PATH"/);
  });

  test('agents of one file at the top are on one host', async () => {
    const service = (name: string, more = '') =>
      `  ${name}: { image: buildkite/agent, command: [ start, --name=box.${name} ]${more} }\n`;
    const found = await imported({ 'compose.yml': `services:\n${service('gpu', ', runtime: nvidia')}${service('cpu')}` });
    expect(found.groups).toEqual(['box: box.cpu box.gpu']);
    const devices = Object.values(found.pools()).map((pool) => [pool.name, pool.devices]);
    expect(devices).toEqual([
      ['box.cpu', 0],
      ['box.gpu', { count: 'all', vendor: 'nvidia' }],
    ]);
  });
});
