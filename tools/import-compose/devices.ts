/**
 * The devices of an agent, from variables of vendors' runtimes, nodes under /dev, reservations, and CDI names. Sources:
 * https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html,
 * https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html, https://docs.docker.com/compose/how-tos/gpu-support/
 */
import {
  composeNumber,
  type DeviceClaim,
  insideContainer,
  isMap,
  listOf,
  noComposeDevices,
  type Service,
  textOf,
  textsOf,
  type Vendor,
} from './agent.ts';

/** Variables that choose devices of a vendor; the first that is set counts. */
const choosing: Readonly<Record<Vendor, readonly string[]>> = {
  nvidia: ['NVIDIA_VISIBLE_DEVICES', 'CUDA_VISIBLE_DEVICES'],
  amd: ['ROCR_VISIBLE_DEVICES', 'AMD_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES', 'GPU_DEVICE_ORDINAL'],
  intel: ['ZE_AFFINITY_MASK'],
};

/** All variables that choose devices, which onejob sets itself. */
export const deviceVariables: ReadonlySet<string> = new Set([...Object.values(choosing).flat(), 'ONEAPI_DEVICE_SELECTOR']);

/** Never throws. `env`: all variables of the service that have a value. */
export function readDevices({ written, warn, note }: Service, env: ReadonlyMap<string, string>): DeviceClaim {
  const nodes = listOf(written.devices).flatMap((item, at) => {
    const whole = textOf(isMap(item) ? item.source : item);
    return whole === null ? [] : [{ path: ['devices', at], whole, source: whole.split(':')[0] ?? '' }];
  });
  const sources = nodes.map(({ source }) => source);
  const dri = nodes.filter(({ source }) => source.startsWith('/dev/dri'));
  const [firstDri] = dri;
  const isNvidia = written.runtime === 'nvidia' || sources.some((source) => /^\/dev\/nvidia(\d+|ctl)$/.test(source));
  const isAmd = sources.includes('/dev/kfd');
  const asked = reserved(written) ?? fromCdi(nodes.map(({ whole }) => whole));
  for (const { path, source, whole } of nodes) {
    if (!/^\/dev\/(nvidia|kfd$|dri)/.test(source) && !/^[a-z.]+\/gpu=/.test(whole))
      warn(path, `${source} is not carried over: onejob provides device nodes only for GPUs`);
  }
  if (isNvidia && firstDri !== undefined)
    note(firstDri.path, 'an NVIDIA card brings its own nodes; if jobs draw, add "capabilities: [graphics]" to "devices"');

  const visible = (vendor: Vendor) => choosing[vendor].map((name) => env.get(name)).find((value) => value !== undefined);
  const chosenBy = (vendor: Vendor): DeviceClaim | null => {
    const value = visible(vendor);
    return value === undefined ? null : chosen(vendor, value);
  };
  if (isNvidia || asked?.vendor === 'nvidia' || (!isAmd && asked === null && env.has('NVIDIA_VISIBLE_DEVICES'))) {
    const capabilities = capabilitiesOf(env.get('NVIDIA_DRIVER_CAPABILITIES'), warn);
    const minors = sources.flatMap((source) => /^\/dev\/nvidia(\d+)$/.exec(source)?.[1] ?? []);
    const named = chosenBy('nvidia');
    let found = named ?? asked ?? (minors.length > 0 ? chosen('nvidia', minors.join(',')) : all('nvidia'));
    if (named !== null && (asked?.by === 'uuid' || asked?.by === 'index')) {
      if (isNarrower(named, asked)) {
        const what = `${visible('nvidia')} is named here and ${asked.names.join(',')} in "device_ids": the first is taken`;
        warn(['environment', 'NVIDIA_VISIBLE_DEVICES'], what);
      } else found = asked;
    }
    return found.by === 'none' ? found : { ...found, capabilities };
  }
  if (isAmd || asked?.vendor === 'amd') return chosenBy('amd') ?? asked ?? renderNodes('amd', dri);
  if (firstDri === undefined) return asked ?? noComposeDevices;
  note(firstDri.path, '/dev/dri alone is treated as an Intel GPU; if it has another vendor, change "vendor" in "devices"');
  return chosenBy('intel') ?? renderNodes('intel', dri);
}

