/** A pool whose config, CI service and runtime have only what a test looks at. It keeps its standbys, and has no devices. */
import type { PoolConfig } from '../../src/config/config.ts';
import { Pool, withoutDevices } from '../../src/manager/loop/pool.ts';
import type { CiService } from '../../src/ports/ci-service.ts';
import type { Runtime } from '../../src/ports/runtime.ts';

type Parts = ConstructorParameters<typeof Pool>[1];

interface Like extends Partial<Omit<Parts, 'service' | 'runtime'>> {
  readonly service?: object;
  readonly runtime?: object;
}

export function poolLike(
  config: object,
  { service = {}, runtime = { name: 'docker', capabilities: { grants: 'host' } }, ...more }: Like = {},
): Pool {
  return new Pool({ name: 'p', standby: true, recipe: {}, ...config } as unknown as PoolConfig, {
    service: service as CiService,
    runtime: runtime as Runtime,
    keepStandby: true,
    devices: withoutDevices,
    ...more,
  });
}
