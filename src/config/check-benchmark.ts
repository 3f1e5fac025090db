/** What the slots of a pool need for measurements. */
import type { Checking } from './checking.ts';
import type { PoolConfig } from './config.ts';

export function checkBenchmark(pool: PoolConfig, { sound, inPool }: Checking): void {
  const { agents, benchmark, devices, recipe, runtime, standby } = pool;
  if (benchmark === undefined || !sound(pool, 'benchmark', 'devices', 'agents', 'runtime', 'standby')) return;
  const refuse = (why: string): void => inPool(pool, ['benchmark'], `is set, but ${why}`);
  if (recipe.wants !== undefined) {
    refuse(`"runtime" is ${runtime}, which chooses devices and CPUs itself; write "runtime: docker" or "runtime: process"`);
    return;
  }
  if (devices.count !== 1) refuse(`"devices" is ${devices.count}, and a measurement is of one card; write "devices: 1"`);
  if (devices.share !== 1) refuse(`"share" is ${devices.share}, so other jobs would be on the card; remove "share"`);
  if (devices.mig !== false)
    refuse('"mig" asks for instances, whose card has other jobs, and one temperature and clock for all; remove "mig"');
  if (devices.vendor !== 'nvidia')
    refuse(`"vendor" is ${devices.vendor}, and onejob measures only cards of NVIDIA; remove "benchmark"`);
  if (!standby) refuse('"standby" is false, so other pools would use the card between two jobs; remove one of the two');
  if (benchmark.cpus !== null && agents !== 1)
    inPool(
      pool,
      ['benchmark', 'cpus'],
      `is set, but "agents" is ${agents}: they would share these CPUs; give each a pool of its own`,
    );
}
