/** Granting and verifying devices, with an Engine that the test controls. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { describe, expect, test } from 'vitest';
import { recipe } from '../../../test/kit/docker-runtime.ts';
import { fakeEngine } from '../../../test/kit/fake-engine.ts';
import { specOf } from '../../../test/kit/runtime-contract/contract.ts';
import { amd, leased } from '../../../test/kit/runtimes.ts';
import { OnejobError } from '../../base/errors.ts';
import type { LeasedDevice, Recipe } from '../../ports/runtime.ts';
import { type Limits, usualLimits } from '../engine/call.ts';
import { Engine } from '../engine/engine.ts';
import { grantFindings } from './check.ts';
import { Devices } from './devices.ts';

const never = new AbortController().signal;
const specWith = (...devices: LeasedDevice[]) => specOf(recipe, { devices });

/** Answers by path; a path without an answer stays silent. */
async function engineWith(name: string, answers: Readonly<Record<string, object>>, limits?: Limits) {
  const answer = (path: string, _: unknown, reply: ServerResponse) => {
    if (answers[path] !== undefined) reply.end(JSON.stringify(answers[path]));
  };
  const fake = fakeEngine(name, answer, answers === podman ? { podman: '4.3.1' } : {});
  const engine = await fake.connect(limits);
  return { engine, asked: fake.asked, [Symbol.asyncDispose]: fake.stop };
}
const docker = { '/version': { Version: '20.10.24', ApiVersion: '1.41' }, '/info': {} };
const podman = { '/version': { Version: '4.3.1' }, '/info': {} };

describe('devices are granted', () => {
  test('by a request, with a bounded number of open files; without devices the Engine is not even asked', async () => {
    await using here = await engineWith('grant', docker);
    const devices = new Devices(here.engine);
    expect((await devices.grant(specWith(), never)).host).toEqual({});
    expect(here.asked).toEqual([]);
    const grant = await devices.grant(specWith(leased()), never);
    expect(grant.host).toMatchObject({ DeviceRequests: [{ Driver: 'nvidia', DeviceIDs: ['GPU-0'] }] });
    expect(grant.openFiles).toBeLessThanOrEqual(65_536);
  });

  test('not by an Engine on another host', async () => {
    const engine = new Engine({ kind: 'tcp', host: '192.0.2.1', port: 2375, tls: null, from: 'test' });
    const refused = new Devices(engine).grant(specWith(leased()), never);
    await expect(refused).rejects.toMatchObject({
      code: 'E_DEVICES_REFUSED',
      retry: false,
      message: 'Cannot start agent con.1: GPU-0 cannot be granted, because the Engine at tcp://192.0.2.1:2375 is not on this host.',
    });
    engine.close();
  });

  test("not by a Podman that would accept the request and grant nothing, except AMD's nodes", async () => {
    await using here = await engineWith('podman', podman);
    const devices = new Devices(here.engine);
    await expect(devices.grant(specWith(leased()), never)).rejects.toMatchObject({
      code: 'E_DEVICES_REFUSED',
      hint: expect.stringContaining('Podman 5.4'),
    });
    const grant = await devices.grant(specWith(amd(128)), never);
    expect(grant.host.Devices?.map((node) => node.PathOnHost)).toEqual(['/dev/kfd', '/dev/dri/renderD128']);
    expect(grant.openFiles).toBeNull();
  });

  test('not if their node is unknown', async () => {
    await using here = await engineWith('unknown', docker);
    const refused = new Devices(here.engine).grant(specWith(amd(128, { minor: null, uuid: 'amd-x' })), never);
    await expect(refused).rejects.toMatchObject({ code: 'E_DEVICES_REFUSED', retry: true });
  });

  test('not by a silent Engine, which is reported in time', async () => {
    await using here = await engineWith('silent', {}, { ...usualLimits, soon: 200 });
    const refused = new Devices(here.engine).grant(specWith(leased()), never);
    await expect(refused).rejects.toMatchObject({ code: 'E_ENGINE_SILENT', retry: true });
  });

  test('in the next way if the Engine does not support this one, and never in another way than the owner set', async () => {
    await using here = await engineWith('retreat', { ...docker, '/info': { Runtimes: { nvidia: {} } } });
    const nobody = new OnejobError('E_DEVICES_REFUSED', 'x', { cause: new Error('could not select device driver "nvidia"') });
    const failing = new OnejobError('E_DEVICES_REFUSED', 'x', { cause: new Error('error running hook #0: exit status 1') });
    const devices = new Devices(here.engine);
    await devices.grant(specWith(leased()), never);
    expect([devices.retreat(failing), devices.retreat(new Error('x'))]).toEqual([false, false]);
    expect(devices.retreat(nobody)).toBe(true);
    expect((await devices.grant(specWith(leased()), never)).host).toEqual({ Runtime: 'nvidia' });
    const other = { ...specWith(leased()), recipe: { ...recipe, ociRuntime: 'runsc' } };
    await expect(devices.grant(other, never)).rejects.toMatchObject({
      code: 'E_DEVICES_REFUSED',
      message: expect.stringContaining('its runtime "nvidia" would take the place of runsc'),
    });
    const set = new Devices(here.engine, 'request');
    await set.grant(specWith(leased()), never);
    expect(set.retreat(nobody)).toBe(false);
  });

  test("according to the pool's own setting, with the uses that it asks for", async () => {
    await using here = await engineWith('per-pool', { ...docker, '/info': { Runtimes: { nvidia: {} } } });
    const devices = new Devices(here.engine);
    const asked = async (grant: Partial<Recipe['grant']>) => {
      const spec = { ...specWith(leased()), recipe: { ...recipe, grant: { ...recipe.grant, ...grant } } };
      return devices.grant(spec, never);
    };
    expect((await asked({ capabilities: ['graphics', 'video'] })).host.DeviceRequests?.[0]?.Capabilities).toEqual([
      ['gpu', 'compute', 'utility', 'graphics', 'video'],
    ]);
    expect(await asked({ way: 'runtime', capabilities: ['display'] })).toMatchObject({
      host: { Runtime: 'nvidia' },
      defaults: { NVIDIA_DRIVER_CAPABILITIES: 'compute,utility,display' },
    });
    await expect(asked({ way: 'cdi' })).rejects.toMatchObject({ code: 'E_DEVICES_REFUSED', retry: false });
  });
});

