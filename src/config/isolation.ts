/** Whether a pool may be given credentials of its CI service where its runtime makes the sandboxes (S8). */
import type { Runtime } from '../runtimes/runtime.ts';
import type { PoolConfig } from './config.ts';

/** Why it may not, as a reason for a pause; null when it may. Only a runtime that was looked at knows it, so no file can tell. */
export function isolationProblem(
  { service, isolation }: Pick<PoolConfig, 'service' | 'isolation'>,
  { name, capabilities }: Pick<Runtime, 'name' | 'capabilities'>,
): string | null {
  if (service === 'own' || isolation === 'none' || capabilities.holdsSecrets) return null;
  const why = capabilities.weaker === null ? '' : ` (${capabilities.weaker.replace(/\.$/, '')})`;
  return `runtime ${name} cannot keep credentials of service ${service} from other jobs of this host${why}; write "runtime: docker", or give it up with "isolation: none"`;
}
