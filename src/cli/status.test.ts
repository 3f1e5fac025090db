import { describe, expect, test } from 'vitest';
import type { AboutView, MachineView, PoolView, SlotView, StatusView } from '../contract/schema.ts';
import { isWell, statusLines } from './status.ts';
import { createColors, widthOf } from './text.ts';

function slot(key: string, change: Partial<SlotView> = {}): SlotView {
  return {
    key,
    name: key.replace('/', '-'),
    devices: [],
    standby: { state: 'standby', agent: 's1', since: 60_000 },
    agent: { state: 'free', agent: null, job: null, about: null, online: null, since: null },
    leaving: [],
    note: null,
    held: null,
    ...change,
  };
}

function pool(name: string, change: Partial<PoolView> = {}): PoolView {
  const slots = [slot(`${name}/1`), slot(`${name}/2`)];
  return {
    name,
    service: 'own',
    runtime: 'docker',
    agents: 2,
    waiting: 0,
    paused: [],
    draining: false,
    leaving: false,
    backoff: null,
    devices: null,
    slots,
    ...change,
  };
}

function viewOf(change: Partial<StatusView>): StatusView {
  return {
    version: '0.1.0',
    pid: 42,
    owner: 'o',
    config: '/etc/onejob/config.yml',
    configChanged: null,
    stateDir: '/var/lib/onejob',
    temporary: false,
    stopping: false,
    runtimeReason: null,
    weaker: null,
    problems: [],
    missing: [],
    quarantined: [],
    pools: [pool('default')],
    ...change,
  };
}

function page(change: Partial<StatusView>, width: number | null = 80, links = false): string[] {
  return statusLines(viewOf(change), createColors(false), width, links);
}

test('a service that is away is not well; a pool that somebody has paused is', () => {
  expect(isWell(viewOf({ pools: [pool('a', { paused: ['by alice'] })] }))).toBe(true);
  expect(isWell(viewOf({ pools: [pool('a'), pool('b', { paused: ['It is away.'], outage: true })] }))).toBe(false);
});

test('a quiet host', () => {
  expect(page({})).toEqual([
    'onejob 0.1.0, daemon, pid 42; config: /etc/onejob/config.yml',
    '',
    'default  own on docker, 0/2 busy, 0 waiting',
    '  SLOT       AGENT  SINCE  STANDBY  JOB',
    '  default/1  free          ready',
    '  default/2  free          ready',
  ]);
});

test('problems come first, with their cause and their end', () => {
  const backoff = { failures: 3, retryIn: 12_000, reason: 'no space left', waitsFor: null };
  const lines = page({
    problems: ['Docker Engine cannot be reached'],
    pools: [pool('default'), pool('lab', { paused: ['by alice', 'disk: 3 % free'], draining: true, backoff })],
  });
  expect(lines.slice(1, 6)).toEqual([
    '! Docker Engine cannot be reached',
    '! lab: paused by alice',
    '! lab: nothing new starts: disk: 3 % free',
    '! lab: draining: nothing new starts until "onejob resume"',
    '! lab: failed 3 times, next try in 12s: no space left',
  ]);
});

test('does not suggest a resume for a slot that the config no longer has', () => {
  const busy = slot('lab/3', { agent: { state: 'busy', agent: 'a1', job: 'j1', about: null, online: null, since: 1_000 } });
  const leaving = pool('lab/3 (leaving)', { draining: true, leaving: true, slots: [busy] });
  expect(page({ pools: [leaving] }, null)[1]).toBe(
    '! lab/3 (leaving): the config no longer asks for it; it goes away when its job has ended',
  );
});

test('a slot that the config no longer has is a problem only while it has a job', () => {
  const leaving = pool('lab/3 (leaving)', { draining: true, leaving: true, slots: [slot('lab/3')] });
  expect(page({ pools: [leaving] }, null).filter((line) => line.startsWith('!'))).toEqual([]);
});

test('a pool without its image says which one it waits for', () => {
  const backoff = { failures: 3, retryIn: 12_000, reason: 'Cannot pull it.', waitsFor: 'image "x:1" on docker' };
  expect(page({ pools: [pool('lab', { backoff })] })[1]).toBe(
    '! lab: waits for image "x:1" on docker, next try in 12s: Cannot pull it.',
  );
});

test('a slot at work', () => {
  const busy = slot('default/1', {
    agent: { state: 'busy', agent: 'a', job: 'j7', about: null, online: null, since: 125_000 },
    standby: { state: 'preparing', agent: 's', since: 3_000 },
    note: 'pulling debian:stable-slim, 40 %',
    leaving: ['x', 'y'],
  });
  expect(page({ pools: [pool('default', { slots: [busy] })] }).slice(-2)).toEqual([
    '  default/1  busy   2m 05s  preparing 3s  j7  clearing 2',
    '    pulling debian:stable-slim, 40 %',
  ]);
});

