/** What a service of GitLab is made of. */
import type { PoolConfig } from '../../config/config.ts';
import type { LateParts } from '../late/engine.ts';
import type { GitlabClient } from './client.ts';
import type { GitlabServiceConfig } from './type.ts';
import type { GivenJob, JobKey } from './wire.ts';

export interface GitlabParts extends Omit<LateParts<GivenJob, JobKey>, 'service'> {
  readonly config: GitlabServiceConfig;
  readonly client: GitlabClient;
}

export interface GitlabPortParts extends Pick<GitlabParts, 'config' | 'client' | 'program'> {
  /** undefined: none, only to clean up. */
  readonly pool: PoolConfig | undefined;
}
