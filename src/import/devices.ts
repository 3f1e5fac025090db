/**
 * Which devices an agent was given: by variables of the vendors' runtimes, by nodes under /dev, by reservations, by CDI names. Sources:
 * https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html,
 * https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html, https://docs.docker.com/compose/how-tos/gpu-support/
 */
import type { DeviceClaim, Vendor } from './agent.ts';
import { noDevices } from './agent.ts';
import { isMap, listOf, numberOf, textOf } from './plain.ts';

/** Variables that choose devices: onejob grants them itself, and sets these where they are needed. */
export const deviceVariables: ReadonlySet<string> = new Set([
  'NVIDIA_VISIBLE_DEVICES',
  'CUDA_VISIBLE_DEVICES',
  'ROCR_VISIBLE_DEVICES',
  'HIP_VISIBLE_DEVICES',
  'GPU_DEVICE_ORDINAL',
  'AMD_VISIBLE_DEVICES',
  'ONEAPI_DEVICE_SELECTOR',
  'ZE_AFFINITY_MASK',
]);

export interface DeviceInput {
  readonly env: ReadonlyMap<string, string>;
  readonly service: Readonly<Record<string, unknown>>;
  say(level: 'warning' | 'note', path: readonly (string | number)[], message: string): void;
}

/** Never throws. */
export function readDevices({ env, service, say }: DeviceInput): DeviceClaim {
  const nodes = listOf(service.devices).flatMap((item, at) => {
    const source = isMap(item) ? textOf(item.source) : (textOf(item)?.split(':')[0] ?? null);
    const whole = isMap(item) ? textOf(item.source) : textOf(item);
    return source === null || whole === null ? [] : [{ at, source, whole }];
  });
  const asked = reserved(service) ?? fromCdi(nodes.map(({ whole }) => whole));
  const isNvidia = service.runtime === 'nvidia' || nodes.some(({ source }) => /^\/dev\/nvidia(\d+|ctl)$/.test(source));
  const kfd = nodes.some(({ source }) => source === '/dev/kfd');
  const dri = nodes.filter(({ source }) => source.startsWith('/dev/dri'));
  for (const { at, source, whole } of nodes) {
    if (/^\/dev\/(nvidia|kfd$|dri)/.test(source) || /^[a-z.]+\/gpu=/.test(whole)) continue;
    say('warning', ['devices', at], `${source} is not carried over: onejob gives no other device nodes than those of GPUs`);
  }
  if (isNvidia && dri.length > 0) {
    const at = dri[0]?.at ?? 0;
    say('note', ['devices', at], 'an NVIDIA card brings its own nodes; if jobs draw, add "capabilities: [graphics]" to "devices"');
  }
  const variable = (names: readonly string[]) => names.map((name) => env.get(name)).find((value) => value !== undefined);
  if (isNvidia || asked?.vendor === 'nvidia' || (!kfd && asked === null && env.has('NVIDIA_VISIBLE_DEVICES'))) {
    const visible = variable(['NVIDIA_VISIBLE_DEVICES', 'CUDA_VISIBLE_DEVICES']);
    const isByName = asked?.by === 'uuid' || asked?.by === 'index';
    const wins = isByName && visible !== undefined && isNarrower(chosen('nvidia', visible), asked);
    if (wins) {
      const what = `${visible} is named here and ${[...asked.uuids, ...asked.indexes].join(',')} in "device_ids": the first is taken`;
      say('warning', ['environment', 'NVIDIA_VISIBLE_DEVICES'], what);
    }
    const written = isByName && !wins ? undefined : visible;
    const minors = nodes.flatMap(({ source }) => /^\/dev\/nvidia(\d+)$/.exec(source)?.[1] ?? []);
    const whole = asked ?? (minors.length > 0 ? chosen('nvidia', minors.join(',')) : all('nvidia'));
    const capabilities = capabilitiesOf(env.get('NVIDIA_DRIVER_CAPABILITIES'), say);
    const found = written === undefined ? whole : chosen('nvidia', written);
    return { ...found, capabilities: found.by === 'none' ? [] : capabilities };
  }
  if (kfd || asked?.vendor === 'amd') {
    const written = variable(['ROCR_VISIBLE_DEVICES', 'AMD_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES', 'GPU_DEVICE_ORDINAL']);
    return written === undefined
      ? (asked ??
          renderNodes(
            'amd',
            dri.map(({ source }) => source),
          ))
      : chosen('amd', written);
  }
  if (dri.length > 0) {
    const at = dri[0]?.at ?? 0;
    say('note', ['devices', at], '/dev/dri alone is taken for a GPU of Intel; if it is another, change "vendor" in "devices"');
    const mask = env.get('ZE_AFFINITY_MASK');
    return mask === undefined
      ? renderNodes(
          'intel',
          dri.map(({ source }) => source),
        )
      : chosen('intel', mask);
  }
  return asked ?? noDevices;
}

/** UUIDs say more than numbers, and those of MIG instances more than those of cards. */
function isNarrower(one: DeviceClaim, than: DeviceClaim): boolean {
  if (one.by !== 'uuid') return false;
  const isPart = ({ uuids }: DeviceClaim) => uuids.some((uuid) => /^MIG-/i.test(uuid));
  return than.by === 'index' || (isPart(one) && !isPart(than));
}

function all(vendor: Vendor): DeviceClaim {
  return { ...noDevices, by: 'all', vendor };
}

function renderNodes(vendor: Vendor, nodes: readonly string[]): DeviceClaim {
  const one = nodes.flatMap((node) => /\/renderD(\d+)$/.exec(node)?.[1] ?? []);
  if (one.length === 0 || nodes.includes('/dev/dri')) return all(vendor);
  return { ...noDevices, by: 'index', vendor, count: one.length, indexes: one.map((minor) => `renderD${minor}`) };
}

