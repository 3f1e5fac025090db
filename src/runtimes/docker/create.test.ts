import { describe, expect, test } from 'vitest';
import { recipe } from '../../../test/kit/docker-runtime.ts';
import { specOf } from '../../../test/kit/runtime-contract/contract.ts';
import { leased } from '../../../test/kit/runtimes.ts';
import type { Recipe } from '../../ports/runtime.ts';
import { exitNoDevice } from '../gate.ts';
import { type CreateContext, containerName, createBody, hostName } from './create.ts';
import { type GrantMethod, grantOf, noGrant } from './grants.ts';

const context: CreateContext = {
  owner: 'o',
  boot: null,
  imageId: 'sha256:1',
  imagePath: '/usr/bin:/bin',
  network: 'none',
  podman: false,
  log: { maxSize: 20 * 2 ** 20, maxFile: 5 },
  grant: noGrant,
};
const hostConfig = (changes: Partial<Recipe>, more: Partial<CreateContext> = {}) =>
  createBody(specOf({ ...recipe, ...changes }), { ...context, ...more }).HostConfig;

describe('what the Engine is asked for', () => {
  test('weakening is off unless it is configured', () => {
    expect(hostConfig({})).toMatchObject({
      Privileged: false,
      SecurityOpt: [],
      CapAdd: [],
      CapDrop: ['NET_RAW', 'MKNOD', 'AUDIT_WRITE'],
    });
    expect(hostConfig({})).not.toHaveProperty('PidMode');
    const unsafe = { privileged: true, pidHost: true, seccompUnconfined: true };
    expect(hostConfig({ unsafe })).toMatchObject({ Privileged: true, PidMode: 'host', SecurityOpt: ['seccomp=unconfined'] });
  });

  test('an added capability is not dropped, however it is written', () => {
    for (const name of ['NET_RAW', 'CAP_NET_RAW', 'net_raw'])
      expect(hostConfig({ capAdd: [name] }).CapDrop).toEqual(['MKNOD', 'AUDIT_WRITE']);
  });

  test('CPUs are restricted only if the spec says so', () => {
    expect(hostConfig({})).not.toHaveProperty('CpusetCpus');
    expect(createBody(specOf(recipe, { cpuset: '0-3,8' }), context).HostConfig).toMatchObject({ CpusetCpus: '0-3,8' });
  });

  test("the number of processes is the pool's, and unlimited only if that is written", () => {
    expect(hostConfig({ pids: 64 })).toMatchObject({ PidsLimit: 64 });
    expect(hostConfig({ pids: null })).toMatchObject({ PidsLimit: -1 });
  });

  test('no core dump is written on the host, unless the pool allows it', () => {
    expect(hostConfig({}).Ulimits).toEqual([{ Name: 'core', Soft: 0, Hard: 0 }]);
    const ulimits = [{ name: 'core', soft: 1, hard: 2 }];
    expect(hostConfig({ ulimits }).Ulimits).toEqual([{ Name: 'core', Soft: 1, Hard: 2 }]);
  });

  test("Podman keeps its own log driver, since it does not know Docker's", () => {
    expect(hostConfig({}).LogConfig?.Type).toBe('local');
    expect(hostConfig({}, { podman: true })).not.toHaveProperty('LogConfig');
  });

  describe('for a sandbox with devices', () => {
    const devices = [leased({ minor: 3 }), leased({ minor: 1 })];
    const made = (way: GrantMethod, changes: Partial<Recipe> = {}) => {
      const grant = grantOf(devices, { way, capabilities: [], groups: [], openFiles: 1024 });
      return createBody(specOf({ ...recipe, ...changes }, { devices }), { ...context, grant });
    };

    test('its UUIDs, and no counts', () => {
      const { HostConfig, Labels } = made('request');
      expect(HostConfig).toMatchObject({ DeviceRequests: [{ DeviceIDs: ['GPU-3', 'GPU-1'] }] });
      expect(JSON.stringify(HostConfig)).not.toMatch(/"Count"/);
      expect(Labels['onejob.devices']).toBe('GPU-3,GPU-1');
      expect(made('runtime').HostConfig).toMatchObject({ Runtime: 'nvidia' });
      expect(made('runtime', { ociRuntime: 'runsc' }).HostConfig).toMatchObject({ Runtime: 'runsc' });
    });

    test("variables that neither the owner's nor a volume's replace; the owner decides on others", () => {
      const env = { NVIDIA_VISIBLE_DEVICES: 'all', CUDA_VISIBLE_DEVICES: '7', CUDA_DEVICE_ORDER: 'x', MINE: '1' };
      const mounts = [{ host: '/d', container: '/d', readOnly: true, variable: 'CUDA_VISIBLE_DEVICES', cache: null }];
      const list = 'GPU-3,GPU-1';
      const order = 'CUDA_DEVICE_ORDER=PCI_BUS_ID';
      const { Env } = made('request', { env, mounts });
      expect(Env).toEqual([`NVIDIA_VISIBLE_DEVICES=${list}`, `CUDA_VISIBLE_DEVICES=${list}`, order, 'MINE=1']);
      expect(made('runtime', { env: { NVIDIA_DRIVER_CAPABILITIES: 'all' } }).Env).toContain('NVIDIA_DRIVER_CAPABILITIES=all');
    });

    test('a limit on open files, unless its owner sets another one', () => {
      const nofile = ({ Ulimits }: { readonly Ulimits: readonly { readonly Name: string }[] }) =>
        Ulimits.filter(({ Name }) => Name === 'nofile');
      expect(nofile(made('request').HostConfig)).toEqual([{ Name: 'nofile', Soft: 1024, Hard: 1024 }]);
      const ulimits = [{ name: 'nofile', soft: 5, hard: 6 }];
      expect(nofile(made('request', { ulimits }).HostConfig)).toEqual([{ Name: 'nofile', Soft: 5, Hard: 6 }]);
      expect(nofile(hostConfig({}))).toEqual([]);
    });

    test('a gate that opens them', () => {
      expect(made('request').Entrypoint[2]).toMatch(new RegExp(`/dev/nvidia3.*exit ${exitNoDevice}`));
    });
  });

  test('an owner cannot ask for foreign devices in a sandbox without devices', () => {
    const { Env } = createBody(specOf({ ...recipe, env: { NVIDIA_VISIBLE_DEVICES: 'all' } }), context);
    expect(Env).toEqual(['NVIDIA_VISIBLE_DEVICES=void']);
  });

  test('the Engine decides what a recipe leaves open', () => {
    for (const key of ['NanoCpus', 'Memory', 'MemorySwap', 'ShmSize', 'DeviceRequests', 'Devices', 'Runtime'])
      expect(hostConfig({})).not.toHaveProperty(key);
  });

  test("the host's network implies the host's name", () => {
    expect(createBody(specOf(recipe), { ...context, network: 'host' })).not.toHaveProperty('Hostname');
    expect(createBody(specOf(recipe), context)).toHaveProperty('Hostname', 'con.1');
  });

  test('invalid container and host names are corrected', () => {
    expect(containerName({ agent: 'a1', name: 'lab 1/ü' })).toBe('onejob-lab-1--a1');
    expect([hostName('_.x_'), hostName('ü'), hostName('a'.repeat(80)).length]).toEqual(['x', 'agent', 63]);
  });
});
