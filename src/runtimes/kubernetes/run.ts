/** Programs in a container that runs. */
import type { AgentId } from '../../core/slot.ts';
import type { KubeClient } from './client.ts';
import { container, podName } from './pods.ts';
import { programOver, type Running } from './stream.ts';

interface Beside {
  readonly agent: AgentId;
  readonly script: string;
  /** In words: `Cannot <doing>`. */
  readonly doing: string;
}

/** Runs a shell script beside the container's first process, until it ends or `signal` aborts. */
export async function runBeside(client: KubeClient, { agent, script, doing }: Beside, signal: AbortSignal): Promise<Running> {
  const query = { container, command: ['sh', '-c', script], stdin: true, stdout: true, stderr: true };
  const socket = await client.socket({ path: client.path('pods', podName(agent), 'exec'), query, doing, signal });
  return programOver(socket, doing, signal);
}
