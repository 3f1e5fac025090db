/** What the config knows of a type of runtime under `runtimes`. What `open` needs is loaded then. */
import type { Clock } from '../core/clock.ts';
import type { EngineWants, Runtime } from '../ports/runtime.ts';
import type { Keys } from '../schema/key.ts';
import type { Keys as WrittenKeys } from '../schema/service-keys.ts';
import type { Checking } from './checking.ts';
import type { DeviceRequest, PoolConfig, RuntimeConfig } from './config.ts';
import type { ServiceType } from './service-type.ts';

/** What a pool asks of the engine of its runtime. */
export interface EnginePool extends Pick<PoolConfig, 'timeout' | 'standby' | 'standbyMaxAge'> {
  readonly devices: DeviceRequest;
  /** The keys of the pool's map for the type, parsed but without defaults. */
  readonly written: WrittenKeys;
}

/** A type of runtime whose engine places sandboxes and chooses their devices. */
export interface RuntimeType<C extends RuntimeConfig = RuntimeConfig> {
  /** Also the name of the map in a pool with `poolKeys`. */
  readonly type: C['type'];
  readonly title: string;
  /** Keys of an entry of `runtimes`. */
  readonly keys: Keys;
  readonly needs: readonly string[];
  /** Keys of the map in pools. */
  readonly poolKeys: Keys;
  /** null: keys are missing. */
  resolve(name: string, keys: WrittenKeys): C | null;
  wants(pool: EnginePool): EngineWants;
  /** `agent`: of the pool's service, see `ServiceType`; null also for a service that is not known. */
  checkPool(pool: PoolConfig, runtime: C, checking: Checking, agent: ServiceType['agent']): void;
  open(runtime: C, parts: RuntimeParts): Promise<Runtime>;
}

export interface RuntimeParts {
  readonly owner: string;
  readonly stateDir: string;
  readonly clock: Clock;
}