/** `all`, `none`, UUIDs or numbers, separated by commas. */
function chosen(vendor: Vendor, written: string): DeviceClaim {
  const names = [...new Set(written.split(',').map((name) => name.trim()))].filter((name) => name !== '');
  if (names.length === 0 || names.every((name) => name === 'none' || name === 'void' || name === '-1'))
    return { ...noDevices, vendor };
  if (names.includes('all')) return all(vendor);
  const uuids = names.filter((name) => /^(GPU|MIG)-/i.test(name));
  if (uuids.length === names.length) return { ...noDevices, by: 'uuid', vendor, count: uuids.length, uuids };
  return { ...noDevices, by: 'index', vendor, count: names.length, indexes: names };
}

/** `deploy.resources.reservations.devices` and `gpus`; null where there is neither. */
function reserved(service: Readonly<Record<string, unknown>>): DeviceClaim | null {
  const deploy = isMap(service.deploy) && isMap(service.deploy.resources) ? service.deploy.resources.reservations : undefined;
  if (service.gpus === 'all') return all('nvidia');
  const requests = [...listOf(isMap(deploy) ? deploy.devices : undefined), ...listOf(service.gpus)].filter(isMap);
  const claims = requests.flatMap((request): DeviceClaim[] => {
    const driver = textOf(request.driver) ?? 'nvidia';
    const kinds = listOf(request.capabilities).flatMap((kind) => textOf(kind) ?? []);
    const vendor: Vendor | null =
      driver === 'nvidia' ? 'nvidia' : /amd|rocm/i.test(driver) ? 'amd' : /intel/i.test(driver) ? 'intel' : null;
    if (driver === 'cdi')
      return [fromCdi(listOf(request.device_ids).flatMap((id) => textOf(id) ?? []))].filter((one) => one !== null);
    if (vendor === null || (kinds.length > 0 && !kinds.some((kind) => /gpu|nvidia|compute/.test(kind)))) return [];
    if (request.device_ids !== undefined)
      return [
        chosen(
          vendor,
          listOf(request.device_ids)
            .flatMap((id) => textOf(id) ?? [])
            .join(','),
        ),
      ];
    const count = numberOf(request.count);
    return [count === null || count < 0 ? all(vendor) : { ...noDevices, by: count === 0 ? 'none' : 'count', vendor, count }];
  });
  return joined(claims);
}

/** `nvidia.com/gpu=GPU-…` and the like. */
function fromCdi(names: readonly string[]): DeviceClaim | null {
  const claims = names.flatMap((name): DeviceClaim[] => {
    const [, vendor, device] = /^(nvidia|amd|intel)\.com\/gpu=(.+)$/.exec(name) ?? [];
    return vendor === undefined || device === undefined ? [] : [chosen(vendor as Vendor, device)];
  });
  return joined(claims);
}

function joined(claims: readonly DeviceClaim[]): DeviceClaim | null {
  const [first] = claims;
  if (first === undefined || claims.length === 1) return first ?? null;
  if (claims.some(({ by }) => by === 'all')) return all(first.vendor);
  const uuids = [...new Set(claims.flatMap((claim) => claim.uuids))];
  const indexes = [...new Set(claims.flatMap((claim) => claim.indexes))];
  const loose = claims.filter(({ by }) => by === 'count').reduce((sum, { count }) => sum + count, 0);
  const count = uuids.length + indexes.length + loose;
  const by = loose > 0 ? 'count' : indexes.length > 0 ? 'index' : uuids.length > 0 ? 'uuid' : 'none';
  return { ...first, by, count, uuids: by === 'uuid' ? uuids : [], indexes };
}

/** What onejob gives anyway is computing and nvidia-smi. */
function capabilitiesOf(written: string | undefined, say: DeviceInput['say']): string[] {
  const words = (written ?? '').split(',').map((word) => word.trim());
  const known = ['graphics', 'video', 'display'];
  const odd = words.filter((word) => !['', 'all', 'compute', 'utility', ...known].includes(word));
  if (odd.length > 0) {
    const what = `NVIDIA_DRIVER_CAPABILITIES: ${odd.join(', ')} is not carried over; known are ${known.join(', ')}`;
    say('warning', ['environment', 'NVIDIA_DRIVER_CAPABILITIES'], what);
  }
  return words.includes('all') ? known : known.filter((word) => words.includes(word));
}

/** Names of what an agent holds, to find those that hold the same. What is counted by a host is only the same on one host. */
export function claimsOf({ by, vendor, uuids, indexes }: DeviceClaim): readonly string[] {
  if (by === 'uuid') return uuids.map((uuid) => uuid.toLowerCase());
  if (by === 'index') return indexes.map((index) => `${vendor} GPU ${index}`);
  return by === 'all' ? [`all GPUs of ${vendor}`] : [];
}

/** The key `devices` of its pool, without the UUIDs, which a pool has of all its agents. */
export function devicesKey({
  by,
  vendor,
  count,
  uuids,
  indexes,
  capabilities,
}: DeviceClaim): Readonly<Record<string, string | number | boolean | readonly string[]>> | 0 {
  if (by === 'none') return 0;
  const more = capabilities.length === 0 ? {} : { capabilities };
  if (by === 'all') return { count: 'all', vendor, ...more };
  // `0:1` is instance 1 of card 0.
  const byPart = indexes.length > 0 && indexes.every((index) => index.includes(':')) ? { mig: true } : {};
  if (by !== 'uuid') return { count, vendor, ...byPart, ...more };
  const isMig = uuids.every((uuid) => /^MIG-/i.test(uuid));
  return { count, ...(vendor === 'nvidia' ? {} : { vendor }), ...(isMig ? { mig: true } : {}), ...more };
}
