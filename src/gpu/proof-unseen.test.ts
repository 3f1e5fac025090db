/** What the kernel log reports about a device, and what nothing reports: neither is ever taken for clean. */
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { dead, gpu, hostFinding, log, owner, result, scene, slice, verdict } from '../../test/kit/gpu.ts';
import type { Device } from './inventory.ts';
import type { KernelLook } from './kernel-reader.ts';
import { judgeProof } from './proof.ts';

describe('the kernel log', () => {
  const xid = (number: number, seq = 101, where = '0000:9b:00') =>
    log(`4,${seq},60000000,-;NVRM: Xid (PCI:${where}): ${number}, pid=41, name=python`);

  test.each([
    [13, 'clean', null],
    [63, 'clean', null],
    [119, 'dirty', 'reset'],
    [79, 'dirty', 'reboot'],
    [74, 'dirty', 'replace'],
    [999, 'dirty', 'look'],
  ])('Xid %d', (number, kind, remedy) => {
    const found = verdict({ input: { kernel: xid(number) } });
    expect(found.kind).toBe(kind);
    expect(found.evidence.kernel).toEqual([`NVRM: Xid (PCI:0000:9b:00): ${number}, pid=41, name=python`]);
    if (found.kind === 'dirty') expect([found.remedy, found.message]).toEqual([remedy, expect.stringContaining(`Xid ${number}`)]);
  });

  test('what came before the agent, or of another GPU, is not its doing', () => {
    expect(verdict({ input: { kernel: xid(79, 100) } }).kind).toBe('clean');
    expect(verdict({ input: { kernel: xid(79, 101, '0000:9c:00') } }).kind).toBe('clean');
    expect(verdict({ input: { kernel: xid(79, 3), boot: 'b2' } }).kind).toBe('dirty');
  });

  test('off the bus without a number, no initialisation, a reset asked for', () => {
    for (const [text, code] of [
      ['[60.0] NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.', 'fallen-off'],
      ['[60.0] NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x62:0x65:1792)', 'rm-init'],
      [
        '[60.0] NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30).  The GPU likely needs to be reset.',
        'reset-needed',
      ],
    ] as const)
      expect(verdict({ input: { kernel: log(text) } })).toMatchObject({ kind: 'dirty', code });
  });

  test('a changed recovery action that the tool cannot tell', () => {
    const kernel = (to: string) =>
      log(`4,101,1,-;NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to ${to}`);
    const now = { health: { ...gpu.health, recoveryAction: null } };
    expect(verdict({ now, input: { kernel: kernel('0x2 (Node Reboot Required)') } }).kind).toBe('dirty');
    expect(verdict({ now, input: { kernel: kernel('0x0 (None)') } }).kind).toBe('clean');
    expect(verdict({ input: { kernel: kernel('0x2 (Node Reboot Required)') } }).kind).toBe('clean');
  });

  test("an error of another MIG instance, and one that takes every instance's reset", () => {
    const at = (number: number) => log(`4,101,1,-;NVRM: Xid (PCI:0000:9b:00 GPU-I:01): ${number}, pid=1`);
    expect(verdict({ before: slice, input: { kernel: at(999) } }).kind).toBe('clean');
    expect(verdict({ before: slice, input: { kernel: at(95) } })).toMatchObject({
      kind: 'dirty',
      hint: expect.stringContaining('--gpu-reset -i GPU-1'),
    });
  });

  test('not readable: said, and no hindrance', () => {
    const kernel: KernelLook = { readable: false, events: [], lost: false, mark: { seq: null, at: 1 } };
    const found = verdict({ input: { kernel } });
    expect(found.kind).toBe('clean');
    expect(found.evidence.checks).toContainEqual({
      check: 'kernelLog',
      result: 'unchecked',
      saw: 'kernel log not readable',
      before: null,
    });
  });
});

