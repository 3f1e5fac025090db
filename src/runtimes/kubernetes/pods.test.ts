import { describe, expect, test } from 'vitest';
import { type Pod, podOf, stateOf, waitText } from './pods.ts';

const agent = 'a1b2c3';

/** A pod as the API gives it. */
function pod(status: object, more: object = {}): Pod {
  const metadata = {
    name: `oj-${agent}`,
    uid: 'u1',
    labels: { 'onejob/agent': agent },
    annotations: { 'onejob/pool': 'gpu', 'onejob/slot': 'gpu/1', 'onejob/fingerprint': 'f1' },
  };
  const found = podOf({ metadata: { ...metadata, ...more }, spec: { nodeName: 'k1' }, status });
  if (found === null) throw new Error('not a pod of an agent');
  return found;
}
const unknown = { told: null, isRemoved: false };
const inState = (state: object) => ({
  containerStatuses: [
    { name: 'other', state: {} },
    { name: 'job', state },
  ],
});

test('what is not of an agent is not seen', () => {
  expect(podOf({ metadata: { name: 'web', uid: 'u1' } })).toBe(null);
  expect(podOf({ metadata: { name: 'web', uid: 'u1', labels: { 'onejob/agent': agent } } })).toBe(null);
  expect(podOf('text')).toBe(null);
});

test('a pod says whose it is, where it is and what it was granted', () => {
  const status = {
    phase: 'Running',
    containerStatuses: [
      {
        name: 'job',
        state: { running: {} },
        allocatedResourcesStatus: [{ name: 'nvidia.com/gpu', resources: [{ resourceID: 'GPU-1' }, { resourceID: 'GPU-2' }] }],
      },
    ],
  };
  expect(pod(status)).toMatchObject({ agent, pool: 'gpu', slot: 'gpu/1', fingerprint: 'f1', node: 'k1', devices: 'GPU-1,GPU-2' });
  expect(stateOf(pod(status), unknown)).toEqual({ kind: 'running' });
});

describe('its end', () => {
  const ended = (exitCode: number, more: object = {}, status: object = { phase: 'Failed' }) =>
    stateOf(pod({ ...status, ...inState({ terminated: { exitCode, ...more } }) }), unknown);
  const disrupted = (reason: string, message = '') => ({
    phase: 'Failed',
    conditions: [{ type: 'DisruptionTarget', status: 'True', reason, message }],
  });
  test.each([
    ['an exit code', ended(7), { kind: 'code', code: 7 }],
    ['memory', ended(137, { reason: 'OOMKilled' }), { kind: 'oom' }],
    [
      'its time limit',
      ended(
        143,
        {},
        { phase: 'Failed', reason: 'DeadlineExceeded', message: 'Pod was active on the node longer than the specified deadline' },
      ),
      {
        kind: 'lost',
        reason:
          'Kubernetes ended it on node k1: its time limit was over (Pod was active on the node longer than the specified deadline)',
      },
    ],
    [
      'preemption',
      ended(143, {}, disrupted('PreemptionByScheduler')),
      { kind: 'lost', reason: 'Kubernetes ended it on node k1: a pod with a higher priority took its place' },
    ],
    [
      'a reason that is not known',
      ended(1, {}, disrupted('SomethingNew', 'because.')),
      { kind: 'lost', reason: 'Kubernetes ended it on node k1: SomethingNew (because)' },
    ],
    [
      'a pod that failed without a container',
      stateOf(pod({ phase: 'Failed', reason: 'Evicted' }), unknown),
      { kind: 'lost', reason: 'Kubernetes ended it on node k1: its node evicted it' },
    ],
  ])('%s', (_, state, exit) => {
    expect(state).toEqual({ kind: 'exited', exit });
  });

  test('what its log has told counts, though its container still waits for its files to be fetched', () => {
    expect(
      stateOf(pod({ phase: 'Running', ...inState({ running: {} }) }), { ...unknown, told: { kind: 'code', code: 3 } }),
    ).toEqual({
      kind: 'exited',
      exit: { kind: 'code', code: 3 },
    });
  });

  test.each([143, 137])('%i of a pod that somebody else deleted is not its own', (code) => {
    const deleted = pod({ phase: 'Running', ...inState({ running: {} }) }, { deletionTimestamp: '2026-11-29T10:00:00Z' });
    const told = { kind: 'code', code } as const;
    const exit = { kind: 'lost', reason: 'Kubernetes ended it on node k1: somebody deleted its pod' };
    expect(stateOf(deleted, { told, isRemoved: false })).toEqual({ kind: 'exited', exit });
    expect(stateOf(deleted, { told, isRemoved: true })).toEqual({ kind: 'exited', exit: told });
    expect(stateOf(deleted, { told: { kind: 'code', code: 3 }, isRemoved: false })).toMatchObject({ exit: { code: 3 } });
  });

  test('a node that is away ends nothing', () => {
    const conditions = [{ type: 'Ready', status: 'False', reason: 'NodeNotReady' }];
    expect(stateOf(pod({ phase: 'Running', conditions, ...inState({ running: {} }) }), unknown)).toEqual({ kind: 'running' });
  });
});

test.each([
  [{ phase: 'Pending' }, 'waits for Kubernetes'],
  [
    {
      phase: 'Pending',
      conditions: [
        {
          type: 'PodScheduled',
          status: 'False',
          reason: 'Unschedulable',
          message: '0/1 nodes are available: 1 Insufficient nvidia.com/gpu.',
        },
      ],
    },
    'waits for a node: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.',
  ],
  [
    { phase: 'Pending', conditions: [{ type: 'PodScheduled', status: 'False', reason: 'SchedulingGated' }] },
    'waits in a queue of the cluster',
  ],
  [
    { phase: 'Pending', ...inState({ waiting: { reason: 'ImagePullBackOff', message: 'Back-off pulling image "a"' } }) },
    'waits for its image: Back-off pulling image "a"',
  ],
  [{ phase: 'Pending', ...inState({ waiting: { reason: 'Strange' } }) }, 'waits (Strange)'],
])('why it waits: %j', (status, said) => {
  expect(waitText(pod(status))).toBe(said);
});
