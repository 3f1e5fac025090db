/** Quotas and capacity: why an instance is not made, although the call was accepted. */
import { type Catalog, regionOf } from './catalog.ts';
import type { Faults } from './faults.ts';
import type { Wanted } from './insert-body.ts';
import type { Machine, World } from './machines.ts';
import type { Operation } from './views.ts';

export interface LimitParts {
  readonly project: string;
  readonly catalog: Catalog;
  readonly faults: Faults;
  readonly world: Pick<World, 'machines'>;
}

/** null: there is enough; else the error of the operation. */
export function createLimits({ project, catalog, faults, world }: LimitParts) {
  /** What the operation of an insert ends with, if quota or capacity is missing. */
  function whyNone(zone: string, { name, machineType, accelerator, isSpot }: Wanted): Operation['error'] {
    const quota = quotaProblem(zone, machineType, accelerator, isSpot);
    if (quota !== null) return { status: 403, errors: [quota] };
    const { stockout, operation } = faults;
    if (operation !== null) return { status: 400, errors: [operation] };
    if (stockout === null || !stockout.zones.includes(zone) || !machineType.startsWith(stockout.type ?? '')) return null;
    if (stockout.name !== undefined && stockout.name !== name) return null;
    const attachment = accelerator === null ? {} : { attachment: `${accelerator.type}:${accelerator.count}` };
    const available = stockout.available === undefined ? {} : { zonesAvailable: stockout.available.join(',') };
    const message = `The zone 'projects/${project}/zones/${zone}' does not have enough resources available to fulfill the request.  '(resource type:compute)'.`;
    const metadatas = { vmType: machineType, ...attachment, zone, ...available };
    const errorDetails = [{ errorInfo: { reason: 'resource_availability', domain: 'compute.googleapis.com', metadatas } }];
    return { status: 503, errors: [{ code: 'ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS', message, errorDetails }] };
  }

  function quotaProblem(
    zone: string,
    machineType: string,
    accelerator: { readonly type: string; readonly count: number } | null,
    isSpot: boolean,
  ): unknown {
    const gpusOf = (type: string, attached: typeof accelerator): readonly [string, number] | null => {
      if (attached !== null) return [attached.type.replace('nvidia-tesla-', 'NVIDIA_').toUpperCase(), attached.count];
      if (type.startsWith('g2-')) return ['NVIDIA_L4', type.endsWith('-24') ? 2 : 1];
      return type.startsWith('a2-') ? ['NVIDIA_A100', 1] : null;
    };
    const wanted = gpusOf(machineType, accelerator);
    if (wanted === null) return null;
    const [gpu, count] = wanted;
    const others = [...world.machines.values()].map((one) => ({
      one,
      gpus: gpusOf(one.wanted.machineType, one.wanted.accelerator),
    }));
    const inUse = (fits: (one: Machine, gpu: string) => boolean): number =>
      others.reduce((sum, { one, gpus }) => sum + (gpus !== null && fits(one, gpus[0]) ? gpus[1] : 0), 0);
    const region = regionOf(zone);
    const metric = `${isSpot ? 'PREEMPTIBLE_' : ''}${gpu}_GPUS`;
    const here = inUse((one, name) => regionOf(one.zone) === region && one.wanted.isSpot === isSpot && name === gpu);
    const problem = (name: string, limit: number, where: string) => ({
      code: 'QUOTA_EXCEEDED',
      message: `Quota '${name}' exceeded.  Limit: ${limit.toFixed(1)} ${where}.`,
      errorDetails: [
        {
          quotaInfo: {
            metricName: `compute.googleapis.com/${name.toLowerCase()}`,
            limitName: name.replaceAll('_', '-'),
            limit,
            dimensions: { region },
          },
        },
      ],
    });
    const all = catalog.quotas.global?.GPUS_ALL_REGIONS ?? 0;
    if (inUse(() => true) + count > all) return problem('GPUS_ALL_REGIONS', all, 'globally');
    const limit = catalog.quotas[region]?.[metric] ?? 0;
    return here + count > limit ? problem(metric, limit, `in region ${region}`) : null;
  }

  return { whyNone };
}
