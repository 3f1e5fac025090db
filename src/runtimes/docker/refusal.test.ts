/** Refusals of devices, as recorded from Engines, hooks and container toolkits. */
import { describe, expect, test } from 'vitest';
import { recipe } from '../../../test/kit/docker-runtime.ts';
import { specOf } from '../../../test/kit/runtime-contract/contract.ts';
import { leased } from '../../../test/kit/runtimes.ts';
import type { Endpoint } from '../engine/endpoint.ts';
import { Refusal } from '../engine/failures.ts';
import { prepareRefusal } from './prepare.ts';

const endpoint: Endpoint = { kind: 'unix', path: '/run/docker.sock', from: 'test' };
const answer = (message: string, statusCode = 500) => new Refusal(statusCode, JSON.stringify({ message }));
const refused = (message: string, devices = [leased()], status = 500) =>
  prepareRefusal(answer(message, status), specOf(recipe, { devices }), endpoint);

const hook = (said: string) =>
  `failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error running prestart hook #0: exit status 1, stdout: , stderr: ${said}`;

test.each([
  ['volumes', null],
  ['caches', { name: null }],
])('a missing folder of %s is reported with that key', (key, cache) => {
  const mounts = [{ host: '/no/such', container: '/c', readOnly: false, variable: null, cache }];
  const error = prepareRefusal(
    answer('invalid mount config for type "bind": bind source path does not exist: /no/such', 400),
    specOf({ ...recipe, mounts }),
    endpoint,
  );
  expect(error).toMatchObject({ code: 'E_MOUNT_MISSING', hint: expect.stringContaining(`from ${key} in pools.`) });
  expect(error.message).toContain(`"/no/such" of its ${key} is not on this host`);
  expect(error.hint).toContain('mkdir -p /no/such');
});

test('a missing socket is not to be created as a folder', () => {
  const { hint } = refused(
    'invalid mount config for type "bind": bind source path does not exist: /run/user/7/docker.sock',
    [],
    400,
  );
  expect(hint).toMatch(/^Start the program that listens there/);
});

describe('an Engine that cannot give devices', () => {
  test.each([
    [
      'nobody to ask',
      'could not select device driver "nvidia" with capabilities: [[gpu compute utility]]',
      false,
      'nvidia-container-toolkit',
    ],
    [
      'a hook that was taken away',
      'OCI runtime create failed: exec: "nvidia-container-runtime-hook": executable file not found in $PATH: unknown',
      false,
      'nvidia-container-toolkit',
    ],
    [
      'a CDI specification that is too old',
      'failed to create task: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-0: unknown',
      true,
      'nvidia-ctk cdi generate',
    ],
    ['no such runtime', 'Unknown runtime specified nvidia', false, 'nvidia-ctk runtime configure'],
    [
      'an image for a newer driver',
      hook(
        "Auto-detected mode as 'legacy'\nnvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or use an earlier cuda container",
      ),
      false,
      'an older CUDA',
    ],
    ['a card that is lost', hook('nvidia-container-cli: device error: GPU-0: unknown device'), true, 'nvidia-smi'],
    [
      'a hook of an older Engine',
      'OCI runtime create failed: container_linux.go:380: starting container process caused: process_linux.go:545: container init caused: Running hook #0:: error running hook: exit status 1, stdout: , stderr: nvidia-container-cli: initialization error: driver rpc error: timed out: unknown',
      true,
      'nvidia-smi',
    ],
    [
      'a node that is gone',
      'error gathering device information while adding custom device "/dev/dri/renderD128": no such file or directory',
      true,
      'onejob gpus',
    ],
  ])('%s', (_, said, retry, hint) => {
    const error = refused(said);
    expect(error).toMatchObject({ code: 'E_DEVICES_REFUSED', retry, hint: expect.stringContaining(hint) });
    expect(error.message).toMatch(/^Cannot start agent con\.1: /);
  });

  test("is explained by the tool's last words", () => {
    expect(
      refused(hook("Auto-detected mode as 'legacy'\nnvidia-container-cli: device error: GPU-0: unknown device: unknown")).message,
    ).toBe(
      'Cannot start agent con.1: the Engine failed to give it GPU-0: nvidia-container-cli: device error: GPU-0: unknown device.',
    );
    expect(
      refused(hook('nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update')).message,
    ).toContain('needs cuda>=12.8');
  });

  test('is not explained by devices if there are none, or if the message is about something else', () => {
    expect(refused('Unknown runtime specified x', [], 400).code).toBe('E_ENGINE_FAILED');
    expect(refused('exec: "sh": executable file not found in $PATH').code).toBe('E_NO_SHELL');
    expect(refused('exec: "docker-init": executable file not found in $PATH', [])).toMatchObject({
      code: 'E_ENGINE_FAILED',
      hint: expect.stringContaining('tini'),
    });
    expect(refused('no space left on device').code).toBe('E_DISK_FULL');
  });
});
