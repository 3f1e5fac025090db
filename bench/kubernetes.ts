/**
 * Kubernetes, real, on this machine: from the submission of a job to its first line where an agent waits already; and from the end of a
 * job to the first line of the next one on the same GPU, in turn with two bare pods. Jobs tell the time themselves: all of them have the
 * clock of this machine.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Kubernetes, lacksKubernetes, startKubernetes } from '../test/support/kubernetes.ts';
import { type Home, onejob } from '../test/support/onejob.ts';
import { defaultImage } from '../test/support/require.ts';
import { wall } from './jobs.ts';
import { type Stats, stats } from './stats.ts';

/** In ms. */
export interface KubernetesFigures {
  readonly waiting: Stats;
  readonly gap: Stats;
  /** The same of bare pods, without onejob. */
  readonly floor: Stats;
}

const stamp = ['sh', '-c', 'date +%s.%N'];
const bare = { pool: null } as const;

export async function kubernetesFigures(rounds: number): Promise<KubernetesFigures> {
  if (lacksKubernetes() !== null) throw new Error(`${lacksKubernetes()}`);
  await using cluster = await startKubernetes({ gpus: 1 });
  await cluster.namespace('ci');
  await cluster.loadDockerImage(defaultImage);
  const config = (pool: string): string => `
runtimes: { cluster: { type: kubernetes, kubeconfig: "${cluster.kubeconfig}", namespace: ci } }
pools: { default: { runtime: cluster, image: "${defaultImage}", pull: never, ${pool} } }
`;
  const waiting: number[] = [];
  {
    await using home = await onejob({ config: config('agents: 1, standby: true') });
    await home.up();
    for (let n = 0; n < rounds; n++) {
      while ((await home.api.status()).pools.some(({ slots }) => slots.some(({ standby }) => standby.state !== 'standby')))
        await sleep(50);
      waiting.push(await submitToFirstByte(home));
    }
  }
  await using home = await onejob({ config: config('agents: 2, devices: 1') });
  await home.up();
  const gaps: number[] = [];
  const floors: number[] = [];
  for (let n = 0; n < rounds; n++) {
    floors.push(await gapOfPods(cluster, n));
    gaps.push(await gapOfJobs(home));
  }
  return { waiting: stats(waiting), gap: stats(gaps), floor: stats(floors) };
}

async function submitToFirstByte(home: Home): Promise<number> {
  const began = wall();
  const { id } = await home.api.submit({ ...bare, command: stamp });
  return Number(await outputOf(home, id)) * 1000 - began;
}

/** Both are asked for before the first ends, so the second waits for its GPU. */
const first = 'sleep 1; date +%s.%N';

async function gapOfJobs(home: Home): Promise<number> {
  const one = await home.api.submit({ ...bare, command: ['sh', '-c', first] });
  const two = await home.api.submit({ ...bare, command: stamp });
  const [ended, began] = await Promise.all([outputOf(home, one.id), outputOf(home, two.id)]);
  return (Number(began) - Number(ended)) * 1000;
}

async function gapOfPods(cluster: Kubernetes, n: number): Promise<number> {
  const names = [`floor-${n}-1`, `floor-${n}-2`] as const;
  const pod = (name: string, script: string) => ({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: { name, namespace: 'ci' },
    spec: {
      restartPolicy: 'Never',
      containers: [
        {
          name: 'job',
          image: defaultImage,
          imagePullPolicy: 'Never',
          command: ['sh', '-c', script],
          resources: { limits: { 'nvidia.com/gpu': '1' } },
        },
      ],
    },
  });
  await cluster.apply(pod(names[0], first));
  await cluster.apply(pod(names[1], 'date +%s.%N'));
  const times: number[] = [];
  for (const name of names) {
    await cluster.kubectl('-n', 'ci', 'wait', '--for=jsonpath={.status.phase}=Succeeded', '--timeout=60s', `pod/${name}`);
    times.push(Number(await cluster.kubectl('-n', 'ci', 'logs', name)) * 1000);
  }
  await cluster.kubectl('-n', 'ci', 'delete', 'pod', ...names);
  return (times[1] ?? 0) - (times[0] ?? 0);
}

async function outputOf(home: Home, id: string): Promise<string> {
  return (await home.cli(['logs', '-f', id]).ended).stdout;
}
