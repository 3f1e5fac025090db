/** A device, what was on it and what is, for tests of the clean-slot proof. */

import type { ProofInput } from '../../src/gpu/baseline.ts';
import type { Device, GpuFinding, GpuProcess, Inventory } from '../../src/gpu/inventory.ts';
import { createKernelParser, type KernelEvent } from '../../src/gpu/kernel-log.ts';
import type { KernelLook } from '../../src/gpu/kernel-reader.ts';
import type { ProcessOwner } from '../../src/gpu/processes.ts';
import { baselineOf, judgeProof } from '../../src/gpu/proof.ts';
import { gpu as card } from '../support/devices.ts';

export const id = (digit: string) => digit.repeat(64);
export const dead = id('d');
const wall = new Date(2026, 9, 5, 15, 30).getTime();

export const gpu: Device = card(0, {
  uuid: 'GPU-1',
  pciId: '0000:9b:00.0',
  memoryUsedMiB: 1,
  health: { state: 'ok', reasons: [], uncorrectedErrors: 0, recoveryAction: 'None' },
  settings: '1980/2619 MHz, 700 W',
  ecc: { current: true, pending: true },
});
export const slice: Device = {
  ...gpu,
  kind: 'mig',
  uuid: 'MIG-1',
  parent: 'GPU-1',
  mig: { profile: '3g.20gb', gpuInstance: 2, computeInstance: 0 },
  memoryMiB: 19_968,
  memoryUsedMiB: 19,
};

export const process = (pid: number, more: Partial<GpuProcess> = {}): GpuProcess => ({
  pid,
  name: 'python',
  type: 'C',
  memoryMiB: 9421,
  gpuInstance: null,
  computeInstance: null,
  ...more,
});
export const owner = (pid: number, more: Partial<ProcessOwner> = {}): [number, ProcessOwner] => [
  pid,
  {
    pid,
    state: 'S',
    uid: 1001,
    user: 'alice',
    command: 'python',
    startedAt: new Date(2026, 9, 5, 14, 2).getTime(),
    containers: [],
    agents: [],
    mark: null,
    ...more,
  },
];
export const hostFinding = (code: string, message = 'It failed.'): GpuFinding => ({
  level: 'error',
  code,
  subject: 'host',
  message,
  hint: null,
});
/** Events of records of `/dev/kmsg`, or of what `dmesg` prints of them: it indents the further lines of a record, or none. */
export function parseKernelLog(text: string): KernelEvent[] {
  const asRecord = (line: string, at: number): string => {
    const [, seconds = '0', said = ''] = /^(?:\[ *(\d+\.\d+)\] |\[\w[^\]]*\] |(?=NVRM))(.*)$/s.exec(line) ?? [];
    const escaped = said.replaceAll(/\n\s*/g, '\\x0a');
    return said === '' ? line : `4,${1000 + at},${Math.round(Number(seconds) * 1e6)},-;${escaped}`;
  };
  return text
    .split(/\n(?! {2,}\S)/)
    .map(asRecord)
    .flatMap(createKernelParser());
}
/** For a log that was not read. */
export const noKernelLook: KernelLook = { readable: false, events: [], lost: false, mark: { seq: null, at: null } };
export const log = (text: string): KernelLook => ({
  readable: true,
  events: parseKernelLog(text),
  lost: false,
  mark: { seq: 9, at: 9 },
});

export interface Scene {
  readonly before?: Device;
  readonly now?: Partial<Device> | null;
  readonly inventory?: Partial<Inventory>;
  readonly owners?: [number, ProcessOwner][];
  readonly input?: Partial<ProofInput>;
}

/** The device as it was, and as it is now, `after` ms after its agent was gone. */
export function scene({ before = gpu, now = {}, inventory = {}, owners = [], input = {} }: Scene, after = 0): ProofInput {
  return {
    baseline: baselineOf(before, { boot: 'b1', driver: '550.54.14', mark: { seq: 100, at: 50 }, before: null }),
    inventory: {
      complete: true,
      driver: '550.54.14',
      cuda: '12.4',
      cudaFrom: 'tool',
      devices: now === null ? [] : [{ ...before, ...now }],
      findings: [],
      ...inventory,
    },
    owners: new Map(owners),
    ours: { owner: 'o1', alive: new Set([id('a')]), ended: new Set([dead]) },
    kernel: log(''),
    boot: 'b1',
    shared: false,
    missingNodes: [],
    now: 1_000_000 + after,
    since: 1_000_000,
    wall,
    ...input,
  };
}
export const verdict = (what: Scene, after = 0) => judgeProof(scene(what, after));
export const result = (what: Scene, check: string) => verdict(what).evidence.checks.find((one) => one.check === check)?.result;
