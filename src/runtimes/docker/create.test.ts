import { describe, expect, test } from 'vitest';
import { specOf } from '../contract.ts';
import type { Recipe } from '../runtime.ts';
import { type CreateContext, containerName, createBody, hostName } from './create.ts';
import { recipe } from './testing.ts';

const context: CreateContext = {
  owner: 'o',
  bootId: null,
  imageId: 'sha256:1',
  network: 'none',
  podman: false,
  log: { maxSize: '20m', maxFile: 5 },
};
const hostConfig = (changes: Partial<Recipe>, more: Partial<CreateContext> = {}) =>
  createBody(specOf({ ...recipe, ...changes }), { ...context, ...more }).HostConfig;

describe('what the Engine is asked for', () => {
  test('weakening is off unless it is spelled out', () => {
    expect(hostConfig({})).toMatchObject({ Privileged: false, SecurityOpt: [], CapAdd: [], CapDrop: ['NET_RAW', 'MKNOD'] });
    expect(hostConfig({})).not.toHaveProperty('PidMode');
    const unsafe = { privileged: true, pidHost: true, seccompUnconfined: true };
    expect(hostConfig({ unsafe })).toMatchObject({ Privileged: true, PidMode: 'host', SecurityOpt: ['seccomp=unconfined'] });
  });

  test('a capability that is added is not dropped, however it is written', () => {
    for (const name of ['NET_RAW', 'CAP_NET_RAW', 'net_raw']) expect(hostConfig({ capAdd: [name] }).CapDrop).toEqual(['MKNOD']);
  });

  test("Podman keeps its own log driver, since it does not know Docker's", () => {
    expect(hostConfig({}).LogConfig?.Type).toBe('local');
    expect(hostConfig({}, { podman: true })).not.toHaveProperty('LogConfig');
  });

  test('Podman would take a request for devices and grant none, so it is not asked', () => {
    const spec = specOf(recipe, { devices: ['GPU-1'] });
    expect(createBody(spec, context).HostConfig).toHaveProperty('DeviceRequests');
    const refused = () => createBody(spec, { ...context, podman: true });
    expect(refused).toThrow(expect.objectContaining({ code: 'E_NOT_YET', retry: false }));
  });

  test('what a recipe leaves open is left to the Engine', () => {
    for (const key of ['NanoCpus', 'Memory', 'MemorySwap', 'ShmSize', 'DeviceRequests'])
      expect(hostConfig({})).not.toHaveProperty(key);
  });

  test("the host's network brings the host's name", () => {
    expect(createBody(specOf(recipe), { ...context, network: 'host' })).not.toHaveProperty('Hostname');
    expect(createBody(specOf(recipe), context)).toHaveProperty('Hostname', 'con.1');
  });

  test('names that no Engine and no host may have are made fit', () => {
    expect(containerName({ agent: 'a1', name: 'lab 1/ü' })).toBe('onejob-lab-1--a1');
    expect([hostName('_.x_'), hostName('ü'), hostName('a'.repeat(80)).length]).toEqual(['x', 'agent', 63]);
  });
});
