import { expect, it } from 'vitest';
import { engineAway } from '../base/errors.ts';
import type { FailedIn, Outcome } from '../core/job-end.ts';
import { type Exit, type JobResult, stoppedWithJob, takenWithJob } from '../core/slot.ts';
import { deviceEvidence } from '../verdict/evidence.ts';
import { type DeviceEvidence, type Ending, judgeEnding, type VerdictKind } from './verdict.ts';

const healthy: DeviceEvidence = { faults: [], doubts: [], errors: [] };
const fault: DeviceEvidence = { ...healthy, faults: ['Xid 79, GPU has fallen off the bus, on GPU-1'] };
const doubt: DeviceEvidence = { ...healthy, doubts: ['Xid 999, not known to onejob, on GPU-1'] };
const page: DeviceEvidence = { ...healthy, errors: ['Xid 31, GPU memory page fault, on GPU-1'] };

const code = (number: number): JobResult => ({ kind: 'code', code: number });
const failed = (errorCode: string, retry: boolean): JobResult => ({
  kind: 'unstartable',
  failure: { code: errorCode, message: 'it failed', retry },
});

function own(result: JobResult | null, more: Partial<Ending> = {}): Ending {
  return { result, exit: null, memoryLimited: true, ownRecipe: false, ownImage: false, ...more };
}

function reported(
  outcome: Outcome | null,
  exit: Exit | null = null,
  more: Partial<Ending> = {},
  failedIn: FailedIn | null = 'script',
): Ending {
  return {
    result: { kind: 'reported', word: 'word', outcome, failedIn, note: null },
    exit,
    memoryLimited: true,
    ownRecipe: false,
    ownImage: false,
    ...more,
  };
}

