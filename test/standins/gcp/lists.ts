/** Lists over all zones and regions. */
import { type Catalog, regionOf } from './catalog.ts';
import type { Faults } from './faults.ts';
import { filterOf } from './filter.ts';
import { Refused } from './insert-body.ts';
import type { World } from './machines.ts';
import { refused, type Said } from './refused.ts';
import { addressView, diskView, instanceView } from './views.ts';

export interface ListParts {
  readonly project: string;
  readonly catalog: Catalog;
  readonly faults: Faults;
  readonly world: World;
  /** Resources on a page, at most. */
  readonly pageSize: number;
  now(): number;
  needs(...permissions: readonly string[]): void;
}

export function createLists({ project, catalog, faults, world, pageSize, now, needs }: ListParts) {
  /** All scopes that a list over them has, with what is in each. */
  function aggregated(what: string): Map<string, unknown[]> {
    const zones = new Map(Object.keys(catalog.machineTypes).map((zone): [string, unknown[]] => [`zones/${zone}`, []]));
    const regions = new Map(Object.keys(catalog.subnetworks).map((region): [string, unknown[]] => [`regions/${region}`, []]));
    const link = (zone: string, rest: string): string =>
      `https://www.googleapis.com/compute/v1/projects/${project}/zones/${zone}/${rest}`;
    if (what === 'instances')
      for (const machine of world.machines.values())
        if (machine.listedFrom <= now()) zones.get(`zones/${machine.zone}`)?.push(instanceView(project, machine));
    if (what === 'disks') for (const disk of world.disks.values()) zones.get(`zones/${disk.zone}`)?.push(diskView(project, disk));
    if (what === 'machineTypes')
      for (const [zone, types] of Object.entries(catalog.machineTypes))
        for (const [name, guestCpus] of Object.entries(types))
          zones
            .get(`zones/${zone}`)
            ?.push({ kind: 'compute#machineType', name, guestCpus, zone, selfLink: link(zone, `machineTypes/${name}`) });
    if (what === 'acceleratorTypes')
      for (const [zone, types] of Object.entries(catalog.accelerators))
        for (const name of types)
          zones
            .get(`zones/${zone}`)
            ?.push({ kind: 'compute#acceleratorType', name, selfLink: link(zone, `acceleratorTypes/${name}`) });
    if (what !== 'addresses') return zones;
    for (const address of world.addresses.values()) regions.get(`regions/${address.region}`)?.push(addressView(project, address));
    return regions.set('global', []);
  }

  /** Since 2026-09-01 it lists what it reaches without being asked to, and the parameter for that is gone. */
  function list(what: string, query: URLSearchParams, version: string | null): Said {
    needs(`compute.${what}.list`);
    const isPartial = version === null ? query.get('returnPartialSuccess') === 'true' : true;
    if (version !== null && query.has('returnPartialSuccess'))
      throw new Refused('Invalid JSON payload received. Unknown name "returnPartialSuccess": Cannot bind query parameter.');
    const fits = filterOf(query.get('filter') ?? '');
    const size = Math.min(pageSize, Number(query.get('maxResults') ?? 500));
    const from = Number(query.get('pageToken')?.replace('page-', '') ?? 0);
    const hides = isPartial ? faults.unreachable : [];
    if (hides.length < faults.unreachable.length)
      return refused(503, 'backendError', `Zone ${faults.unreachable[0]} cannot be reached.`);
    const scopes = [...aggregated(what)];
    const isHidden = (scope: string): boolean =>
      hides.some((zone) => scope === `zones/${zone}` || scope === `regions/${regionOf(zone)}`);
    const rows = scopes.flatMap(([scope, entries]) =>
      isHidden(scope) ? [] : entries.filter((entry) => fits(entry)).map((entry) => ({ scope, entry })),
    );
    const page = rows.slice(from, from + size);
    const isLast = from + size >= rows.length;
    const items = Object.fromEntries(
      scopes.map(([scope]) => {
        const entries = page.filter((row) => row.scope === scope).map(({ entry }) => entry);
        if (entries.length > 0) return [scope, { [what]: entries }];
        const code = isHidden(scope) ? 'UNREACHABLE' : 'NO_RESULTS_ON_PAGE';
        const message = isHidden(scope)
          ? `Scope '${scope}' is unreachable.`
          : `There are no results for scope '${scope}' on this page.`;
        return [scope, { warning: { code, message, data: [{ key: 'scope', value: scope }] } }];
      }),
    );
    const kind = `compute#${what.replace(/s$/, '').replace('addresse', 'address')}AggregatedList`;
    return {
      status: 200,
      json: {
        kind,
        id: `projects/${project}/aggregated/${what}`,
        items,
        ...(isLast ? {} : { nextPageToken: `page-${from + size}` }),
      },
    };
  }

  return { list };
}
