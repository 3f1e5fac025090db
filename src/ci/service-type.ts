/** What onejob knows of a type of CI service without opening one: it is loaded by every command, so it brings no library. */
import type { z } from 'zod';
import type { InitFlags, OpenFrame } from '../cli/init-steps.ts';
import type { Session } from '../cli/session.ts';
import type { Checking } from '../config/check.ts';
import type { PoolConfig, ServiceConfig } from '../config/config.ts';
import type { Keys } from '../config/service-keys.ts';
import type { SecretReference } from '../secrets/reference.ts';
import type { Rules } from './filter/rules.ts';

/** Keys of a pool that only some services know. */
export type ServicePoolKey = 'trust' | 'hooks' | 'plugins';

export interface ServiceType<C extends { readonly type: string } = ServiceConfig> {
  readonly type: C['type'];
  /** For people. */
  readonly title: string;
  /** What its agents are: programs that images must hold, or that are mounted and need something of the image; null: the job itself. */
  readonly agent: 'in-image' | 'mounted' | null;
  /** Name of the image that suits a host, as `src/images/request.ts` fills it, where its agents need another than a plain one. */
  readonly imageTemplate?: string;
  /** With `trust` it tells where its jobs come from, and they may bring encrypted secrets. */
  readonly poolKeys: readonly ServicePoolKey[];
  /** What holds of its keys where nothing is written, as `config show` tells it; numbers are ms. */
  readonly defaults: Readonly<Record<string, string | number>>;
  /** What its untrusted jobs may ask of it through the filter. */
  filterRules?(): Promise<Rules>;
  /** null: `init` asks nothing. */
  readonly init: InitSteps | null;
  /** Brings zod, which is not needed where there is no file. */
  schema(): Promise<ServiceSchema>;
  /** null: it says too little. */
  resolve(name: string, keys: Keys): C | null;
  /** Its secrets, each with its key. */
  secrets(service: C): readonly (readonly [key: string, secret: SecretReference])[];
  check(service: C, checking: Checking): void;
  checkPool(pool: PoolConfig, service: C, checking: Checking): void;
}

/** What `onejob init` asks for, and how it is told of. */
export interface InitSteps {
  readonly asks: string;
  /** Its own, each with what it means. */
  readonly options: readonly (readonly [flags: string, about: string])[];
  /** Name of the file: beside the config, where nobody says another. */
  readonly token: { readonly what: string; readonly file: string };
  /** What `--force` does, beside what it does for all. */
  readonly force?: string;
  /** Options as somebody could type them. */
  readonly example: string;
  readonly hint: string;
  run(session: Session, flags: InitFlags, open: OpenFrame): Promise<number>;
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
