/** A host as the API describes it, for tests and pictures: eight cards with everything that can happen to them, pools and jobs. */
import type { DeviceView, PoolView, ProofView, SlotView, StatusView } from '../../src/contract/schema.ts';
import type { Device, HistoryView, Job, Verdict } from '../src/views.ts';

const minute = 60_000;

export interface HostState {
  status: StatusView;
  jobs: Job[];
  devices: Device[];
  proofs: ProofView[];
  history: Record<string, HistoryView[]>;
}

export function uuid(n: number): string {
  return `GPU-${String(n).repeat(8)}-5a1c-4e0b-9d7f-${String(n).repeat(12)}`;
}

export function slot(key: string, more: Partial<SlotView['agent']> = {}, rest: Partial<SlotView> = {}): SlotView {
  const agent = { state: 'free', agent: null, job: null, about: null, online: null, since: null, ...more } as SlotView['agent'];
  const standby = { state: 'standby', agent: `${key}-next`, since: 40_000 } as const;
  return { key, name: key.replace('/', '-'), devices: [], standby, agent, leaving: [], note: null, held: null, ...rest };
}

export function busySlot(key: string, job: string, since: number, rest: Partial<SlotView> = {}): SlotView {
  return slot(key, { state: 'busy', agent: `${key.replace('/', '-')}-7f3a`, job, since }, rest);
}

export function pool(name: string, slots: SlotView[], more: Partial<PoolView> = {}): PoolView {
  return {
    name,
    service: 'own',
    runtime: 'docker',
    image: 'debian:stable-slim',
    agents: slots.length,
    waiting: 0,
    paused: [],
    draining: false,
    leaving: false,
    backoff: null,
    devices: null,
    slots,
    ...more,
  };
}

export function job(id: string, more: Partial<Job> = {}): Job {
  return {
    id,
    service: 'own',
    pool: 'build',
    command: ['make', 'test'],
    name: null,
    user: 'ada',
    about: null,
    state: 'queued',
    priority: 0,
    attempt: 1,
    agent: null,
    result: null,
    reason: null,
    cold: false,
    artifacts: [],
    submittedAt: Date.now() - minute,
    startedAt: null,
    endedAt: null,
    ...more,
  };
}

export function ended(id: string, kind: Verdict['kind'], why: string, more: Partial<Job> = {}): Job {
  const now = Date.now();
  const result = kind === 'passed' ? ({ kind: 'code', code: 0 } as const) : ({ kind: 'code', code: 1 } as const);
  return job(id, {
    state: 'done',
    result,
    agent: `${more.pool ?? 'build'}-1-${id.slice(0, 4)}`,
    submittedAt: now - 40 * minute,
    startedAt: now - 38 * minute,
    endedAt: now - 5 * minute,
    verdict: { kind, why, evidence: [] },
    ...more,
  });
}

export function device(n: number, more: Partial<Device> = {}): Device {
  const view: DeviceView = {
    uuid: uuid(n),
    kind: 'gpu',
    model: 'NVIDIA A100-SXM4-80GB',
    pciId: `0000:${n}7:00.0`,
    index: n,
    memoryMiB: 81_920,
    profile: null,
    parent: null,
    state: 'leased',
    slot: `gpu/${n + 1}`,
    agents: [],
    why: null,
    since: Date.now() - 20 * minute,
    until: null,
    retryAt: null,
    hint: null,
    use: null,
  };
  const use = { at: Date.now(), memoryUsedMiB: 620, utilization: 0, temperature: 34, powerW: 62 };
  return { ...view, use, ...more };
}

function line(value: string, jobs: number, code: number, infrastructure: number, unknown = 0, cancelled = 1): HistoryView {
  const passed = jobs - code - infrastructure - unknown - cancelled;
  return {
    value,
    jobs,
    passed,
    cancelled,
    code,
    infrastructure,
    configuration: 0,
    unknown,
    waitMs: 94_000,
    runMs: 1_310_000,
    longestMs: 9_000_000,
  };
}

