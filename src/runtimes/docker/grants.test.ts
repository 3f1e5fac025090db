import { describe, expect, test } from 'vitest';
import { amd, leased, slice } from '../../../test/kit/runtimes.ts';
import type { GrantWay } from '../../ports/runtime.ts';
import { infoAnswer, versionAnswer } from '../engine/probe.ts';
import { anyGrant, chooseGrant, type GrantMethod, grantOf, noGrant } from './grants.ts';

const docker = (Version: string, ApiVersion: string) => ({ ...versionAnswer.parse({ Version, ApiVersion }), podman: false });
const podman = (Version: string) => ({ ...docker(Version, '1.41'), podman: true });
const old = docker('20.10.24', '1.41');
const recent = docker('28.2.2', '1.50');
const cdi = { CDISpecDirs: ['/etc/cdi', '/var/run/cdi'] };
const named = (...uuids: string[]) => ({
  ...cdi,
  DiscoveredDevices: uuids.map((uuid) => ({ Source: 'cdi', ID: `nvidia.com/gpu=${uuid}` })),
});

const choose = (
  info: object,
  version: ReturnType<typeof docker>,
  { setting = 'auto', uuids = ['GPU-1'], refused = [] }: { setting?: GrantWay; uuids?: string[]; refused?: GrantMethod[] } = {},
) => chooseGrant(infoAnswer.parse(info), version, { setting, uuids, refused: new Set(refused) });

describe('the way to devices', () => {
  test('is a device request if the Engine does not know CDI', () => {
    expect(choose({}, old)).toMatchObject({ way: 'request', why: expect.stringContaining('does not support it') });
    expect(choose({ Runtimes: { runc: {}, nvidia: {} } }, old).way).toBe('request');
  });

  test('is CDI if the Engine lists the leased device', () => {
    expect(choose(named('0', 'GPU-1', 'all'), recent).way).toBe('cdi');
    expect(chooseGrant(infoAnswer.parse(named('GPU-1')), recent, anyGrant).way).toBe('cdi');
  });

  test('is not CDI if the specification is missing, older than the device, or has only numbers', () => {
    // The Engine leaves the key out when it found none.
    expect(choose(cdi, recent).way).toBe('request');
    expect(choose(named('GPU-1'), recent, { uuids: ['GPU-1', 'MIG-2'] })).toMatchObject({
      way: 'request',
      why: expect.stringContaining('do not name MIG-2'),
    });
    expect(choose(named('0', 'all'), recent, { uuids: [] }).way).toBe('request');
  });

  test('is CDI if somebody turned it on in an Engine that lists no names', () => {
    expect(choose(cdi, docker('26.1.5', '1.45')).way).toBe('cdi');
  });

  test('is another one if the Engine turned out not to support it', () => {
    const info = { ...named('GPU-1'), Runtimes: { nvidia: {} } };
    expect(choose(info, recent, { refused: ['cdi'] }).way).toBe('request');
    expect(choose(info, recent, { refused: ['cdi', 'request'] }).way).toBe('runtime');
    expect(choose({}, old, { refused: ['request'] }).way).toBe('request');
  });

  test('is the configured one, or none with the reason', () => {
    expect(choose(named('GPU-1'), recent, { setting: 'request' })).toEqual({ way: 'request', why: '"grant: request" requests it' });
    expect(choose({}, old, { setting: 'cdi' })).toMatchObject({ way: null, hint: expect.stringContaining('daemon.json') });
    expect(choose({}, old, { setting: 'runtime' })).toMatchObject({ way: null, why: 'the Engine has no runtime "nvidia"' });
    expect(choose({ Runtimes: { nvidia: {} } }, old, { setting: 'runtime' }).way).toBe('runtime');
  });

  test.each([
    ['4.3.1', 'auto', null],
    ['5.3.9', 'cdi', null],
    ['5.4.2', 'auto', 'cdi'],
    ['6.0.0-dev', 'auto', 'cdi'],
    ['5.4.2', 'request', null],
    ['unknown', 'auto', null],
  ] as const)('of Podman %s, set to %s: %s', (version, setting, way) => {
    expect(choose({}, podman(version), { setting }).way).toBe(way);
  });

  test('is found whatever an Engine reports', () => {
    const odd = { Runtimes: 'runc', CDISpecDirs: 7, DiscoveredDevices: [{ Source: 'x' }] };
    expect(choose(odd, recent).way).toBe('request');
    expect(choose(odd, docker('', 'v2')).way).toBe('request');
  });
});

describe('what the Engine is asked for', () => {
  const grant = (way: GrantMethod | null, devices = [leased({ minor: 1 }), slice(0, 3)]) =>
    grantOf(devices, { way, capabilities: ['graphics'], groups: [109, 44], openFiles: 1024 });

  test('are names, never numbers or counts', () => {
    expect(grant('request').host).toEqual({
      DeviceRequests: [
        { Driver: 'nvidia', DeviceIDs: ['GPU-1', 'MIG-0-3'], Capabilities: [['gpu', 'compute', 'utility', 'graphics']] },
      ],
    });
    expect(grant('cdi').host).toEqual({
      DeviceRequests: [{ Driver: 'cdi', DeviceIDs: ['nvidia.com/gpu=GPU-1', 'nvidia.com/gpu=MIG-0-3'] }],
    });
    expect(grant('runtime')).toMatchObject({
      host: { Runtime: 'nvidia' },
      env: { NVIDIA_VISIBLE_DEVICES: 'GPU-1,MIG-0-3' },
      defaults: { NVIDIA_DRIVER_CAPABILITIES: 'compute,utility,graphics' },
    });
  });

  test("are kfd and the leased card's own node for AMD, with the host's group ids", () => {
    const { host, env, gate } = grant(null, [amd(129)]);
    const node = (path: string) => ({ PathOnHost: path, PathInContainer: path, CgroupPermissions: 'rw' });
    expect(host).toEqual({ Devices: [node('/dev/kfd'), node('/dev/dri/renderD129')], GroupAdd: ['109', '44'] });
    expect(env).toEqual({ NVIDIA_VISIBLE_DEVICES: 'void', ROCR_VISIBLE_DEVICES: '0' });
    expect(gate).toEqual(['/dev/kfd', '/dev/dri/renderD129']);
  });

  test('is nothing at all without devices, and nothing else from the image', () => {
    expect(grant('request', [])).toEqual(noGrant);
    expect(noGrant).toMatchObject({ host: {}, env: { NVIDIA_VISIBLE_DEVICES: 'void' } });
  });
});
