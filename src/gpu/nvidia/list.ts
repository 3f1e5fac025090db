/** `nvidia-smi -L`: the only output with UUID and profile of MIG instances on every driver, and with the index of each card. */
import { type GpuReading, type MigReading, newBlock, nothingRead, type Reading } from './reading.ts';
import { migUuid } from './values.ts';

export function looksLikeList(text: string): boolean {
  return /^[ \t]*GPU[ \t]{1,8}\d{1,4}:.{0,200}\(UUID:/m.test(text);
}

interface Entry {
  readonly gpu: GpuReading;
  readonly instances: MigReading[];
  readonly lines: Set<string>;
}

/** Never throws. A repeated line is the same GPU: other outputs repeat it. */
export function readList(text: string): Reading {
  const entries = new Map<string, Entry>();
  const rest: string[] = [];
  let whole = true;
  let owner: Entry | null = null;
  for (const raw of text.split('\n')) {
    const line = raw.trim();
    const gpu = gpuIn(line);
    const instance = gpu === null ? migIn(line) : null;
    if (gpu !== null) {
      owner = entries.get(line) ?? { gpu, instances: [], lines: new Set() };
      entries.set(line, owner);
    } else if (instance !== null && owner !== null) {
      if (!owner.lines.has(line)) owner.instances.push(instance);
      owner.lines.add(line);
    } else {
      // An incomplete line, or an instance without a GPU.
      if (/^(GPU[ \t]{1,8}\d{1,4}:|MIG[ \t]{1,8}\d)/.test(line)) whole = false;
      rest.push(raw);
    }
  }
  const gpus = [...entries.values()].map(({ gpu, instances }) => ({ ...gpu, instances }));
  return { ...nothingRead, gpus, whole: whole && gpus.length > 0, rest: rest.join('\n') };
}

/** `GPU 0: NVIDIA L4 (UUID: GPU-…)`; a name may contain brackets: `Orin (nvgpu)`. */
function gpuIn(line: string): GpuReading | null {
  const [start, index] = /^GPU[ \t]{1,8}(\d{1,4}):/.exec(line) ?? [];
  const at = line.lastIndexOf('(UUID:');
  if (start === undefined || index === undefined || at < start.length || !line.endsWith(')')) return null;
  const model = line.slice(start.length, at).trim();
  const uuid = line.slice(at + '(UUID:'.length, -1).trim();
  return { ...newBlock({ index, model, uuid }), depth: 'name' };
}

/** `MIG 1g.10gb Device 0: (UUID: MIG-…)`. */
function migIn(line: string): MigReading | null {
  const [, profile, index, uuid] =
    /^MIG[ \t]{1,8}(\S{1,40})[ \t]{1,20}Device[ \t]{1,8}(\d{1,3}):[ \t]{0,8}\(UUID:[ \t]{0,8}(\S{1,120})\)$/.exec(line) ?? [];
  if (profile === undefined || index === undefined || uuid === undefined) return null;
  const ids = migUuid(uuid);
  if (ids === null) return { profile, index };
  const { gpuInstance, computeInstance } = ids;
  return {
    profile,
    index,
    uuid,
    ...(gpuInstance !== null && { gpuInstance }),
    ...(computeInstance !== null && { computeInstance }),
  };
}

/** GPUs in texts of `/proc/driver/nvidia/gpus/…/information`, without excluded ones; an unused card's UUID is `GPU-????????-…`. */
export function readProcGpus(text: string): GpuReading[] {
  return text.split(/^(?=Model:)/im).flatMap((block): GpuReading[] => {
    const lines = new Map(
      [...block.matchAll(/^([^:\n]*):(.*)$/gm)].map(([, label = '', value = '']) => [label.trim().toLowerCase(), value.trim()]),
    );
    if (!lines.has('bus location') || /^yes$/i.test(lines.get('gpu excluded') ?? '')) return [];
    const labels = { model: 'model', uuid: 'gpu uuid', pciId: 'bus location', minor: 'device minor' };
    const known = Object.entries(labels).filter(([, label]) => lines.has(label));
    return [{ ...newBlock(Object.fromEntries(known.map(([field, label]) => [field, lines.get(label)]))), depth: 'name' }];
  });
}
