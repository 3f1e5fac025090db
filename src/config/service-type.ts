/** What the config knows of a type of CI service. It opens none, so that commands load no library with it. */
import type { Keys } from '../schema/key.ts';
import type { SecretReference } from '../schema/secret-reference.ts';
import type { Keys as WrittenKeys } from '../schema/service-keys.ts';
import type { Checking } from './checking.ts';
import type { PoolConfig, ServiceConfig } from './config.ts';

/** Keys of a pool that only some services know. */
export type ServicePoolKey = 'trust' | 'hooks' | 'plugins';

export interface ServiceType<C extends { readonly type: string } = ServiceConfig> {
  readonly type: C['type'];
  readonly title: string;
  /** Its agents are programs in images, or mounted programs; null: the job itself. */
  readonly agent: 'in-image' | 'mounted' | null;
  /** With `trust`, the service says where jobs come from, and they may have encrypted secrets. */
  readonly poolKeys: readonly ServicePoolKey[];
  /** Whether this one says where jobs come from; absent: as `poolKeys` says. */
  tellsOrigin?(service: C): boolean;
  /** Whether it says how many jobs wait for a pool, although they are for agents that are there; absent: as `tellsOrigin`. */
  tellsWaiting?(service: C, pool: PoolConfig): boolean;
  /** Why only one onejob at a time can serve a pool, as the end of a sentence; null or absent: several can. */
  whyOneHost?(service: C): string | null;
  readonly keys: Keys;
  /** Those that cannot change while the service has agents, because those with the old value could not be served any more. */
  readonly fixed?: readonly string[];
  /** Keys of the maps in them. */
  readonly maps: Readonly<Record<string, Keys>>;
  /** Required keys; of a list, one. */
  readonly needs: readonly (string | readonly string[])[];
  /** Required keys of the maps. */
  readonly mapNeeds?: Readonly<Record<string, readonly string[]>>;
  /** Removed keys, with what to do instead. */
  readonly removed?: Readonly<Record<string, string>>;
  /** null: keys are missing. */
  resolve(name: string, keys: WrittenKeys): C | null;
  /** Its secrets, each with its key. */
  secrets(service: C): readonly (readonly [key: string, secret: SecretReference])[];
  /** Keys of no use to machines in clouds, which therefore do not get them: only the daemon that makes machines uses them. */
  readonly notOnMachines?: readonly string[];
  check(service: C, checking: Checking): void;
  checkPool(pool: PoolConfig, service: C, checking: Checking): void;
}
