/**
 * What many pods cost onejob: the daemon's processor time and memory from none to all of them at their gates, while nothing happens, and
 * until all are gone. The API server, the scheduler and the controllers are real; nodes and pods are words, so nothing here is a latency.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { lacksKubernetes, startKubernetes } from '../test/support/kubernetes.ts';
import { type Home, onejob } from '../test/support/onejob.ts';
import { cpuSeconds, rss } from './daemon.ts';
import { rounded } from './stats.ts';

export interface KubernetesMany {
  /** s of CPU: until all wait at their gates, and until all are gone. */
  readonly cpu: { readonly made: number; readonly removed: number };
  /** % of one core while nothing happens. */
  readonly idle: number;
  /** MB RSS: before the first, and the most that was seen. */
  readonly memory: { readonly before: number; readonly most: number };
  /** s */
  readonly took: { readonly made: number; readonly removed: number };
}

export interface ManyPods {
  readonly nodes: number;
  readonly agents: number;
  /** s without a change. */
  readonly seconds: number;
}

export async function kubernetesMany({ nodes, agents, seconds }: ManyPods): Promise<KubernetesMany> {
  const lacks = lacksKubernetes({ pretended: nodes });
  if (lacks !== null) throw new Error(lacks);
  await using cluster = await startKubernetes({ pretended: nodes });
  await cluster.namespace('ci');
  const config = (count: number): string => `
runtimes: { cluster: { type: kubernetes, kubeconfig: "${cluster.kubeconfig}", namespace: ci } }
pools:
${pools(count)
  .map((agents, at) => `  p${at}: { runtime: cluster, image: "example.test/agent:1", agents: ${agents}, standby: true }`)
  .join('\n')}
`;
  await using home = await onejob({ config: config(0) });
  const { pid } = await home.up();
  const before = rss(pid);
  let most = before;
  const phase = async (count: number): Promise<{ cpu: number; took: number }> => {
    const from = { cpu: cpuSeconds(pid).own, at: performance.now() };
    home.configure(config(count));
    const { code, stderr } = await home.cli(['config', 'apply']).ended;
    if (code !== 0) throw new Error(stderr);
    await until(home, count, () => {
      most = Math.max(most, rss(pid));
    });
    return { cpu: rounded(cpuSeconds(pid).own - from.cpu), took: rounded((performance.now() - from.at) / 1000) };
  };
  const made = await phase(agents);
  const resting = cpuSeconds(pid).own;
  await sleep(seconds * 1000);
  const idle = rounded(((cpuSeconds(pid).own - resting) / seconds) * 100);
  most = Math.max(most, rss(pid));
  const removed = await phase(0);
  return {
    cpu: { made: made.cpu, removed: removed.cpu },
    idle,
    memory: { before, most },
    took: { made: made.took, removed: removed.took },
  };
}

/** A pool has 512 at most. */
function pools(agents: number): number[] {
  return Array.from({ length: Math.max(1, Math.ceil(agents / 500)) }, (_, at) => Math.min(500, agents - at * 500));
}

/** Until as many agents wait at their gates, and no others are there. */
async function until(home: Home, count: number, look: () => void): Promise<void> {
  for (const end = Date.now() + 900_000; Date.now() < end; await sleep(1_000)) {
    look();
    const slots = (await home.api.status()).pools.flatMap((pool) => pool.slots);
    if (slots.length === count && slots.every(({ standby }) => standby.state === 'standby')) return;
  }
  throw new Error('not within a quarter of an hour');
}
