import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { parseKernelLog } from '../../test/kit/gpu.ts';
import { isAfter, type KernelEvent, pciPlace } from './kernel-log.ts';

const fixture = (name: string) =>
  readFileSync(join(import.meta.dirname, '../../test/fixtures/gpu/nvidia-smi/kernel', `${name}.log`), 'utf8');
const seen = (text: string) => parseKernelLog(text).map(({ kind, pciId, xid, at }) => ({ kind, pciId, xid, at }));

describe('recorded logs', () => {
  test('a GSP that times out: each Xid 119, and that the driver wants a reset', () => {
    const events = parseKernelLog(fixture('dmesg-xid-119'));
    expect(events.map(({ kind, xid, pciId }) => [kind, xid, pciId])).toEqual([
      ['xid', 119, '0000:9b:00'],
      ['xid', 119, '0000:9b:00'],
      ['xid', 119, '0000:9b:00'],
      ['reset-needed', null, '0000:9b:00'],
      ['xid', 119, '0000:9b:00'],
      ['xid', 119, '0000:9b:00'],
    ]);
    expect(events.every((event) => event.gpuInstance === null)).toBe(true);
    expect(events[0]?.text).toMatch(/^NVRM: Xid \(PCI:0000:9b:00\): 119, pid=2024380, name=nvidia-smi, Timeout after 6s/);
  });

  test('off the bus with a number, and without one over three lines', () => {
    expect(seen(fixture('dmesg-xid-79'))).toEqual([{ kind: 'xid', pciId: '0000:44:00', xid: 79, at: 0 }]);
    const [event, ...rest] = parseKernelLog(fixture('dmesg-fallen-off-bus-no-xid'));
    expect(event).toMatchObject({ kind: 'fallen-off', pciId: '0000:b3:00', xid: null, at: 1843.308145 });
    expect(event?.text).toContain('has fallen off the bus and is not responding');
    expect(rest).toEqual([]);
  });

  test('an adapter that cannot be initialised', () => {
    expect(seen(fixture('dmesg-rminitadapter-gsp'))).toEqual([
      { kind: 'rm-init', pciId: '0000:98:00', xid: null, at: 903.610907 },
      { kind: 'rm-init', pciId: '0000:98:00', xid: null, at: 903.611884 },
    ]);
  });
});

describe('other ways to write the same', () => {
  const event = 'NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python3, Ch 00000008, MMU Fault';
  test.each([
    ['/dev/kmsg', `4,1234,5678901,-;${event}`, 5.678901],
    ['/dev/kmsg with a caller', `4,1234,5678901,-,caller=T42;${event}`, 5.678901],
  ])('%s', (_, line, at) => {
    expect(seen(line)).toEqual([{ kind: 'xid', pciId: '0000:3b:00', xid: 31, at }]);
  });

  test.each([
    ['NVRM: Xid (0000:03:00): 31, Ch 00000030', '0000:03:00', 31],
    ['NVRM: Xid (0003:00): 8, Channel 0000007e', '0000:03:00', 8],
    ['NVRM: Xid (PCI:03F8CFDD:00:00): 79', '3f8cfdd:00:00', 79],
    ["NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", '0000:44:00', 79],
  ])('%s', (line, pciId, xid) => {
    expect(parseKernelLog(line)).toMatchObject([{ kind: 'xid', pciId, xid }]);
  });

  test('the MIG instance that is blamed', () => {
    expect(parseKernelLog('NVRM: Xid (PCI:0000:01:00 GPU-I:05): 13, pid=1, name=a')).toMatchObject([{ xid: 13, gpuInstance: 5 }]);
    expect(parseKernelLog('NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 13, pid=1')).toMatchObject([{ xid: 13, gpuInstance: 5 }]);
  });

  test('off the bus in one line, in two without NVRM, and in one record of /dev/kmsg', () => {
    for (const text of [
      '[1.5] NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.',
      '[1.5] NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:28a0) installed in this system\n      has fallen off the bus and is not responding',
      '3,1,1500000,-;NVRM: The NVIDIA GPU 0000:01:00.0\\x0aNVRM: (PCI ID: 10de:28a0) installed in this system has\\x0aNVRM: fallen off the bus',
    ]) {
      expect(parseKernelLog(text)).toMatchObject([{ kind: 'fallen-off', pciId: '0000:01:00', at: 1.5 }]);
    }
  });
});

