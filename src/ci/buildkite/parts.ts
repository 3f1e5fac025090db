/** What a service of Buildkite is made of. */
import type { Config, PoolConfig } from '../../config/config.ts';
import type { AgentId, Exit } from '../../core/slot.ts';
import type { Filter } from '../filter/filter.ts';
import type { SlotFacts } from '../parts.ts';
import type { FrontParts } from './front.ts';
import type { BuildkiteAdmission } from './jobs/admission.ts';
import type { GivenJob } from './jobs/job-facts.ts';
import type { StackEntry, Stacks } from './stacks/stacks.ts';

export interface BuildkiteParts extends FrontParts {
  readonly stateDir: string;
  readonly places: Config['places'];
  readonly host: string;
  readonly stacks: Stacks;
  readonly entry: StackEntry;
  /** null: no pool accepts untrusted jobs. */
  readonly filter: Filter | null;
  readonly admit: (job: GivenJob, pool: PoolConfig) => Promise<BuildkiteAdmission>;
  readonly slots: Pick<SlotFacts, 'jobsOf' | 'agentOf'>;
  readonly random: () => number;
  /** How an agent ended, as it was written down; null if that is unknown. */
  readonly exitOf: (agent: AgentId) => Exit | null;
}