it.each<[string, Ending, DeviceEvidence, VerdictKind, string]>([
  ['exit 0', own(code(0)), healthy, 'passed', 'exit code 0'],
  ['exit 0 on a card that failed', own(code(0)), fault, 'passed', 'exit code 0'],
  ['exit 1', own(code(1)), healthy, 'code', 'exit code 1'],
  ['exit 1 and Xid 79', own(code(1)), fault, 'infrastructure', 'Xid 79, GPU has fallen off the bus, on GPU-1'],
  ['exit 1 and Xid 31', own(code(1)), page, 'code', 'Xid 31, GPU memory page fault, on GPU-1'],
  ['exit 1 and an unknown Xid', own(code(1)), doubt, 'unknown', 'Xid 999, not known to onejob, on GPU-1'],
  ['exit 127', own(code(127)), healthy, 'code', 'exit code 127'],
  ['exit 137 without an OOM kill', own(code(137)), healthy, 'unknown', 'exit code 137'],
  ['exit 143, as after docker stop', own(code(143)), healthy, 'unknown', 'exit code 143'],
  ['exit 130', own(code(130)), healthy, 'unknown', 'exit code 130'],
  ['exit 139', own(code(139)), healthy, 'code', 'exit code 139'],
  ['SIGSEGV', own({ kind: 'signal', signal: 'SIGSEGV' }), healthy, 'code', 'signal SIGSEGV'],
  ['SIGKILL', own({ kind: 'signal', signal: 'SIGKILL' }), healthy, 'unknown', 'signal SIGKILL'],
  ['SIGTERM', own({ kind: 'signal', signal: 'SIGTERM' }), healthy, 'unknown', 'signal SIGTERM'],
  ['an OOM kill by its limit', own({ kind: 'oom' }), healthy, 'code', 'OOM kill'],
  ['an OOM kill without a limit', own({ kind: 'oom' }, { memoryLimited: false }), healthy, 'unknown', 'OOM kill'],
  ['an OOM kill by a limit that is known', own({ kind: 'oom' }, { memoryLimit: 64 * 2 ** 20 }), healthy, 'code', 'OOM kill'],
  ['an OOM kill whose peak is known', own({ kind: 'oom', peak: 63.4 * 2 ** 20 }), healthy, 'code', '63.4 MiB of memory at most'],
  ['a lost agent', own({ kind: 'lost', reason: 'the host was restarted' }), healthy, 'infrastructure', 'agent lost'],
  ['a job that a stop of onejob ended', own({ kind: 'lost', reason: stoppedWithJob }), healthy, 'unknown', stoppedWithJob],
  ['a job whose machine the cloud took back', own({ kind: 'lost', reason: takenWithJob }), healthy, 'infrastructure', 'agent lost'],
  ['the same on a card that failed', own({ kind: 'lost', reason: stoppedWithJob }), fault, 'infrastructure', stoppedWithJob],
  ['a time limit', own({ kind: 'timeout' }), healthy, 'code', 'time limit'],
  ['a time limit that is known', own({ kind: 'timeout' }, { timeLimit: 90_000 }), healthy, 'code', 'time limit 1m30s'],
  ['a time limit on a card that failed', own({ kind: 'timeout' }), fault, 'infrastructure', 'time limit'],
  ['a disk limit', own({ kind: 'disk' }), healthy, 'code', 'disk limit'],
  ['a cancelled job', own({ kind: 'cancelled' }), fault, 'cancelled', ''],
  ['an image that cannot be pulled', own(failed('E_PULL_FAILED', true)), healthy, 'infrastructure', 'E_PULL_FAILED: it failed'],
  [
    'its own image, which does not exist',
    own(failed('E_IMAGE_NOT_FOUND', false), { ownRecipe: true, ownImage: true }),
    healthy,
    'code',
    'E_IMAGE_NOT_FOUND: it failed',
  ],
  [
    "a registry that is away, with the job's own image",
    own(failed('E_REGISTRY_UNREACHABLE', true), { ownRecipe: true, ownImage: true }),
    healthy,
    'infrastructure',
    'E_REGISTRY_UNREACHABLE: it failed',
  ],
  [
    'a host that can give no agent an engine for containers, with limits and an image of its own',
    own(failed('E_NO_CONTAINERS', false), { ownRecipe: true, ownImage: true }),
    healthy,
    'configuration',
    'E_NO_CONTAINERS: it failed',
  ],
  [
    'its own image, which the Engine failed to pull for another reason',
    own(failed('E_PULL_FAILED', true), { ownRecipe: true, ownImage: true }),
    healthy,
    'unknown',
    'E_PULL_FAILED: it failed',
  ],
  [
    'its own image, which the registry refused',
    own(failed('E_IMAGE_DENIED', false), { ownRecipe: true, ownImage: true }),
    healthy,
    'unknown',
    'E_IMAGE_DENIED: it failed',
  ],
  [
    'a volume of its pool that is gone, with a memory limit of its own',
    own(failed('E_MOUNT_MISSING', false), { ownRecipe: true }),
    healthy,
    'unknown',
    'E_MOUNT_MISSING: it failed',
  ],
  ['an invalid request', own(failed('E_JOB_REQUEST', false)), healthy, 'code', 'E_JOB_REQUEST: it failed'],
  ['a workspace that is gone', own(failed('E_WORKSPACE_UNKNOWN', false)), healthy, 'unknown', 'E_WORKSPACE_UNKNOWN: it failed'],
  ['an end that nobody reported', own(null), healthy, 'unknown', ''],
  [
    'an end that nobody reported, on a card that failed',
    own(null),
    fault,
    'infrastructure',
    'Xid 79, GPU has fallen off the bus, on GPU-1',
  ],
  ['a service that says passed', reported('passed'), healthy, 'passed', 'result word'],
  ['a service that says cancelled', reported('cancelled'), healthy, 'cancelled', 'result word'],
  ['a service that says failed', reported('failed'), healthy, 'code', 'result word'],
  [
    "a service that says failed, and the agent ended with its job's code",
    reported('failed', { kind: 'code', code: 1 }),
    healthy,
    'code',
    'result word',
  ],
  ['a service that says failed outside of the script', reported('failed', null, {}, 'runner'), healthy, 'unknown', 'result word'],
  ['a service that does not say where it failed', reported('failed', code(1) as Exit, {}, null), healthy, 'unknown', 'result word'],
  [
    'a service that says failed outside of the script, and a sandbox out of memory',
    reported('failed', { kind: 'oom' }, {}, 'runner'),
    healthy,
    'code',
    'OOM kill',
  ],
  ['a service that says failed, on a card that failed', reported('failed'), fault, 'infrastructure', 'result word'],
  [
    'a service that says failed, and a sandbox that was killed',
    reported('failed', { kind: 'signal', signal: 'SIGKILL' }),
    healthy,
    'unknown',
    'signal SIGKILL',
  ],
  ['a service that says failed, and a sandbox out of memory', reported('failed', { kind: 'oom' }), healthy, 'code', 'OOM kill'],
  [
    'a service that says failed, and a sandbox that was lost',
    reported('failed', { kind: 'lost', reason: 'gone' }),
    healthy,
    'infrastructure',
    'agent lost',
  ],
  [
    'a service that says failed, and a sandbox that was stopped',
    reported('failed', { kind: 'code', code: 143 }),
    healthy,
    'unknown',
    'exit code 143',
  ],
  ['a service that has lost the agent', reported('lost'), healthy, 'unknown', 'result word'],
  [
    'a service that has lost the agent, which the job took down',
    reported('lost', { kind: 'code', code: 1 }),
    healthy,
    'unknown',
    'result word',
  ],
  [
    'a service that has lost the agent, whose sandbox was lost',
    reported('lost', { kind: 'lost', reason: 'gone' }),
    healthy,
    'infrastructure',
    'agent lost',
  ],
  [
    'a service that has lost the agent, whose sandbox ran out of memory',
    reported('lost', { kind: 'oom' }),
    healthy,
    'code',
    'OOM kill',
  ],
  ['the same without a memory limit', reported('lost', { kind: 'oom' }, { memoryLimited: false }), healthy, 'unknown', 'OOM kill'],
  ['a word that onejob does not know', reported(null), healthy, 'unknown', 'result word'],
])('judges %s', (_, ending, devices, kind, evidence) => {
  const verdict = judgeEnding(ending, devices);
  expect(verdict.kind).toBe(kind);
  if (evidence !== '') expect(verdict.evidence).toContain(evidence);
  expect(verdict.why).toMatch(/^[a-z].*[^.]$/);
});

