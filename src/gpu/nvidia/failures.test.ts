import { describe, expect, test } from 'vitest';
import { nvidia } from '../../../test/support/gpu-recordings.ts';
import { recorded } from '../run.ts';
import { failuresIn, failuresOf } from './failures.ts';

const codes = (text: string) => failuresIn(text).map(({ code, subject }) => `${code} ${subject}`);

describe('a recorded complaint has its code', () => {
  test.each([
    ['driver-not-loaded.txt', 'driver-not-loaded host'],
    ['version-mismatch-old.txt', 'library-mismatch host'],
    ['version-mismatch-new.txt', 'library-mismatch host'],
    ['version-mismatch-550.txt', 'library-mismatch host'],
    ['no-devices.txt', 'no-devices host'],
    ['gpu-is-lost.txt', 'gpu-lost 0000:02:00.0'],
    ['device-handle-unknown-new.txt', 'device-handle 0000:07:00.0'],
    ['insufficient-permissions.txt', 'insufficient-permissions host'],
    ['in-container-unknown-error.txt', 'nvml-unknown-error host'],
  ])('%s: %s', (file, code) => expect(codes(nvidia(`errors/${file}`))).toEqual([code]));
});

describe('wordings of other branches', () => {
  test.each([
    ['Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error', 'device-handle 0000:0b:00.0'],
    [
      'Unable to determine the device handle for gpu 0000:08:00.0: GPU is lost.  Reboot the system to recover this GPU',
      'gpu-lost 0000:08:00.0',
    ],
    ['Unable to determine the device handle for GPU1: 0000:44:00.0: Unknown Error', 'device-handle 0000:44:00.0'],
    [
      'Unable to determine the device handle for GPU0: 0000:24:00.0: GPU is lost.  Reboot the system to recover this GPU',
      'gpu-lost 0000:24:00.0',
    ],
    ['Unable to determine the device handle for GPU 0000:01:00.0: GPU requires reset', 'reset-required 0000:01:00.0'],
    ['Unable to determine the device handle for GPU2: Unknown Error', 'device-handle host'],
    ['WARNING: infoROM is corrupted at gpu 0000:81:00.0', 'inforom-corrupt 0000:81:00.0'],
    ['WARNING: You should always run with libnvidia-ml.so that is installed with your NVIDIA Display Driver.', 'tool-warning host'],
    ['Warning: persistence mode is disabled on device 00000000:81:00.0.', 'tool-warning 0000:81:00.0'],
    ["NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure …", 'nvml-missing host'],
    ['Failed to initialize NVML: Driver Not Loaded', 'driver-not-loaded host'],
    ['Failed to initialize NVML: NVML Shared Library Not Found', 'nvml-missing host'],
    ['Failed to initialize NVML: GPU access blocked by the operating system', 'access-blocked host'],
    ['bash: nvidia-smi: command not found', 'tool-missing host'],
    ['sh: 1: nvidia-smi: not found', 'tool-missing host'],
    ['/bin/sh: line 1: nvidia-smi: command not found', 'tool-missing host'],
    ['Segmentation fault (core dumped)', 'tool-failed host'],
  ])('%s', (text, code) => expect(codes(text)).toEqual([code]));

  test('each complaint once, whatever stands around it', () => {
    const line = 'Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error';
    expect(codes(`\n${line}\r\n0, GPU-1\n${line}\n`)).toEqual(['device-handle 0000:0b:00.0']);
    expect(codes('')).toEqual([]);
    expect(codes('everything is fine')).toEqual([]);
    // onejob asks for no fields by name.
    expect(codes(nvidia('errors/invalid-field.txt'))).toEqual([]);
  });
});

test('a mismatch names both versions and says that a reboot is needed', () => {
  const [found] = failuresIn(nvidia('errors/version-mismatch-550.txt'), '550.120');
  expect(found?.message).toContain('550.144');
  expect(found?.message).toContain('550.120');
  expect(found?.hint).toMatch(/^Reboot needed/);
});

describe('an exit code counts where no text is known', () => {
  test.each([
    [2, 'invalid-argument'],
    [4, 'insufficient-permissions'],
    [6, 'no-devices'],
    [9, 'driver-not-loaded'],
    [12, 'nvml-missing'],
    [14, 'inforom-corrupt'],
    [15, 'gpu-lost'],
    [18, 'library-mismatch'],
    [127, 'tool-missing'],
    [255, 'tool-failed'],
    [137, 'tool-failed'],
  ])('%d: %s', (code, expected) => {
    const reply = { ...recorded('what is this'), code };
    const found = failuresOf(reply, reply.output);
    expect(found.map((each) => each.code)).toEqual([expected]);
    expect(found[0]?.message).toContain('what is this');
  });

  test('the text comes first', () => {
    const output = nvidia('errors/driver-not-loaded.txt');
    expect(failuresOf({ ...recorded(output), code: 255 }, output).map((each) => each.code)).toEqual(['driver-not-loaded']);
  });

  test('an error text with exit code 0 is an error', () => {
    const output = nvidia('errors/no-devices.txt');
    expect(failuresOf({ ...recorded(output), code: 0 }, output).map((each) => each.code)).toEqual(['no-devices']);
  });
});

test('a tool that hangs is said with what it was asked', () => {
  const [found] = failuresOf({ ...recorded('', ['-q', '-x']), hung: true }, '');
  expect(found).toMatchObject({ level: 'error', code: 'tool-hung', subject: 'host' });
  expect(found?.message).toContain('nvidia-smi -q -x');
});

test('no complaint is longer than a sentence, or moves a cursor', () => {
  const nasty = `\u001b[2J${'x'.repeat(5000)}`;
  for (const { message } of failuresOf({ ...recorded(nasty), code: 200 }, nasty)) {
    expect(message.length).toBeLessThan(300);
    expect(message).not.toContain('\u001b');
  }
});