describe('devices', () => {
  const why = 'MIG-4b2f absent since boot; layout not restored?';

  test('missing devices are among the problems, with the number of complete slots', () => {
    const lines = page({
      missing: [
        { uuid: 'MIG-4b2f', slot: 'lab/1', why },
        { uuid: 'MIG-77aa', slot: 'lab/2', why: 'MIG-77aa absent since boot' },
        { uuid: 'GPU-0001', slot: 'gone/1', why: 'GPU-0001 absent since 14:02' },
      ],
      pools: [pool('lab', { devices: { ready: 12, wanted: 14 } })],
    });
    expect(lines.slice(1, 5)).toEqual([
      `! lab: 12 of 14: ${why}`,
      '! lab: MIG-77aa absent since boot',
      '! GPU-0001 absent since 14:02',
      '',
    ]);
  });

  test('shows a device in quarantine', () => {
    const lines = page({
      quarantined: [{ uuid: 'GPU-0001', pool: 'lab', why: 'GPU-0001 in quarantine since 12:03: 2 errors' }],
      pools: [pool('lab', { devices: { ready: 3, wanted: 4 } })],
    });
    expect(lines[1]).toBe('! lab: 3 of 4: GPU-0001 in quarantine since 12:03: 2 errors');
  });

  test('a pool that asks for more than there is', () => {
    const lines = page({ pools: [pool('lab', { devices: { ready: 13, wanted: 14 } })] });
    expect(lines[1]).toBe('! lab: 13 of 14: this host has no more devices that fit and are free');
  });

  test('all there', () => {
    expect(page({ pools: [pool('lab', { devices: { ready: 2, wanted: 2 } })] })[1]).toBe('');
  });

  test('shows below the slot why it is held, and what a proof waits for', () => {
    const proving = slot('lab/1', {
      agent: { state: 'proving', agent: 'a1', job: null, about: null, online: null, since: 2_000 },
      note: 'python (pid 7) is still leaving GPU-0000.',
    });
    const held = slot('lab/2', { devices: ['GPU-0001'], held: 'held by alice: python, 9.2 GiB, since 14:02' });
    const both = slot('lab/3', { held: 'the same', note: 'the same' });
    const lines = page({ pools: [pool('lab', { slots: [proving, held, both] })] }, 40);
    expect(lines.slice(-8)).toEqual([
      '  lab/1  proving  2s     ready',
      '    python (pid 7) is still leaving',
      '    GPU-0000.',
      '  lab/2  free            ready    GPU-0…',
      '    held by alice: python, 9.2 GiB,',
      '    since 14:02',
      '  lab/3  free            ready',
      '    the same',
    ]);
  });
});

describe('jobs that a CI service keeps', () => {
  const about: AboutView = {
    title: 'app-ci #20260101.1 build',
    definition: 'app-ci',
    build: '20260101.1',
    repository: 'acme/app',
    branch: 'main',
    reason: 'pullRequest',
    demands: [],
    link: 'https://dev.azure.com/acme/app/_build/results?buildId=7',
  };
  const none = { agent: 'a', job: null, about: null, online: null, since: 5_000 };
  const lab = (...agents: SlotView['agent'][]): PoolView =>
    pool('lab', {
      service: 'azure',
      agents: agents.length,
      waiting: 3,
      slots: agents.map((agent, at) => slot(`lab/${at + 1}`, { agent })),
    });

  test('each agent says in plain words what it does', () => {
    const lines = page({
      pools: [
        lab(
          { ...none, state: 'busy', job: 'azure-1234', about, since: 125_000 },
          { ...none, state: 'idle', online: true },
          { ...none, state: 'idle', online: false },
          { ...none, state: 'retiring' },
          { ...none, state: 'releasing' },
          { ...none, state: 'stopping', job: 'azure-1235' },
        ),
      ],
    });
    expect(lines.slice(2)).toEqual([
      'lab  azure on docker, 2/6 busy, 1 online, 3 waiting',
      '  SLOT   AGENT      SINCE   STANDBY  JOB',
      '  lab/1  busy       2m 05s  ready    azure-1234  app-ci #20260101.1 build',
      '    main of acme/app, pullRequest',
      '  lab/2  online     5s      ready    waits for a job',
      '  lab/3  starting   5s      ready    not online yet',
      '  lab/4  ending     5s      ready    takes no job',
      '  lab/5  releasing  5s      ready',
      '  lab/6  stopping   5s      ready    azure-1235',
    ]);
  });

  test('links are shown on request, and nothing is cut then', () => {
    const busy = lab({ ...none, state: 'busy', job: 'azure-1234', about, since: 0 });
    expect(page({ pools: [busy] }, 40).join('\n')).not.toContain('https:');
    expect(page({ pools: [busy] }, null, true).slice(-2)).toEqual(['    main of acme/app, pullRequest', `    ${about.link}`]);
  });

  test('the name of a pipeline cannot move the cursor, and unknown facts are omitted', () => {
    const evil = { ...about, title: 'ci\u001b[2J\r', branch: null, repository: null, reason: 'manual\u0007' };
    const busy = lab({ ...none, state: 'busy', job: 'azure-1', about: evil, since: 0 });
    expect(page({ pools: [busy] }).slice(-2)).toEqual(['  lab/1  busy   0s     ready    azure-1  ci [2J', '    manual']);
    const bare = lab({ ...none, state: 'busy', job: 'azure-1', about: { ...about, branch: null, repository: null, reason: null } });
    expect(page({ pools: [bare] }).at(-1)).toContain('app-ci');
  });
});

