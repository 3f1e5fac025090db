/** Whether another OCI runtime can start the sandboxes of a pool, and with what else of the pool that works. */
import type { Checking } from './checking.ts';
import type { PoolConfig } from './config.ts';

export function checkOciRuntime(pool: PoolConfig, { sound, inPool }: Checking): void {
  const { recipe, runtime, trust } = pool;
  const isDocker = runtime === 'docker' || runtime === null;
  const places = [
    { keys: ['oci_runtime'], name: recipe.ociRuntime ?? null, isAll: true },
    { keys: ['trust', 'oci_runtime'], name: trust.oci_runtime, isAll: false },
  ];
  for (const { keys, name, isAll } of places) {
    if (name === null || !sound(pool, keys[0] ?? '', 'runtime')) continue;
    const refuse = (why: string): void => inPool(pool, keys, `is ${name}, but ${why}`);
    if (!isDocker)
      refuse(`"runtime" is ${runtime}, and only an Engine has OCI runtimes; write "runtime: docker", or remove the key`);
    if (recipe.containers !== undefined && (isAll || trust.containers === 'allow') && sound(pool, 'containers')) {
      const ways = isAll ? 'remove one of the two' : 'write trust: { containers: refuse }';
      refuse(`"containers" gives agents an engine of their own, which needs the kernel of this host; ${ways}`);
    }
    if (recipe.grant.way === 'runtime' && sound(pool, 'grant'))
      refuse('"grant" is runtime, which is another runtime of the Engine; write "cdi" or "request"');
    if (!isAll) continue;
    const { privileged, pidHost, seccompUnconfined } = recipe.unsafe;
    if ((privileged || pidHost || seccompUnconfined) && sound(pool, 'unsafe'))
      refuse('"unsafe" takes away what it protects; remove one of the two');
    if (recipe.network === 'host' && sound(pool, 'network'))
      refuse('"network" is host, and its sandboxes have a network of their own; write another one');
  }
}
