/**
 * The kernel counts what all processes of a user watch with epoll, and root's are those of a container's root, too. A job that takes
 * them all ends every program of that user that watches one more file, such as the daemon (libuv aborts). Watches are memory of the
 * control group that has them, so a memory limit below their cost prevents that. Pure, but for the default of `limit`.
 */

import { attempt } from '../base/errors.ts';
import { type Finding, warning } from '../base/finding.ts';
import { formatBytes } from '../base/units.ts';
import type { PoolConfig } from '../config/config.ts';
import { readOr } from '../system/process-identity.ts';

/** Bytes of a watch on 64-bit machines (epoll(7)). */
const watchBytes = 160;
/** Larger than any host's memory. */
const enough = 2 ** 40 / watchBytes;

type Jobs = Pick<PoolConfig, 'name' | 'runtime'> & { readonly recipe: Pick<PoolConfig['recipe'], 'memory' | 'user'> };

export interface EpollFacts {
  /** The runtime of pools that name none. */
  readonly best: string;
  /** Whether the daemon runs as root. */
  readonly root: boolean;
  /** Watches that a user may have; null: unknown. */
  readonly limit?: number | null;
}

/** For `doctor`: pools whose memory limit does not prevent that. Without a limit, a job may use all memory anyway. */
export function epollFindings(pools: readonly Jobs[], { best, root, limit = watchesHere() }: EpollFacts): Finding[] {
  if (limit === null) return [];
  const isOfDaemon = ({ runtime, recipe: { user } }: Jobs): boolean =>
    (runtime ?? best) === 'process' ? !root : root && /^(root|0)?(:|$)/.test(user ?? '');
  const open = pools.filter((pool) => isOfDaemon(pool) && (pool.recipe.memory ?? 0) > limit * watchBytes).map(({ name }) => name);
  if (open.length === 0) return [];
  const cost = formatBytes(limit * watchBytes);
  const message = `A job of pool ${open.join(', ')} can end this daemon: ${cost} of its memory is enough to take all epoll watches of the daemon's user${root ? ', unless the Engine uses user namespaces' : ''}.`;
  const hint = `Type "sysctl -w fs.epoll.max_user_watches=${Math.floor(enough)}" as root, and write that into /etc/sysctl.d: then its memory limit comes first.`;
  return [warning('epoll', message, hint)];
}

function watchesHere(): number | null {
  const found = Number(attempt(() => readOr('/proc/sys/fs/epoll/max_user_watches', '')));
  return found > 0 ? found : null;
}
