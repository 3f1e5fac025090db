/** `onejob gpus reserve` and its like, and `onejob proofs`: what they say, and what they ask the daemon for. */
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { runCli } from '../cli.ts';
import type { DeviceChange, DeviceView, ProofView } from '../contract/schema.ts';
import { changeLines, personOf, proofTable } from './gpus.ts';
import { readVersion } from './session.ts';
import { createColors, widthOf } from './text.ts';

const uuid = 'GPU-8f6a3b1c-5eed-4000-8000-000000000001';
const noon = new Date(2026, 10, 20, 12).getTime();
const view: DeviceView = {
  uuid,
  kind: 'gpu',
  model: 'NVIDIA A100-SXM4-40GB',
  pciId: '0000:01:00.0',
  index: 0,
  memoryMiB: 40_960,
  profile: null,
  parent: null,
  state: 'reserved',
  slot: null,
  agents: [],
  why: `${uuid} is reserved by alice`,
  since: noon,
  until: null,
  retryAt: null,
  hint: null,
  use: null,
};
const proof = (more: Partial<ProofView> = {}): ProofView => ({
  device: uuid,
  slot: 'lab/1',
  agent: 'a1b2c3d4e5',
  verdict: 'clean',
  evidence: {
    message: null,
    checks: [
      { check: 'memory', result: 'ok', saw: '0 MiB', before: '0 MiB' },
      { check: 'kernelLog', result: 'unchecked', saw: null, before: null },
    ],
  },
  took: 312,
  at: noon - 125_000,
  ...more,
});

describe('what is said', () => {
  const said = (change: DeviceChange, more: Partial<DeviceView> | null = {}, changed = true) =>
    changeLines(change, { uuid, changed, device: more === null ? null : { ...view, ...more } }, noon);
  const reserve = { act: 'reserve', for: null, by: 'alice' } as const;
  const back = `Give it back with "onejob gpus return ${uuid}".`;

  test('reserved: until when, and that the job on it may finish', () => {
    expect(said(reserve)).toEqual([`${uuid} is yours until you return it.`, back]);
    const until = new Date(2026, 10, 20, 18, 2).getTime();
    expect(said(reserve, { until, agents: ['a7'] })).toEqual([
      `${uuid} is yours until 18:02 (or until you return it); the job that runs on it may finish.`,
      back,
    ]);
    expect(said(reserve, { until: until + 86_400_000 })[0]).toBe(
      `${uuid} is yours until 2026-11-21 18:02 (or until you return it).`,
    );
    expect(said(reserve, { state: 'quarantined', why: 'it is in quarantine: fan' })[1]).toBe('But it is in quarantine: fan');
  });

  test('returned, or never reserved', () => {
    expect(said({ act: 'return' })).toEqual([`${uuid} is given back; it is checked before a job gets it.`]);
    expect(said({ act: 'return' }, {}, false)).toEqual([`${uuid} is not reserved.`]);
  });

  test('quarantined and cleared', () => {
    expect(said({ act: 'quarantine', reason: 'fan' }, { agents: ['a7'] })).toEqual([
      `${uuid} is in quarantine until you type "onejob gpus clear ${uuid}"; the job that runs on it may finish.`,
    ]);
    expect(said({ act: 'clear' }, { state: 'free', why: null })).toEqual([`${uuid} is out of quarantine.`]);
    expect(said({ act: 'clear' })).toEqual([`${uuid} is out of quarantine; but ${uuid} is reserved by alice.`]);
    const why = 'it needs a reset: the next look puts it back into quarantine';
    expect(said({ act: 'clear' }, { state: 'leased', why })).toEqual([`${uuid} is out of quarantine; but ${why}.`]);
    expect(said({ act: 'clear' }, {}, false)).toEqual([`${uuid} is not in quarantine.`]);
  });

  test('forgotten', () => {
    expect(said({ act: 'forget' }, null)).toEqual([`${uuid} is forgotten.`]);
  });
});

test('uses the login name of the person, also behind sudo', () => {
  const { context } = testContext([], '/tmp');
  const { uid, username } = userInfo();
  expect(personOf(context)).toBe(username);
  expect(personOf({ ...context, variables: { SUDO_USER: 'alice' } })).toBe(uid === 0 ? 'alice' : username);
});

describe('the table of proofs', () => {
  const held = 'held by alice: python, 9.2 GiB, since 11:02; held by bob: a-long-name-of-a-program, 31.0 GiB';
  const proofs = [
    proof({ verdict: 'occupied', took: 61_000, at: noon - 90_000_000, evidence: { message: held, checks: [] } }),
    proof(),
    proof({ evidence: 'odd' }),
  ];
  const shown = (width: number | null) => proofTable(proofs, createColors(false), width, noon);

  test('in a pipe each line says all', () => {
    expect(shown(null)).toEqual([
      `WHEN        DEVICE                                    VERDICT   TOOK    SLOT   AFTER       FOUND`,
      `1d 1h ago   ${uuid}  occupied  1m 01s  lab/1  a1b2c3d4e5  ${held}`,
      `2m 05s ago  ${uuid}  clean     0.3s    lab/1  a1b2c3d4e5  1 check passed, not reported: kernelLog`,
      `2m 05s ago  ${uuid}  clean     0.3s    lab/1  a1b2c3d4e5`,
    ]);
  });

  test('at a terminal the findings are below, complete, and no line is too wide', () => {
    const lines = shown(80);
    for (const line of lines) expect(widthOf(line)).toBeLessThanOrEqual(80);
    expect(
      lines
        .slice(2, 4)
        .map((line) => line.trim())
        .join(' '),
    ).toBe(held);
    expect(lines).toHaveLength(6);
    expect(lines[1]).toContain(uuid);
  });

  test('foreign text cannot move the cursor', () => {
    const evil = proof({ verdict: 'dirty', evidence: { message: 'a\u001b[2J\nb', checks: [] } });
    expect(proofTable([evil], createColors(false), null, noon).join('')).not.toContain('\u001b');
  });
});

