import { expect, it } from 'vitest';
import type { DeviceView, JobView, PoolView, StatusView } from '../contract/schema.ts';
import { createColors } from './text.ts';
import { type TopFormat, topLines } from './top.ts';

const now = Date.UTC(2026, 10, 26, 12);
const format: TopFormat = { colors: createColors(false), width: null, height: null, now };

const device = (uuid: string, more: Partial<DeviceView> = {}) =>
  ({
    uuid,
    model: 'A100',
    index: 0,
    memoryMiB: 81_920,
    state: 'leased',
    slot: 'gpu/1',
    agents: ['a1'],
    why: null,
    use: { memoryUsedMiB: 40_960, utilization: 61, temperature: 55, powerW: 300, at: now },
    ...more,
  }) as DeviceView;

const job = (id: string, more: Partial<JobView> = {}) =>
  ({
    id,
    pool: 'gpu',
    state: 'running',
    agent: 'a1',
    about: null,
    name: null,
    command: ['make', 'test'],
    reason: null,
    startedAt: now - 61_000,
    submittedAt: now - 90_000,
    ...more,
  }) as JobView;

const pool = (more: Partial<PoolView> = {}) =>
  ({
    name: 'gpu',
    service: 'own',
    agents: 1,
    waiting: 1,
    paused: [],
    draining: false,
    backoff: null,
    slots: [{ standby: { state: 'standby' }, agent: { state: 'busy', online: null } }],
    ...more,
  }) as unknown as PoolView;

const status = (more: Partial<StatusView> = {}) =>
  ({ problems: [], missing: [], quarantined: [], pools: [pool()], ...more }) as unknown as StatusView;

it('shows what each device does, what runs, and why the rest waits', () => {
  const waits = job('j2', { state: 'queued', agent: null, startedAt: null, startsIn: { from: 60_000, to: 300_000 } });
  const lines = topLines({ status: status(), devices: [device('GPU-1234567890')], jobs: [job('j1'), waits] }, format);
  expect(lines[0]).toMatch(/^onejob on .*: 1 busy, 1 waiting$/);
  expect(lines.slice(2)).toEqual([
    'DEVICE          MODEL  STATE   MEMORY            USE              TEMP   USED BY',
    '0 GPU-12345678  A100   leased  40.0 of 80.0 GiB  ██████····  61%  55 °C  gpu/1 job j1',
    '',
    'POOL  SERVICE  AGENTS  BUSY  READY  WAITING  STATE',
    'gpu   own      1       1     1      1',
    '',
    'JOB  POOL  STATE    RUNS    COMMAND',
    'j1   gpu   running  1m 01s  make test',
    '',
    'WAITING  POOL  FOR     STARTS               WHY                  COMMAND',
    'j2       gpu   1m 30s  in 1m 00s to 5m 00s  all agents are busy  make test',
  ]);
});

it('says of a job that may start at any time until when it does', () => {
  const waits = job('j2', { state: 'queued', agent: null, startedAt: null, startsIn: { from: 0, to: 158_000 } });
  const lines = topLines({ status: status(), devices: [], jobs: [waits] }, format);
  expect(lines.at(-1)).toContain('  within 2m 38s  ');
});

it('says what is wrong first, and makes foreign text harmless', () => {
  const sick = device('GPU-1', { state: 'quarantined', why: 'Xid 79', use: null, slot: null, agents: [] });
  const bad = job('j1', { command: ['x\u001b[2Jy'] });
  const lines = topLines({ status: status({ problems: ['The disk is full.'] }), devices: [sick], jobs: [bad] }, format);
  expect(lines[1]).toBe('! The disk is full.');
  expect(lines.join('\n')).toContain('quarantined  -       -    -      Xid 79');
  expect(lines.join('\n')).toContain('x [2Jy');
});

it('fits a terminal of any height, and counts what does not', () => {
  const devices = Array.from({ length: 8 }, (_, at) => device(`GPU-${at}`));
  const jobs = Array.from({ length: 100 }, (_, at) =>
    job(`j${at}`, at < 8 ? {} : { state: 'queued', agent: null, startedAt: null }),
  );
  for (let height = 1; height < 60; height += 1) {
    const lines = topLines({ status: status(), devices, jobs }, { ...format, width: 40, height });
    expect(lines.length).toBeLessThanOrEqual(height);
    for (const line of lines) expect([...line].length).toBeLessThanOrEqual(40);
  }
  const lines = topLines({ status: status(), devices, jobs }, { ...format, height: 40 });
  expect(lines.at(-1)).toMatch(/^\d+ more jobs wait$/);
});

it('lets no name of a hostile daemon move the cursor', () => {
  const evil = '\u001b[2J\n\u009b1A';
  const hostile = pool({ name: evil, service: evil });
  const devices = [device(evil, { slot: evil, state: evil as never })];
  const lines = topLines({ status: status({ pools: [hostile] }), devices, jobs: [job(evil, { pool: evil })] }, format);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: what must not be there
  expect(lines.join('')).not.toMatch(/[\u0000-\u001f\u007f-\u009f]/);
});