/** UUIDs are more precise than numbers, and those of MIG instances more than those of cards. */
function isNarrower(one: DeviceClaim, than: DeviceClaim): boolean {
  const isPart = ({ names }: DeviceClaim) => names.some((name) => /^MIG-/i.test(name));
  return one.by === 'uuid' && (than.by === 'index' || (isPart(one) && !isPart(than)));
}

function all(vendor: Vendor): DeviceClaim {
  return { ...noComposeDevices, by: 'all', vendor };
}

function renderNodes(vendor: Vendor, nodes: readonly { readonly source: string }[]): DeviceClaim {
  const names = nodes.flatMap(({ source }) => /\/(renderD\d+)$/.exec(source)?.[1] ?? []);
  if (names.length === 0 || nodes.some(({ source }) => source === '/dev/dri')) return all(vendor);
  return { ...noComposeDevices, by: 'index', vendor, count: names.length, names };
}

/** `all`, `none`, UUIDs or numbers, separated by commas. */
function chosen(vendor: Vendor, written: string): DeviceClaim {
  const names = [...new Set(written.split(',').map((name) => name.trim()))].filter((name) => name !== '');
  if (names.every((name) => name === 'none' || name === 'void' || name === '-1')) return { ...noComposeDevices, vendor };
  if (names.includes('all')) return all(vendor);
  const by = names.every((name) => /^(GPU|MIG)-/i.test(name)) ? 'uuid' : 'index';
  return { ...noComposeDevices, by, vendor, count: names.length, names };
}

/** `deploy.resources.reservations.devices` and `gpus`; null without them. */
function reserved(written: Service['written']): DeviceClaim | null {
  if (written.gpus === 'all') return all('nvidia');
  const requests = [...listOf(insideContainer(written.deploy, 'resources', 'reservations', 'devices')), ...listOf(written.gpus)];
  const claims = requests.filter(isMap).flatMap(({ driver: named, capabilities, device_ids: ids, count: asked }): DeviceClaim[] => {
    const driver = textOf(named) ?? 'nvidia';
    if (driver === 'cdi') return [fromCdi(textsOf(ids)) ?? []].flat();
    const vendor = driver === 'nvidia' ? driver : /amd|rocm/i.test(driver) ? 'amd' : /intel/i.test(driver) ? 'intel' : undefined;
    const kinds = textsOf(capabilities);
    if (vendor === undefined || (kinds.length > 0 && !kinds.some((kind) => /gpu|nvidia|compute/.test(kind)))) return [];
    if (ids !== undefined) return [chosen(vendor, textsOf(ids).join(','))];
    const count = composeNumber(asked);
    return [count === null || count < 0 ? all(vendor) : { ...noComposeDevices, by: count === 0 ? 'none' : 'count', vendor, count }];
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
  const by = (['all', 'count', 'index', 'uuid'] as const).find((kind) => claims.some((claim) => claim.by === kind)) ?? 'none';
  if (by === 'all') return all(first.vendor);
  const loose = claims.reduce((sum, claim) => (claim.by === 'count' ? sum + claim.count : sum), 0);
  const count = new Set(claims.flatMap(({ names }) => names)).size + loose;
  return { ...first, by, count, names: [...new Set(claims.flatMap((claim) => (claim.by === by ? claim.names : [])))] };
}

/** Without computing and nvidia-smi, which onejob always grants. */
function capabilitiesOf(written: string | undefined, warn: Service['warn']): string[] {
  const words = (written ?? '').split(',').map((word) => word.trim());
  const known = ['graphics', 'video', 'display'];
  const odd = words.filter((word) => !['', 'all', 'compute', 'utility', ...known].includes(word));
  if (odd.length > 0) {
    const what = `NVIDIA_DRIVER_CAPABILITIES: ${odd.join(', ')} is not carried over; supported are ${known.join(', ')}`;
    warn(['environment', 'NVIDIA_DRIVER_CAPABILITIES'], what);
  }
  return known.filter((word) => words.includes('all') || words.includes(word));
}

/** Names of the devices of an agent, to find agents with the same. Numbers are the same only on one host. */
export function claimsOf({ by, vendor, names }: DeviceClaim): readonly string[] {
  if (by === 'uuid') return names.map((uuid) => uuid.toLowerCase());
  if (by === 'index') return names.map((index) => `${vendor} GPU ${index}`);
  return by === 'all' ? [`all GPUs of ${vendor}`] : [];
}