/** Of some days or hours until now: quiet nights and weekends, a bad afternoon, and durations that follow the load. */
function overTime(step: number, count: number, most: number): HistoryView[] {
  const last = Math.floor(Date.now() / step) * step;
  return Array.from({ length: count }, (_, n) => {
    const wave = 0.5 + 0.5 * Math.sin(1.9 * n + 0.4);
    const jobs = Math.round(most * (0.15 + 0.85 * wave));
    const isBad = n === count - 3;
    const bad = line(
      String(last - (count - 1 - n) * step),
      jobs,
      Math.round(jobs / 9),
      isBad ? Math.round(jobs / 7) : n % 3,
      n % 2,
    );
    return { ...bad, waitMs: Math.round(20_000 + 200_000 * wave), runMs: Math.round(700_000 + 500_000 * wave) };
  });
}

/** A working day: most is in order, one card is bad, and some jobs wait for different reasons. */
export function workingDay(): HostState {
  const now = Date.now();
  const running = (id: string, name: string, poolName: string, agent: string, ago: number, more: Partial<Job> = {}): Job =>
    job(id, { name, pool: poolName, state: 'running', agent, submittedAt: now - ago - 90_000, startedAt: now - ago, ...more });
  const busyUse = (memoryUsedMiB: number, utilization: number) => ({
    at: now,
    memoryUsedMiB,
    utilization,
    temperature: 61,
    powerW: 287,
  });
  const why = 'memory stays in use after the agent ended (1,204 MiB), and nobody seems to use it';
  const devices = [
    device(0, { agents: ['gpu-1-7f3a'], use: busyUse(61_300, 97) }),
    device(1, { agents: ['gpu-2-7f3a'], use: busyUse(33_800, 71) }),
    device(2, { agents: ['gpu-3-7f3a'], use: busyUse(74_100, 88) }),
    device(3, {
      state: 'quarantined',
      slot: 'gpu/4',
      why,
      since: now - 52 * minute,
      retryAt: now + 8 * minute,
      hint: 'Look at it with "nvidia-smi", then type "onejob gpus clear 3".',
      use: { at: now, memoryUsedMiB: 1_204, utilization: 0, temperature: 38, powerW: 71 },
    }),
    device(4, {}),
    device(5, {
      state: 'reserved',
      slot: null,
      why: 'reserved by maria',
      until: now + 150 * minute,
      use: busyUse(22_000, 43),
      hint: null,
    }),
    device(6, { slot: null, state: 'free', use: null }),
    ...[1, 2].map((n) =>
      device(6, {
        uuid: `MIG-${String(n).repeat(8)}-aaaa-bbbb-cccc-${String(n).repeat(12)}`,
        kind: 'mig',
        index: null,
        parent: uuid(6),
        profile: '3g.40gb',
        memoryMiB: 40_448,
        slot: `mig/${n}`,
        agents: n === 1 ? ['mig-1-7f3a'] : [],
        use: { at: now, memoryUsedMiB: n === 1 ? 18_300 : 80, utilization: null, temperature: null, powerW: null },
      }),
    ),
  ];
  const gpuSlots = [
    busySlot('gpu/1', '9a41c07be2d1', 44 * minute, { devices: [uuid(0)] }),
    busySlot('gpu/2', '51e0bb72aa90', 12 * minute, { devices: [uuid(1)] }),
    busySlot('gpu/3', 'c0ffee12ab34', 3 * minute, { devices: [uuid(2)] }),
    slot('gpu/4', {}, { devices: [uuid(3)], held: `${why}`, standby: { state: 'none', agent: null, since: null } }),
    slot(
      'gpu/5',
      { state: 'proving', agent: 'gpu-5-11aa', since: 2_000 },
      { devices: [uuid(4)], note: 'checks that the device is clean' },
    ),
  ];
  const buildSlots = [
    busySlot('build/1', '77aa01bc33de', 6 * minute),
    busySlot('build/2', '77aa01bc33df', 5 * minute),
    busySlot('build/3', '77aa01bc33e0', 2 * minute),
    busySlot('build/4', '77aa01bc33e1', 20_000),
  ];
  const azure = {
    title: 'nightly-cuda 20261126.3',
    definition: 'nightly-cuda',
    build: '20261126.3',
    repository: 'acme/solver',
    branch: 'main',
    reason: 'schedule',
    link: 'https://dev.azure.com/acme/_build/results?buildId=4711',
    demands: [],
  };
  const jobs: Job[] = [
    ended('e0a1b2c3d4e5', 'passed', 'exit code 0', { name: 'lint', endedAt: now - 21 * minute, startedAt: now - 23 * minute }),
    ended('e1a1b2c3d4e5', 'code', 'exit code 2', {
      name: 'unit tests (gcc 14)',
      image: 'debian:stable-slim',
      held: { until: now + 26 * minute },
      user: 'grace',
      endedAt: now - 12 * minute,
      startedAt: now - 19 * minute,
      verdict: {
        kind: 'code',
        why: 'its command ended with exit code 2',
        evidence: ['exit code 2', 'no sign of trouble on the host or its devices'],
      },
    }),
    ended('e2a1b2c3d4e5', 'infrastructure', 'its device was lost', {
      name: 'train-resnet --epochs 3',
      command: ['python3', 'train.py', '--epochs', '3', '--data', '/datasets/imagenet'],
      pool: 'gpu',
      user: 'lin',
      devices: [uuid(3)],
      image: 'nvidia/cuda:12.6.2-devel-ubuntu24.04',
      agent: 'gpu-4-c2d1',
      submittedAt: now - 90 * minute,
      startedAt: now - 71 * minute,
      endedAt: now - 53 * minute,
      result: { kind: 'code', code: 139 },
      verdict: {
        kind: 'infrastructure',
        why: 'its device reported an error while the job ran',
        evidence: ['Xid 79 on GPU 3: the GPU has fallen off the bus', 'exit code 139 (SEGV) two seconds later'],
      },
    }),
    running('9a41c07be2d1', 'train-llm --config base.yaml', 'gpu', 'gpu-1-7f3a', 44 * minute, {
      user: 'lin',
      devices: [uuid(0)],
      image: 'nvidia/cuda:12.6.2-devel-ubuntu24.04',
    }),
    running('51e0bb72aa90', 'bench attention kernels', 'gpu', 'gpu-2-7f3a', 12 * minute, { user: 'grace', devices: [uuid(1)] }),
    running('77aa01bc33de', 'build (clang 19)', 'build', 'build-1-7f3a', 6 * minute),
    running('77aa01bc33df', 'build (gcc 14)', 'build', 'build-2-7f3a', 5 * minute),
    running('c0ffee12ab34', 'fine-tune adapter', 'gpu', 'gpu-3-7f3a', 3 * minute, { devices: [uuid(2)] }),
    running('77aa01bc33e0', 'docs', 'build', 'build-3-7f3a', 2 * minute, { user: 'grace' }),
    running('77aa01bc33e1', 'package deb', 'build', 'build-4-7f3a', 20_000),
    running('4f4f4f4f4f4f', 'render thumbnails', 'mig', 'mig-1-7f3a', 8 * minute, {
      devices: ['MIG-11111111-aaaa-bbbb-cccc-111111111111'],
    }),
    job('aa00aa00aa01', {
      name: 'train-resnet --epochs 90',
      pool: 'gpu',
      user: 'lin',
      submittedAt: now - 26 * minute,
      ahead: 0,
      startsIn: { from: 30_000, to: 9 * minute },
    }),
    job('aa00aa00aa02', {
      name: 'integration tests',
      user: 'grace',
      submittedAt: now - 3 * minute,
      reason: 'all agents are busy',
      ahead: 0,
      startsIn: { from: 40_000, to: 4 * minute },
    }),
    job('aa00aa00aa03', {
      name: 'coverage',
      submittedAt: now - 2 * minute,
      reason: 'all agents are busy',
      ahead: 1,
      startsIn: { from: 3 * minute, to: 11 * minute },
    }),
    job('aa00aa00aa04', { name: null, pool: 'release', command: ['./release.sh', '--sign'], submittedAt: now - 95 * minute }),
    job('azure-4711-1', {
      service: 'azure',
      pool: '',
      command: [],
      user: null,
      state: 'waiting',
      about: azure,
      submittedAt: now - 4 * minute,
      reason: null,
    }),
  ];
  const status: StatusView = {
    version: '0.2.0',
    pid: 2114,
    owner: '5e1f',
    config: '/etc/onejob/config.yml',
    configChanged: null,
    stateDir: '/var/lib/onejob',
    hostName: 'gpuci',
    temporary: false,
    stopping: false,
    runtimeReason: null,
    weaker: null,
    problems: [],
    missing: [],
    quarantined: [],
    pools: [
      pool('gpu', gpuSlots, { image: 'nvidia/cuda:12.6.2-devel-ubuntu24.04', waiting: 1, devices: { ready: 4, wanted: 5 } }),
      pool('mig', [busySlot('mig/1', '4f4f4f4f4f4f', 8 * minute), slot('mig/2')], { devices: { ready: 2, wanted: 2 } }),
      pool('build', buildSlots, { waiting: 2, held: 1 }),
      pool('release', [slot('release/1')], { waiting: 1, paused: ['by hand'] }),
      pool(
        'azure',
        [
          slot('azure/1', { state: 'idle', agent: 'azure-1', online: true, since: 30 * minute }),
          slot('azure/2', {}, { standby: { state: 'none', agent: null, since: null } }),
        ],
        {
          service: 'azure',
          image: 'onejob/azure:4.261.0',
          waiting: 1,
          backoff: {
            failures: 4,
            retryIn: 95_000,
            reason: 'image "onejob/azure:4.261.0" was not found (404)',
            waitsFor: 'image "onejob/azure:4.261.0" on docker',
          },
        },
      ),
    ],
  };
  return {
    status,
    jobs,
    devices,
    proofs: devices
      .filter(({ index }) => index !== null && index < 5)
      .map(({ uuid: id, index }) => ({
        device: id,
        slot: `gpu/${Number(index) + 1}`,
        agent: index === 3 ? 'gpu-4-c2d1' : `gpu-${index}-old`,
        verdict: index === 3 ? 'dirty' : 'clean',
        evidence: {},
        took: 420,
        at: now - (index === 3 ? 52 : 4 + Number(index)) * minute,
      })),
    history: {
      device: [
        line(uuid(0), 61, 6, 0),
        line(uuid(1), 58, 4, 1),
        line(uuid(2), 64, 7, 0, 1),
        line(uuid(3), 47, 3, 12, 2),
        line(uuid(4), 66, 5, 1),
      ],
      pool: [line('gpu', 296, 25, 14, 3, 5), line('build', 812, 96, 3, 1, 20), line('mig', 120, 9, 1), line('release', 14, 1, 0)],
      day: overTime(86_400_000, 8, 190),
      hour: overTime(3_600_000, 25, 22),
      image: [line('nvidia/cuda:12.6.2-devel-ubuntu24.04', 296, 25, 14, 3, 5), line('debian:stable-slim', 826, 97, 3, 1, 20)],
    },
  };
}

