/** Checks who may use the daemon: pools that there are, and nothing that a role cannot use. */
import { listed, suggest } from '../schema/problem.ts';
import { pathProblem } from '../schema/volumes.ts';
import { mountOf, ownMounts } from '../system/mountinfo.ts';
import { realOf } from '../system/real-path.ts';
import type { Checking } from './checking.ts';
import type { PoolConfig } from './config.ts';
import { contains, engineSockets } from './host-places.ts';
import type { PeopleGroup } from './people.ts';

/** What groupadd accepts, and names that come from directories. */
const groupName = /^[^\s:,\p{Cc}-][^:,\p{Cc}]{0,255}$/u;

export function checkPeople(checking: Checking): void {
  const { config, written, at } = checking;
  if (config.people === null || [...written.broken].some((key) => key.startsWith('people'))) return;
  const { groups } = config.people;
  if (groups.length === 0) at(['people'], 'has no "groups": only root could use the daemon; name a group, or remove the key');
  const own = new Set(['own', ...config.services.filter(({ type }) => type === 'own-queue').map(({ name }) => name)]);
  const pools = [...config.pools, ...config.hosts.flatMap((host) => host.pools)].filter(({ service }) => own.has(service));
  const names = pools.map(({ name }) => name);
  for (const group of groups) {
    const path = ['people', 'groups', group.name];
    if (!groupName.test(group.name)) at(path, 'is not the name of a group');
    for (const pool of group.pools)
      if (!names.includes(pool))
        at([...path, 'pools'], `the own queue has no pool ${JSON.stringify(pool)}; ${suggest(pool, names)}`);
    if (group.role === 'submit' && group.pools.length === 0)
      at(
        path,
        `"pools" is missing: with the role submit they need pools to run jobs in, such as [${names.slice(0, 2).join(', ')}]`,
      );
    for (const { host } of group.volumes) {
      const why = pathProblem(host) ?? checking.whyHidden(host);
      if (why !== null) at([...path, 'volumes'], `${host}: ${why}`);
    }
    if (group.role === 'submit' && checking.host !== null)
      for (const { host } of group.volumes.filter(runsAsRoot)) at([...path, 'volumes'], setuid(host), 'warning');
    checkRole(group, written.top.people?.groups?.[group.name] ?? {}, checking);
    for (const { name } of pools.filter((pool) => group.role === 'submit' && group.pools.includes(pool.name) && givesRoot(pool)))
      at(
        [...path, 'pools'],
        `jobs of pool ${name} have all rights over this host, so anyone who may run them is as good as root`,
        'warning',
      );
  }
}

/** Root of a sandbox is root of the host for the files that it writes, also for their modes. */
function runsAsRoot({ host, readOnly }: PeopleGroup['volumes'][number]): boolean {
  return !readOnly && mountOf(realOf(host), ownMounts())?.options.includes('nosuid') === false;
}

function setuid(host: string): string {
  return `a job can leave a program in ${host} that runs as root for anyone who starts it there (setuid); mount a file system with "nosuid" there`;
}

function givesRoot({ recipe: { unsafe, mounts } }: PoolConfig): boolean {
  return unsafe.privileged || unsafe.pidHost || mounts.some(({ host }) => engineSockets.some((path) => contains(host, path)));
}

/** Keys that mean nothing for a role. */
function checkRole({ name, role }: PeopleGroup, written: object, { at }: Checking): void {
  const unused = {
    look: ['pools', 'volumes', 'images', 'cards', 'cards_each', 'weight'],
    submit: [],
    operate: ['volumes', 'images', 'logs', 'pools'],
  };
  const found = unused[role].filter((key) => key in written);
  if (found.length > 0) at(['people', 'groups', name], `the role ${role} does not use ${listed(found)}`, 'warning');
}