describe('what cannot be seen', () => {
  test('a value that was known before and is not now', () => {
    for (const now of [
      { processes: null },
      { memoryUsedMiB: null },
      { computeMode: null },
      { persistence: null },
      { mig: null },
      { ecc: null },
      { health: { ...gpu.health, uncorrectedErrors: null } },
      { health: { ...gpu.health, state: 'unknown' } as const },
    ])
      expect(verdict({ now }, 90_000).kind, JSON.stringify(now)).toBe('unknown');
    expect(verdict({ inventory: { driver: null } }).kind).toBe('unknown');
  });

  test('what this device never tells is unchecked, and the evidence says so', () => {
    const before = { ...gpu, processes: null, memoryUsedMiB: null, computeMode: null, mig: null, ecc: null, pciId: null };
    expect(verdict({ before }).kind).toBe('clean');
    for (const check of ['processes', 'memory', 'computeMode', 'mig', 'eccMode', 'kernelLog'])
      expect(result({ before }, check)).toBe('unchecked');
  });

  test('gone from a whole list it is missing, from half of one unknown', () => {
    expect(verdict({ now: null })).toMatchObject({ kind: 'dirty', code: 'missing', remedy: 'reboot' });
    expect(verdict({ before: slice, now: null })).toMatchObject({
      kind: 'dirty',
      code: 'missing',
      remedy: 'look',
      message: expect.stringContaining('MIG layout of GPU-1'),
    });
    expect(verdict({ now: null, inventory: { complete: false } }).kind).toBe('unknown');
  });

  test('a tool that hangs once, and one that keeps hanging', () => {
    const hung = { complete: false, findings: [hostFinding('tool-hung', 'nvidia-smi did not end.')] };
    expect(verdict({ now: null, inventory: hung })).toMatchObject({ kind: 'unknown', message: 'nvidia-smi did not end.' });
    const again = { complete: false, findings: [...hung.findings, hostFinding('tool-keeps-hanging')] };
    expect(verdict({ now: null, inventory: again })).toMatchObject({
      kind: 'host',
      code: 'tool-keeps-hanging',
      message: expect.stringMatching(/^Reboot needed/),
    });
  });

  test('a driver that its library does not fit is the fault of no device', () => {
    const findings = [hostFinding('library-mismatch', 'Driver and library differ.')];
    const found = verdict({ now: null, inventory: { complete: false, driver: null, findings } });
    expect(found).toMatchObject({ kind: 'host', message: 'Reboot needed. Driver and library differ.' });
    // Another vendor's tool does not matter for this device.
    expect(verdict({ inventory: { complete: false, findings: [hostFinding('tool-keeps-hanging')] } }).kind).toBe('clean');
  });

  test('the GPU that makes the tool hang is the one at fault', () => {
    const kernel = log('[60.0] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.');
    const inventory = { complete: false, findings: [hostFinding('tool-keeps-hanging')] };
    expect(verdict({ now: null, inventory, input: { kernel } })).toMatchObject({ kind: 'dirty', code: 'xid', remedy: 'reboot' });
  });
});

test('whatever is seen: no fault thrown, nothing clean that is unknown, and evidence that survives a store', () => {
  const maybe = <T>(value: fc.Arbitrary<T>) => fc.oneof(fc.constant(null), value);
  const processes = fc.array(
    fc.record({
      pid: fc.nat(9),
      name: maybe(fc.string()),
      type: fc.constantFrom('C', 'G', 'C+G', 'M+C', null),
      memoryMiB: maybe(fc.nat(9_000)),
      gpuInstance: maybe(fc.nat(3)),
      computeInstance: maybe(fc.nat(1)),
    }),
    { maxLength: 4 },
  );
  const device: fc.Arbitrary<Device> = fc.record({
    kind: fc.constantFrom('gpu', 'mig'),
    vendor: fc.constantFrom('nvidia', 'amd', 'intel'),
    uuid: fc.constant('GPU-1'),
    parent: fc.constantFrom(null, 'GPU-0'),
    index: fc.constant(null),
    minor: fc.constant(null),
    pciId: fc.constantFrom('0000:9b:00.0', 'odd', null),
    model: fc.string(),
    memoryMiB: maybe(fc.nat()),
    memoryUsedMiB: maybe(fc.nat(20_000)),
    computeCapability: fc.constant(null),
    architecture: fc.constant(null),
    mig: fc.constantFrom(null, gpu.mig, slice.mig, { mode: 'enabled', pending: 'disabled' } as const),
    health: fc.record({
      state: fc.constantFrom('ok', 'failed', 'unknown'),
      reasons: fc.array(fc.string(), { maxLength: 2 }),
      uncorrectedErrors: maybe(fc.nat(3)),
      recoveryAction: fc.constantFrom(null, 'None', 'Reset', 'x'),
    }),
    persistence: maybe(fc.boolean()),
    settings: maybe(fc.constantFrom('1980/2619 MHz, 700 W', '1410/2619 MHz, 700 W')),
    ecc: maybe(fc.record({ current: fc.boolean(), pending: fc.boolean() })),
    computeMode: fc.constantFrom(null, 'Default', 'Prohibited'),
    display: maybe(fc.boolean()),
    processes: maybe(processes),
  });
  const line = fc.tuple(
    fc.constantFrom(13, 79, 119, 154, 999),
    fc.constantFrom('0000:9b:00', '0000:9b:00 GPU-I:01', '0000:01:00'),
    fc.constantFrom(99, 101),
  );
  fc.assert(
    fc.property(
      device,
      fc.oneof(fc.constant(null), device),
      fc.boolean(),
      fc.array(line, { maxLength: 3 }),
      fc.nat(100_000),
      fc.subarray([1, 2, 3, 4, 5, 6, 7, 8]),
      (before, now, complete, lines, after, known) => {
        const kernel = log(lines.map(([number, place, seq]) => `4,${seq},1,-;NVRM: Xid (PCI:${place}): ${number}`).join('\n'));
        const owners = known.map((pid) => owner(pid, { containers: pid % 2 === 0 ? [dead] : [] }));
        const input = scene({ before, now, inventory: { complete }, owners, input: { kernel } }, after);
        const found = judgeProof(input);
        expect(JSON.parse(JSON.stringify(found))).toEqual(found);
        const results = found.evidence.checks.map((check) => check.result);
        if (now === null) expect(found.kind).not.toBe('clean');
        if (found.kind === 'clean') expect(results.every((one) => one === 'ok' || one === 'unchecked')).toBe(true);
        if (found.kind === 'wait') expect(found.until).toBeGreaterThan(input.now);
        expect(judgeProof(input)).toEqual(found);
      },
    ),
    { numRuns: 3000 },
  );
});
