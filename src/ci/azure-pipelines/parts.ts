/** What a service of Azure Pipelines is made of. */
import type { Store } from '../../store/store.ts';
import type { EarlyParts } from '../early/port.ts';
import type { OpenParts } from '../parts.ts';
import type { AzureClient } from './client.ts';
import type { AzurePool } from './pools.ts';
import type { AgentKey } from './script.ts';
import type { AzureServiceConfig } from './type.ts';

export interface AzureParts
  extends Omit<EarlyParts, 'service' | 'url' | 'queues' | 'pace' | 'compare'>,
    Pick<OpenParts, 'variables'> {
  readonly config: AzureServiceConfig;
  readonly pools: readonly AzurePool[];
  readonly store: EarlyParts['store'] & Pick<Store, 'dir'>;
  readonly client: AzureClient;
  readonly makeKey: () => Promise<AgentKey>;
}
