/** What a service of Gitea is made of. */
import type { PoolConfig } from '../../config/config.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import type { EarlyParts } from '../early/port.ts';
import type { AgentProgram } from '../kit/agent-program.ts';
import type { GiteaClient } from './client.ts';
import type { RunnerKeys } from './keys.ts';
import type { GiteaServiceConfig } from './type.ts';

export interface GiteaParts extends Omit<EarlyParts, 'service' | 'url' | 'queues' | 'pace' | 'compare'> {
  readonly config: GiteaServiceConfig;
  readonly pools: readonly PoolConfig[];
  readonly client: GiteaClient;
  readonly program: Pick<AgentProgram, 'folder' | 'ready' | 'state'>;
  readonly keys: RunnerKeys;
  /** How an agent's sandbox ended; null: unknown. */
  readonly exitOf: (agent: AgentId) => Exit | null;
}
