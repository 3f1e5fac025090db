/** What a service of GitHub is made of. */
import type { PoolConfig } from '../../config/config.ts';
import type { Store } from '../../store/store.ts';
import type { EarlyParts } from '../early/port.ts';
import type { OpenParts, SlotFacts } from '../parts.ts';
import type { GithubClient } from './client.ts';
import type { GithubServiceConfig } from './config.ts';
import type { ScaleSets } from './scale-sets.ts';

export interface GithubParts
  extends Omit<EarlyParts, 'service' | 'url' | 'queues' | 'pace' | 'compare'>,
    Pick<OpenParts, 'variables' | 'ports'> {
  readonly slots: EarlyParts['slots'] & Pick<SlotFacts, 'sizeOf'>;
  readonly config: GithubServiceConfig;
  readonly pools: readonly PoolConfig[];
  readonly store: EarlyParts['store'] & Pick<Store, 'dir'>;
  readonly client: GithubClient;
  /** null: its agents have labels. */
  readonly sets: ScaleSets | null;
}