/** Output of a training that loses its card. */
export function brokenRun(): string {
  const esc = '\u001b';
  const steps = Array.from({ length: 180 }, (_, n) => {
    const loss = (2.31 * Math.exp(-n / 120) + 0.4 + Math.sin(n) / 40).toFixed(4);
    return `${esc}[2m[gpu-4]${esc}[0m epoch ${1 + Math.floor(n / 100)} step ${String(n % 100).padStart(3)}/100  loss ${esc}[36m${loss}${esc}[0m  ${esc}[32m${(412 + (n % 7)).toFixed(0)} images/s${esc}[0m`;
  });
  return [
    `${esc}[1mtrain-resnet${esc}[0m --epochs 3 --data /datasets/imagenet`,
    'device: NVIDIA A100-SXM4-80GB, driver 580.82.07, CUDA 12.6',
    ...steps,
    `${esc}[1;31mRuntimeError: CUDA error: device-side operation failed: GPU is lost${esc}[0m`,
    '  at step 180, in conv2d(input[256, 64, 56, 56])',
    'CUDA kernel errors might be asynchronously reported at some other API call.',
    `${esc}[33mwarning:${esc}[0m checkpoint of epoch 1 was kept in /workspace/out/epoch-1.pt`,
    'Segmentation fault (core dumped)',
    '',
  ].join('\n');
}
