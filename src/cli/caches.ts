/** `onejob caches` and `onejob caches clear`. */
import { formatBytes } from '../base/units.ts';
import type { CacheView } from '../contract/schema.ts';
import { systemClock } from '../system/system-clock.ts';
import { withDaemon } from './connect.ts';
import { exitCodes, wrongUsage } from './exit.ts';
import type { Session } from './session.ts';
import { formatAge, plural, printable, titledTable } from './text.ts';

export async function listCaches(session: Session, now = systemClock.wall()): Promise<number> {
  const { output } = session;
  const caches = await withDaemon(session, (client) => client.call('GET /v1/caches', {}));
  const rows = caches.map(({ of, name, agent, project, trusted, bytes, usedAt, inUse }: CacheView) => ({
    OF: printable(of),
    CACHE: printable(name),
    SLOT: printable(agent ?? '-'),
    PROJECT: printable(project ?? '-'),
    TRUST: trusted ? 'trusted' : 'untrusted',
    SIZE: bytes === null ? '?' : formatBytes(bytes),
    USED: inUse ? 'now' : usedAt === null ? '-' : `${formatAge(Math.max(0, now - usedAt))} ago`,
  }));
  await output.list(caches, 'There are no caches.', () => titledTable(rows, output));
  return exitCodes.ok;
}

export type ClearFlags = {
  readonly of?: string;
  readonly project?: string;
  readonly untrusted?: boolean;
  readonly all?: boolean;
  readonly dryRun?: boolean;
};

/** @throws OnejobError E_USAGE */
export async function clearCaches(session: Session, name: string | undefined, flags: ClearFlags): Promise<number> {
  const { of, project, untrusted, all = false, dryRun = false } = flags;
  const only = {
    ...(name !== undefined && { name }),
    ...(of !== undefined && { of }),
    ...(project !== undefined && { project }),
    ...(untrusted === true && { untrusted }),
  };
  if (Object.keys(only).length === 0 && !all)
    throw wrongUsage(
      'Cannot clear caches: it does not say which.',
      'Add a name, --of, --project or --untrusted, or --all for every cache of the host.',
    );
  if (Object.keys(only).length > 0 && all)
    throw wrongUsage('Cannot clear caches: --all is every cache, and cannot be restricted.', 'Leave out --all.');
  const done = await withDaemon(session, (client) => client.call('POST /v1/caches/clear', { body: { ...only, dryRun } }));
  const what = `${plural(done.caches, 'cache')}, ${formatBytes(done.bytes)}`;
  const stays = done.inUse === 0 ? [] : [`Jobs use ${plural(done.inUse, 'other')}, which ${done.inUse === 1 ? 'stays' : 'stay'}.`];
  await session.output.result(done, () => [dryRun ? `That would clear ${what}.` : `Cleared ${what}.`, ...stays]);
  return done.inUse === 0 ? exitCodes.ok : exitCodes.failed;
}
