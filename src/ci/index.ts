/** Every CI service that config can name. Adding one is a folder beside this file and a line here. */

import { type Guarded, mountProblemFor } from '../config/check-mounts.ts';
import type { Config, ServiceConfig } from '../config/config.ts';
import type { Environment } from '../config/environment.ts';
import { OnejobError } from '../errors.ts';
import type { Store } from '../store/store.ts';
import type { CiService } from './ci-service.ts';
import { createOwnQueue, type OwnQueue } from './own-queue/own-queue.ts';

export interface CiParts {
  readonly config: Guarded & Pick<Config, 'pools'>;
  /** Where the Engine listens, when that is not the usual place. */
  readonly env?: Pick<Environment, 'docker' | 'runtimeDir'>;
  readonly store: Store;
  /** Why jobs of a pool wait, as a sentence; null when there is no more to say. */
  readonly reasonFor: (pool: string) => string | null;
}

export interface CiServices {
  readonly own: OwnQueue;
  /** What pools name in `service`; `own` is always there. */
  readonly byName: ReadonlyMap<string, CiService>;
}

type Make = (service: ServiceConfig, own: OwnQueue) => CiService;

const makers: { readonly [T in ServiceConfig['type']]: Make } = {
  'own-queue': (_, own) => own,
  'azure-pipelines': notYet,
  buildkite: notYet,
};

/** @throws OnejobError E_NOT_YET for a service this version cannot serve, E_STATE_CORRUPT */
export function createCiServices({ config, env, store, reasonFor }: CiParts): CiServices {
  const ownNames = new Set(['own', ...config.services.filter((one) => one.type === 'own-queue').map((one) => one.name)]);
  const pools = config.pools.filter((pool) => ownNames.has(pool.service));
  const own = createOwnQueue({ store, pools, reasonFor, mountProblem: mountProblemFor(config, env) });
  const used = new Set(config.pools.map((pool) => pool.service));
  const others = config.services.filter((one) => used.has(one.name));
  return {
    own,
    byName: new Map<string, CiService>([['own', own], ...others.map((one) => [one.name, makers[one.type](one, own)] as const)]),
  };
}

function notYet({ name, type }: ServiceConfig): never {
  throw new OnejobError('E_NOT_YET', `Cannot serve "${name}": this version of onejob has no CI service of type "${type}" yet.`, {
    hint: 'Use the own queue ("service: own"), or wait for a later version.',
  });
}