test('no line is wider than the terminal, and nothing is cut in a pipe', () => {
  const long = 'a reason without an end '.repeat(10).trim();
  for (const width of [40, 80, 200]) {
    for (const line of page({ problems: [long] }, width)) expect(widthOf(line)).toBeLessThanOrEqual(width);
  }
  expect(page({ problems: [long] }, null)).toContain(`! ${long}`);
});

test('a long reason is wrapped with indentation at a terminal, none of it lost', () => {
  const reason = 'the registry refused the image because the token in its config is from last year; '.repeat(4).trim();
  const backoff = { failures: 1, retryIn: 0, reason, waitsFor: null };
  const lines = page({ pools: [pool('lab', { backoff })] }, 80);
  expect(lines[1]).toMatch(/^! lab: failed once, next try now: the registry/);
  const more = lines.slice(2, lines.indexOf(''));
  expect(more.length).toBeGreaterThan(2);
  for (const line of more) expect(line).toMatch(/^ {2}\S/);
  expect([lines[1], ...more.map((line) => line.trim())].join(' ')).toBe(`! lab: failed once, next try now: ${reason}`);
});

test('foreign text cannot move the cursor', () => {
  expect(page({ problems: ['evil\u001b[2J\r\nline'] })[1]).toBe('! evil [2J line');
});

test('no name or version of a hostile daemon moves the cursor', () => {
  const evil = 'x\u001b[2J\n\u009b1A';
  const busy = slot(evil, { devices: [evil], agent: { ...slot('a').agent, state: evil as never, job: evil } });
  const lines = page({ version: evil, config: evil, pools: [pool(evil, { service: evil, runtime: evil, slots: [busy] })] }, null);
  expect(lines.join('')).toContain('x [2J 1A');
  // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be there
  expect(lines.join('')).not.toMatch(/[\u0000-\u001f\u007f-\u009f]/);
});

test('machines in clouds, and why a job waits for one', () => {
  const machine: MachineView = {
    run: 'onejob-0123456789abcdef',
    host: 'burst',
    cloud: 'aws',
    offer: { type: 'g6.xlarge', spot: true, zone: 'us-west-2a' },
    since: 0,
    id: 'i-1',
    place: 'us-west-2',
    bornAt: 0,
    expiresAt: 0,
    joinedAt: 0,
    stage: 'joined',
    why: null,
    isFailure: false,
    report: { busy: 1, agents: 2, idleFor: 0, problem: null },
    end: 'x',
    items: [],
    absentAt: [],
    by: 'profile ci',
    cost: 1.5,
    perHour: 0.36,
    console: null,
    state: 'joined',
    registrations: null,
  };
  const reason = 'no g5.xlarge in us-west-2a since 14:02; trying g4dn.xlarge';
  const host = {
    host: 'burst',
    cloud: 'aws',
    min: 0,
    max: 4,
    waiting: 3,
    wanted: 0,
    reason,
    refused: null,
    held: [],
    machines: [machine],
  };
  const broken = { ...machine, report: { busy: 0, agents: 2, idleFor: 0, problem: 'pool gpu: no such image' } };
  const held = ['jobs of idle.gpu are not known: HTTP 401 from github.com'];
  const lines = page({ hosts: [host, { ...host, host: 'idle', waiting: 0, reason: null, held, machines: [broken], max: 1 }] }, 100);
  expect(lines.slice(-8)).toEqual([
    '',
    'burst in aws: 1 of at most 4 machines, 3 jobs waiting',
    `! ${reason}`,
    '  onejob-0123456789abcdef  g6.xlarge (spot) in us-west-2a  i-1  joined  1 of 2 busy  $1.50',
    '',
    'idle in aws: 1 of at most 1 machine',
    `! ${held[0]}`,
    expect.stringMatching(/^ {2}onejob-0123456789abcdef .* joined {2}pool gpu: no such image /),
  ]);
  const refused = {
    code: 'E_CLOUD_QUOTA',
    message: 'Cannot create a machine: the limit is 0.',
    hint: 'Ask for more.',
    retry: false,
  };
  const none = page({ hosts: [{ ...host, reason: null, refused, machines: [] }] }, 100);
  expect(none.at(-1)).toBe('! Cannot create a machine: the limit is 0. Ask for more.');
  expect(page({ hosts: [{ ...host, refused, machines: [] }] }, 100).at(-1)).toBe(`! ${reason}`);
  const [name, scope] = [machine.run, '/subscriptions/1/resourceGroups/g/providers/Microsoft.Compute/virtualMachines'];
  const azure = page({ hosts: [{ ...host, reason: null, machines: [{ ...machine, id: `${scope}/${name}` }] }] }, 100);
  expect(azure.at(-1)).toMatch(
    /^ {2}onejob-0123456789abcdef {2}g6.xlarge \(spot\) in us-west-2a +joined {2}1 of 2 busy {2}\$1.50$/,
  );
});
