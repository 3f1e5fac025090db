/** The types of CI services, runtimes and clouds that a config can name. Who loads a config passes them, so that config depends on none. */

import type { Recipe } from '../ports/runtime.ts';
import { listed } from '../schema/problem.ts';
import type { CloudType } from './cloud-type.ts';
import type { PoolConfig, ServiceConfig } from './config.ts';
import type { RuntimeType } from './runtime-type.ts';
import type { ServicePoolKey, ServiceType } from './service-type.ts';

export interface Types {
  /** The own queue's first. */
  readonly services: readonly [ServiceType, ...ServiceType[]];
  readonly clouds: readonly CloudType[];
  /** Those under `runtimes`: docker and process need no entry. */
  readonly runtimes: readonly RuntimeType[];
}

/** Types that are loaded only for a config that names any, so that a daemon without services starts quickly. */
export interface LazyTypes {
  /** For a config that names none of them. */
  readonly few: Types;
  all(): Promise<Types>;
}

/** The own queue's for an unknown type. */
export function serviceType({ services }: Pick<Types, 'services'>, type: string | undefined): ServiceType {
  return services.find((one) => one.type === type) ?? services[0];
}

/** @throws RangeError for an unknown type */
export function cloudType({ clouds }: Pick<Types, 'clouds'>, type: string): CloudType {
  const found = clouds.find((one) => one.type === type);
  if (found === undefined) throw new RangeError(`unknown type of cloud: ${type}`);
  return found;
}

/** The type of a runtime under `runtimes`; undefined: it has no entry. */
export function runtimeType(
  { runtimes: known }: Pick<Types, 'runtimes'>,
  runtimes: ReadonlyMap<string, { readonly type: string }>,
  name: string | null | undefined,
): RuntimeType | undefined {
  const type = runtimes.get(name ?? '')?.type;
  return known.find((one) => one.type === type);
}

/** Services for people, such as `Azure Pipelines and Buildkite`. */
export function titlesOf({ services }: Pick<Types, 'services'>, isMeant: (type: ServiceType) => boolean): string {
  return listed(services.filter(isMeant).map(({ title }) => title));
}

export function titlesWith(types: Pick<Types, 'services'>, key: ServicePoolKey): string {
  return titlesOf(types, ({ poolKeys }) => poolKeys.includes(key));
}

/** Services that say where their jobs come from, so that trust rules work. */
export function tellingOrigin(types: Pick<Types, 'services'>, services: readonly ServiceConfig[]): ReadonlySet<string> {
  const tells = (service: ServiceConfig): boolean => {
    const { poolKeys, tellsOrigin } = serviceType(types, service.type);
    return poolKeys.includes('trust') && (tellsOrigin?.(service) ?? true);
  };
  return new Set(services.filter(tells).map(({ name }) => name));
}

/** Services of both configs with a key that differs and cannot change while they have agents. */
export function fixedChanges(types: Pick<Types, 'services'>, before: readonly ServiceConfig[], after: readonly ServiceConfig[]) {
  return before.flatMap((one) => {
    const other = after.find(({ name, type }) => name === one.name && type === one.type);
    const read = (of: object, key: string): unknown => new Map(Object.entries(of)).get(key);
    const keys = serviceType(types, one.type).fixed ?? [];
    const key = other === undefined ? undefined : keys.find((each) => read(one, each) !== read(other, each));
    return key === undefined ? [] : [{ service: one.name, key }];
  });
}

/** Whether sandboxes of a pool are made from images; for one that leaves the runtime open, whether they may be. */
export function hasImages({ runtime, recipe }: Pick<PoolConfig, 'runtime'> & { readonly recipe: Pick<Recipe, 'wants'> }): boolean {
  return recipe.wants?.images ?? runtime !== 'process';
}