describe('through a daemon', () => {
  let dir: Scratch;
  let manager: FakeManager;
  let server: ApiServer;

  beforeEach(async () => {
    dir = scratch();
    manager = createFakeManager();
    manager.deviceViews = [view];
    const socket = { path: join(dir.path, 'onejob.sock'), access: 'owner' } as const;
    server = await startApi({ manager, socket, version: readVersion() });
  });
  afterEach(async () => {
    await server.close();
    dir[Symbol.dispose]();
  });

  async function onejob(...args: string[]) {
    const { context, stdout, stderr } = testContext(args, dir.path);
    const code = await runCli(context);
    return { code, stdout: stdout(), stderr: stderr() };
  }
  const me = userInfo().username;

  test('reserves for a time, in the name of the person who types it', async () => {
    const { code, stdout } = await onejob('gpus', 'reserve', uuid, '--for', '4h');
    expect(code).toBe(0);
    expect(stdout).toMatch(/ is yours until /);
    expect(manager.calls).toEqual([`reserve ${uuid} {"act":"reserve","for":14400000,"by":"${me}"}`]);
  });

  test('the others, and --json after the name of the device', async () => {
    const { code, stdout } = await onejob('gpus', 'return', uuid, '--json');
    expect(code).toBe(0);
    expect(JSON.parse(stdout)).toEqual({ uuid, changed: true, device: view });
    await onejob('gpus', 'quarantine', uuid);
    await onejob('gpus', 'quarantine', uuid, '--reason', 'the fan is loud');
    await onejob('gpus', 'clear', uuid);
    expect((await onejob('gpus', 'forget', uuid)).stdout).toBe(`${uuid} is forgotten.\n`);
    expect(manager.calls.slice(1).map((call) => call.slice(call.indexOf('{')))).toEqual([
      `{"act":"quarantine","reason":"put there by ${me}"}`,
      '{"act":"quarantine","reason":"the fan is loud"}',
      '{"act":"clear"}',
      '{"act":"forget"}',
    ]);
  });

  test('a device that is unknown is exit code 1 with what to type next', async () => {
    const { code, stderr } = await onejob('gpus', 'clear', 'nope');
    expect(code).toBe(1);
    expect(stderr).toContain('There is no device "nope".');
    expect(stderr).toContain('"onejob gpus" lists all.');
  });

  test.each([
    [['gpus', 'reserve']],
    [['gpus', 'reserve', uuid, '--for', '4']],
    [['gpus', 'reserve', uuid, '--for', '0s']],
    [['gpus', 'reserve', uuid, uuid]],
    [['gpus', 'nonsense']],
    [['proofs', '--limit', '0']],
  ])('%j is wrong usage', async (args) => {
    expect(await onejob(...args)).toMatchObject({ code: 2, stdout: '' });
    expect(manager.calls).toEqual([]);
  });

  test('proofs, the newest last; with --json one whole proof per line', async () => {
    expect((await onejob('proofs')).stdout).toBe('No proofs yet: onejob makes one after each agent that had devices.\n');
    expect((await onejob('proofs', uuid)).stdout).toBe(
      `No proofs of ${uuid} yet: onejob makes one after each agent that had it.\n`,
    );
    manager.deviceViews = [];
    expect((await onejob('proofs')).stdout).toBe(
      'No proofs: this host has no device, and onejob makes one after each agent that had devices. "onejob gpus" says where it looked.\n',
    );
    manager.deviceViews = [view];
    manager.proofViews = [proof({ at: 3 }), proof({ at: 2, device: 'GPU-2' }), proof({ at: 1 })];
    const lines = (await onejob('proofs', '--json', '--limit', '2')).stdout.trimEnd().split('\n');
    expect(lines.map((line) => JSON.parse(line))).toEqual([proof({ at: 2, device: 'GPU-2' }), proof({ at: 3 })]);
    expect((await onejob('proofs', uuid)).stdout.trimEnd().split('\n')).toHaveLength(3);
  });

  test('status exits with 1 while a device is missing, and names it', async () => {
    expect((await onejob('status')).code).toBe(0);
    manager.statusOverride = { missing: [{ uuid, slot: 'lab/1', why: `${uuid} absent since boot` }] };
    const { code, stdout } = await onejob('status');
    expect(code).toBe(1);
    expect(stdout).toContain(`! ${uuid} absent since boot\n`);
    const json = await onejob('status', '--json');
    expect(json.code).toBe(1);
    manager.statusOverride = { quarantined: [{ uuid, pool: 'lab', why: `${uuid} in quarantine since 12:03: 2 errors` }] };
    expect((await onejob('status')).code).toBe(1);
    expect(JSON.parse(json.stdout).missing).toEqual([{ uuid, slot: 'lab/1', why: `${uuid} absent since boot` }]);
  });

  test('completion knows them and what they take', async () => {
    const { stdout } = await onejob('completion', 'bash');
    expect(stdout).toMatch(/ gpus\) offered=\([^)]*--for[^)]* reserve return quarantine clear forget\)/);
    expect(stdout).toMatch(/ proofs\) offered=\([^)]*--limit/);
  });
});

test('without a daemon they say how to start one', async () => {
  using dir = scratch();
  const { context, stderr } = testContext(['gpus', 'reserve', '0'], dir.path);
  expect(await runCli(context)).toBe(1);
  expect(stderr()).toContain('onejob up');
});
