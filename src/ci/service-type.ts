/** What onejob knows of a type of CI service without opening one: it is loaded by every command, so it brings no library. */
import type { z } from 'zod';
import type { Checking } from '../config/checking.ts';
import type { PoolConfig, ServiceConfig } from '../config/config.ts';
import type { Keys } from '../config/service-keys.ts';
import type { SecretReference } from '../secrets/reference.ts';

/** Keys of a pool that only some services know. */
export type ServicePoolKey = 'trust' | 'hooks' | 'plugins';

export interface ServiceType<C extends { readonly type: string } = ServiceConfig> {
  readonly type: C['type'];
  /** For people. */
  readonly title: string;
  /** What its agents are: programs that images must hold, or that are mounted and need something of the image; null: the job itself. */
  readonly agent: 'in-image' | 'mounted' | null;
  /** With `trust` it tells where its jobs come from, and they may bring encrypted secrets. */
  readonly poolKeys: readonly ServicePoolKey[];
  /** What holds of its keys where nothing is written, as `config show` tells it. */
  readonly defaults: Readonly<Record<string, string | number>>;
  schema(): Promise<ServiceSchema>;
  /** null: it says too little. */
  resolve(name: string, keys: Keys): C | null;
  /** Its secrets, each with its key. */
  secrets(service: C): readonly (readonly [key: string, secret: SecretReference])[];
  check(service: C, checking: Checking): void;
  checkPool(pool: PoolConfig, service: C, checking: Checking): void;
}

/** How a service of a type is written. */
export interface ServiceSchema {
  /** `type` aside. */
  readonly keys: z.ZodObject;
  /** Keys of the maps inside. */
  readonly maps: Readonly<Record<string, z.ZodObject>>;
  /** Keys without which it cannot work; of a list, one. */
  readonly needs: readonly (string | readonly string[])[];
  /** Keys without which a map inside says too little. */
  readonly mapNeeds?: Readonly<Record<string, readonly string[]>>;
  /** Keys of earlier versions, with what to do instead. */
  readonly removed?: Readonly<Record<string, string>>;
}
