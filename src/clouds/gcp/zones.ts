/** Zones of the region that have a type of machine and its GPUs. What was found holds for hours: Google changes that every few months. */
import { CloudError } from '../../ports/cloud.ts';
import type { CloudParts } from '../kit/caller.ts';
import { type Expiring, ExpiringCache } from '../kit/expiring-cache.ts';
import type { GcpCalls } from './calls.ts';
import type { GcpConfig } from './config.ts';
import { type MachineType, typeText } from './machine-type.ts';
import { needs } from './permissions.ts';
import { lastOf, named } from './wire.ts';

/** ms */
const fresh = 6 * 3_600_000;

/** In the order in which they are tried. @throws CloudError E_CLOUD_REQUEST if there is none */
export type Zones = (type: MachineType, signal: AbortSignal) => Promise<readonly string[]>;

export function createZones(
  { project, region, zones: only }: GcpConfig,
  calls: GcpCalls,
  { clock }: Pick<CloudParts, 'clock'>,
): Zones {
  const held = new ExpiringCache<readonly string[]>(clock.now);

  async function offering(what: 'machineTypes' | 'acceleratorTypes', name: string, unknown: string[], signal: AbortSignal) {
    const found: string[] = [];
    const ended = await calls.pages(
      {
        kind: what,
        what: `zones with ${name}`,
        fields: 'name',
        path: `aggregated/${what}`,
        query: { filter: `name="${name}"` },
        doing: `find zones with ${name}`,
        needs: needs[what],
      },
      (scope, part) => {
        const entries = part[what];
        const has = Array.isArray(entries) && entries.some((entry: unknown) => named.safeParse(entry).data?.name === name);
        if (has) found.push(lastOf(scope));
      },
      unknown,
      signal,
    );
    if (ended !== null) throw ended;
    return found;
  }

  async function look(type: MachineType, signal: AbortSignal): Promise<Expiring<readonly string[]>> {
    const unknown: string[] = [];
    const [ofMachine, ofGpu] = await Promise.all([
      offering('machineTypes', type.machine, unknown, signal),
      type.attached === null ? null : offering('acceleratorTypes', type.attached.type, unknown, signal),
    ]);
    const everywhere = ofMachine.filter((zone) => ofGpu === null || ofGpu.includes(zone)).sort();
    const here = everywhere.filter((zone) => zone.startsWith(`${region}-`));
    const zones = only === null ? here : only.filter((zone) => here.includes(zone));
    if (zones.length > 0) return { value: zones, until: unknown.length === 0 ? clock.now() + fresh : 0 };
    const doing = `Cannot find a zone with ${typeText(type)}`;
    if (unknown.length > 0) {
      const message = `${doing}: Compute Engine could not list ${unknown.join('; ')}.`;
      throw new CloudError('E_CLOUD_UNREACHABLE', message, { retry: true });
    }
    throw new CloudError('E_CLOUD_REQUEST', `${doing}: there is none in ${(only ?? [region]).join(', ')} for ${project}.`, {
      hint: everywhere.length === 0 ? 'Look at the name of the type.' : `It is in ${everywhere.slice(0, 8).join(', ')}.`,
    });
  }

  return (type, signal) => held.get(typeText(type), (shared) => look(type, shared), signal);
}