it.each([...engineAway])('%s is nobody’s job’s fault, although it has a memory limit of its own', (code) => {
  expect(judgeEnding(own(failed(code, false), { ownRecipe: true }), healthy).kind).toBe('infrastructure');
});

it('names the limit of a job that ran out of memory', () => {
  const { why } = judgeEnding(own({ kind: 'oom' }, { memoryLimit: 64 * 2 ** 20 }), healthy);
  expect(why).toBe('the job used more memory than its limit of 64 MiB');
});

/** A proof as `gpu/proof.ts` writes it. */
function proof(failedChecks: string[], kernel: string[], message: string | null = null, shared = false) {
  const checks = failedChecks.map((check) => ({ check, result: 'failed', saw: null, before: null }));
  return { device: 'GPU-1', evidence: { checks, kernel, message, shared, holders: [] } };
}

const xid = (number: number) => `NVRM: Xid (PCI:0000:9b:00): ${number}, pid=7, name=python`;

it.each<[string, Parameters<typeof deviceEvidence>[0][number], Partial<DeviceEvidence>]>([
  ['nothing', proof([], []), {}],
  ['Xid 79', proof(['kernelLog'], [xid(79)], 'x'), { faults: ['Xid 79, GPU has fallen off the bus, on GPU-1'] }],
  [
    'Xid 94, which ends the job that touched the memory',
    proof([], [xid(94)]),
    { faults: ['Xid 94, contained memory error, on GPU-1'] },
  ],
  ['Xid 31', proof([], [xid(31)]), { errors: ['Xid 31, GPU memory page fault, on GPU-1'] }],
  [
    'Xid 94 on a card that others use too',
    proof([], [xid(94)], null, true),
    { doubts: ['Xid 94, contained memory error, on GPU-1'] },
  ],
  [
    'a card that fell off the bus, and an error of a program',
    proof(
      ['kernelLog'],
      [xid(31), 'NVRM: GPU at 0000:9b:00.0 has fallen off the bus.'],
      'The driver reported for GPU-1: it has fallen off the bus.',
    ),
    { errors: ['Xid 31, GPU memory page fault, on GPU-1'], faults: ['The driver reported for GPU-1: it has fallen off the bus'] },
  ],
  ['an unknown Xid', proof(['kernelLog'], [xid(999)], 'x'), { doubts: ['Xid 999, not known to onejob, on GPU-1'] }],
  ['a card that is gone', proof(['listed'], [], 'GPU-1 is no longer listed.'), { faults: ['GPU-1 is no longer listed'] }],
  ['memory that the job left', proof(['memory'], [], 'GPU-1 has memory in use.'), {}],
  ['a compute mode that the job changed', proof(['computeMode', 'settings', 'mig'], [], 'x'), {}],
  ['evidence of another version', { device: 'GPU-1', evidence: 'old' }, {}],
])('finds %s in a proof', (_, one, found) => {
  expect(deviceEvidence([one])).toEqual({ ...healthy, ...found });
});

it('names the configuration where a host can never give a pool what it asks for', () => {
  const { kind, why } = judgeEnding(own(failed('E_NO_CONTAINERS', false)), healthy);
  expect([kind, why]).toEqual(['configuration', 'the configuration of its pool does not fit this host']);
});

it.each(['E_MOUNT_MISSING', 'E_IMAGE_NOT_FOUND', 'E_IMAGE_DENIED', 'E_NETWORK_UNGUARDED', 'E_RECIPE'])(
  '%s of what the pool names is for the owner of this host to change',
  (one) => {
    expect(judgeEnding(own(failed(one, false)), healthy).kind).toBe('configuration');
    expect(judgeEnding(own(failed(one, true)), healthy).kind).toBe('infrastructure');
    expect(judgeEnding(own(failed(one, false)), fault).kind).toBe('infrastructure');
  },
);