describe('what was granted', () => {
  const container = (Pid: number, Running = true) => ({
    '/containers/c1/json': {
      Id: 'c1',
      Name: '/x',
      Image: 'i',
      State: { Status: 'running', Running, ExitCode: 0, Pid },
      Config: {},
    },
  });
  /** A process that could be the gate of this spec. */
  const gate = async (agent: string, visible: string) => {
    const child = spawn('sh', ['-c', `echo; read _ # ${agent}`], { env: { NVIDIA_VISIBLE_DEVICES: visible } });
    await once(child.stdout, 'data');
    return {
      pid: child.pid ?? 0,
      async [Symbol.asyncDispose]() {
        child.stdin.end();
        await once(child, 'exit');
      },
    };
  };

  test('passes if it is what was leased, and fails with names if not', async () => {
    const none = specWith();
    await using process = await gate(none.agent, 'void');
    await using here = await engineWith('seen', container(process.pid));
    // As the host's own, its nodes are all of the host's: on one with GPUs they are too many for no lease.
    const privileged = { ...none, recipe: { ...recipe, unsafe: { ...recipe.unsafe, privileged: true } } };
    await new Devices(here.engine).verify(privileged, 'c1', () => {}, never);
    const other = { ...privileged, devices: [leased({ minor: 77 })] };
    await expect(new Devices(here.engine).verify(other, 'c1', () => {}, never)).rejects.toMatchObject({
      code: 'E_DEVICES_GRANTED',
      retry: true,
      message: expect.stringMatching(/leased GPU-77 \(\/dev\/nvidiactl, \/dev\/nvidia77\).*\/dev\/nvidia77 is missing/),
    });
  });

  test('is not checked in a container that has ended: its exit explains it', async () => {
    await using here = await engineWith('ended', container(0, false));
    await new Devices(here.engine).verify(specWith(leased()), 'c1', () => {}, never);
  });

  test('is unknown if the process is another one: reported for devices, and not checked again without', async () => {
    await using here = await engineWith('other', container(process.pid));
    const devices = new Devices(here.engine);
    const said: string[] = [];
    await devices.verify(specWith(leased()), 'c1', (line) => said.push(line), never);
    expect(said).toEqual([expect.stringMatching(/^onejob does not check which devices it got, because process \d+ of this host/)]);
    const before = here.asked.length;
    await devices.verify(specWith(), 'c1', (line) => said.push(line), never);
    expect(here.asked).toHaveLength(before);
    expect(said).toHaveLength(1);
  });
});

describe('doctor', () => {
  const none = { way: null, why: 'this Engine has none', hint: 'Get one.' } as const;

  test('says how devices are granted, and that this is checked', () => {
    const found = grantFindings({ way: 'request', why: 'it is old' }, null, true);
    expect(found.map(({ level }) => level)).toEqual(['ok', 'ok']);
    expect(found[0]?.message).toBe('NVIDIA devices are granted through device requests to its NVIDIA driver, because it is old.');
  });

  test('warns on a host with GPUs, and says nothing on another one', () => {
    expect(grantFindings(none, 'onejob is not root', true).map(({ level }) => level)).toEqual(['warning', 'warning']);
    expect(grantFindings(none, 'onejob is not root', false)).toEqual([]);
  });
});
