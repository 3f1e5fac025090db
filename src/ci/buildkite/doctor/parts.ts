/** What the checks of `doctor` for Buildkite get. */
import type { SecretKeys } from '../../../secrets/keys.ts';
import type { Filter } from '../../filter/filter.ts';
import type { AgentProgram } from '../../kit/agent-program.ts';
import type { ServiceApi } from '../api.ts';
import type { BuildkiteParts } from '../parts.ts';

export interface DoctorParts extends Pick<BuildkiteParts, 'config' | 'pools' | 'stateDir' | 'places' | 'clock'> {
  readonly api: Pick<ServiceApi, 'identity' | 'counts'>;
  /** Each reads a token. @throws OnejobError E_SECRET */
  readonly tokens: Readonly<Record<'service' | 'metrics', () => Promise<string>>>;
  /** null: config has no key. @throws OnejobError E_SECRET, E_SECRET_KEY */
  readonly keys: () => Promise<SecretKeys | null>;
  /** null: no pool accepts untrusted jobs. */
  readonly filter: Pick<Filter, 'listenFor' | 'check'> | null;
  readonly program: Pick<AgentProgram, 'state'>;
}
