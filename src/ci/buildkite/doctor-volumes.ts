/** What `doctor` says of the volumes of pools that let untrusted jobs in: which of them these can read, and which they do not get. */
import type { PoolConfig } from '../../config/config.ts';
import { whyNoStranger } from '../../config/host-places.ts';
import type { Finding } from '../../runtimes/runtime.ts';
import { isOpenToUntrusted } from './doctor-classes.ts';

/** Folders where a host keeps what is nobody else's business, beside what is. */
const delicate = /^\/(?:root|etc)(?:\/|$)/;

export function untrustedVolumes(pool: PoolConfig): Finding[] {
  if (!isOpenToUntrusted(pool)) return [];
  const volumes = pool.recipe.mounts.filter(({ cache }) => cache === null).map(({ host }) => ({ host, why: whyNoStranger(host) }));
  const subject = `pool ${pool.name}`;
  const left = volumes.flatMap(({ host, why }): Finding[] =>
    why === null ? [] : [{ level: 'ok', subject, message: `Untrusted jobs do not get ${host}: ${why}.`, hint: null }],
  );
  const read = volumes.filter(({ host, why }) => why === null && delicate.test(host)).map(({ host }) => host);
  if (read.length === 0) return left;
  const message = `Untrusted jobs can read ${read.join(' and ')} of this host ("volumes").`;
  const hint =
    'Mount only what everybody may read, give untrusted jobs a pool of their own, or write "trust: { forks: refuse, others: refuse }".';
  return [...left, { level: 'warning', subject, message, hint }];
}
