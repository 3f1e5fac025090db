/** The images of a config's pools, put together for one manager or one command. Nothing is loaded or asked before it is needed. */

import { join } from 'node:path';
import type { CiService } from '../ci/ci-service.ts';
import { serviceType } from '../ci/types.ts';
import type { Config } from '../config/config.ts';
import type { Environment } from '../config/environment.ts';
import type { Log } from '../log.ts';
import { PoolImages } from './pool-images.ts';

export interface OpenImagesParts {
  readonly config: Pick<Config, 'pools' | 'services'>;
  readonly env: Pick<Environment, 'docker' | 'runtimeDir' | 'hostRoot'>;
  /** Of the state directory. */
  readonly store: { readonly dir: string; readonly owner: string };
  readonly services: ReadonlyMap<string, CiService>;
  readonly log: Log;
}

export async function openPoolImages({ config, env, store, services, log }: OpenImagesParts): Promise<PoolImages> {
  const { pools } = config;
  const wantsChoice = pools.some((pool) => pool.imageRecipe?.base === 'auto');
  const auto = wantsChoice ? await (await import('./auto-image.ts')).openAutoImages(config, env.hostRoot) : null;
  return new PoolImages({
    pools,
    log,
    auto,
    typeOf: (service) => serviceType(config.services.find((one) => one.name === service)?.type).type,
    builder: async () => {
      const { createImageBuilder } = await import('../images/builder.ts');
      const environment = { ...env.docker, runtimeDir: env.runtimeDir };
      const warn = (text: string, fields: Record<string, unknown>) => log.warn(text, fields);
      return createImageBuilder({ environment, owner: store.owner, packages: join(store.dir, 'packages'), warn });
    },
    agentPackage: async (service, platform, signal) => (await services.get(service)?.agentPackage?.(platform, signal)) ?? null,
  });
}