test('messages about the whole host are events of no GPU', () => {
  const mismatch =
    '[9.1] NVRM: API mismatch: the client has the version 550.144.03, but\nNVRM: this kernel module has the version 535.161.07.';
  for (const text of [mismatch, fixture('dmesg-probe-not-called')]) expect(parseKernelLog(text)).toEqual([]);
});

test('what the kernel did not write is not an event', () => {
  const line = 'NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus';
  for (const text of [
    `12,1234,5678901,-;${line}`,
    ` SUBSYSTEM=pci ${line}`,
    `Feb 23 16:24:18 gpu1 job[12]: ${line}`,
    `4,1234,5678901,-;overlayfs: failed to resolve '/tmp/x\\x0a${line}'`,
    `3,12,1,-;Xid (PCI:0000:3b:00): 79`,
    'NVRM: Xid (PCI:zz:00): 79',
    'NVRM: Xid (PCI:0000:3b:00): many',
    '[1.0] NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d',
  ])
    expect(parseKernelLog(text), text).toEqual([]);
});

test('a name that a job gave itself reaches no terminal as it is', () => {
  const [event] = parseKernelLog('4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=\\x1b[2J\\xc3\\xa9x, more');
  expect(event?.text).toBe('NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=?[2J??x, more');
});

test.each([
  ['00000000:01:00.0', '0000:01:00'],
  ['0000:01:00.0', '0000:01:00'],
  ['01:00.0', '0000:01:00'],
  ['PCI:0000:9B:00', '0000:9b:00'],
  ['03F8CFDD:00:00.0', '3f8cfdd:00:00'],
  ['N/A', null],
  ['', null],
  ['0000:01:00.9', null],
])('PCI address %s', (written, place) => {
  expect(pciPlace(written)).toBe(place);
});

test('before or after a mark: by record, else by time; an unknown mark is before everything', () => {
  const event = (place: Partial<KernelEvent>) => {
    const [found] = parseKernelLog('NVRM: Xid (PCI:0000:44:00): 79');
    if (found === undefined) throw new Error('no event');
    return { ...found, ...place };
  };
  expect(isAfter(event({ seq: 5, at: 100 }), { seq: 5, at: 1 })).toBe(false);
  expect(isAfter(event({ seq: 6, at: 0 }), { seq: 5, at: 100 })).toBe(true);
  expect(isAfter(event({ at: 99 }), { seq: null, at: 100 })).toBe(false);
  expect(isAfter(event({ at: 100 }), { seq: null, at: 100 })).toBe(true);
  expect(isAfter(event({ seq: 4 }), { seq: null, at: null })).toBe(true);
});

test('any text is read without fault, and no address is invented', () => {
  const names = ['dmesg-xid-119', 'dmesg-fallen-off-bus-no-xid', 'dmesg-rminitadapter-gsp', 'dmesg-xid-79'];
  const pieces = names.flatMap((name) => fixture(name).split('\n'));
  const line = fc.oneof(
    fc.constantFrom(...pieces),
    fc.string({ maxLength: 80 }),
    fc
      .tuple(fc.constantFrom(...pieces), fc.nat(200), fc.string({ maxLength: 5 }))
      .map(([at, cut, put]) => at.slice(0, cut) + put + at.slice(cut + 3)),
  );
  fc.assert(
    fc.property(fc.array(line, { maxLength: 12 }), (lines) => {
      const text = lines.join('\n');
      for (const event of parseKernelLog(text)) {
        expect(text.toLowerCase()).toContain(event.pciId.slice(-5));
        if (event.kind === 'xid') expect(text).toContain(String(event.xid));
        expect(event.text.length).toBeLessThanOrEqual(400);
      }
    }),
    { numRuns: 2000 },
  );
});
