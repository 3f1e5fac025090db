/**
 * The body of `instances.insert`, as strictly as Google looks at it: no unknown field, no number where 64 bits are text, and the
 * combinations that the guides forbid. What onejob never sends is refused too. The discovery document is the judge of this file, see
 * `test/long/cloud-gcp.test.ts`.
 */
import { type Catalog, type Image, regionOf } from './catalog.ts';

export interface Wanted {
  readonly name: string;
  readonly machineType: string;
  readonly accelerator: { readonly type: string; readonly count: number } | null;
  readonly image: Image;
  readonly diskGb: number;
  readonly diskLabels: Readonly<Record<string, string>>;
  readonly autoDelete: boolean;
  readonly labels: Readonly<Record<string, string>>;
  readonly metadata: Readonly<Record<string, string>>;
  readonly subnetwork: string;
  readonly hasAddress: boolean;
  readonly isSpot: boolean;
  /** s; null: it runs until somebody stops it. */
  readonly maxRun: number | null;
  readonly onEnd: 'DELETE' | 'STOP' | null;
}

/** What Google answers to a body that it does not take. */
export class Refused extends Error {
  readonly status: number;
  readonly reason: string;
  constructor(message: string, status = 400, reason = 'invalid') {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

type Json = Readonly<Record<string, unknown>>;
type Rule = (value: unknown, at: string) => void;

const fail = (at: string, value: unknown, why: string): never => {
  throw new Refused(`Invalid value for field '${at}': '${JSON.stringify(value)}'. ${why}`);
};
const matching =
  (pattern: RegExp): Rule =>
  (value, at) => {
    if (typeof value !== 'string' || !pattern.test(value)) fail(at, value, `Must be a match of regex '${pattern.source}'`);
  };
const text: Rule = (value, at) => {
  if (typeof value !== 'string') fail(at, value, 'Expected text.');
};
const yesNo: Rule = (value, at) => {
  if (typeof value !== 'boolean') fail(at, value, 'Expected a boolean.');
};
const small: Rule = (value, at) => {
  if (typeof value !== 'number' || !Number.isInteger(value)) fail(at, value, 'Expected an int32.');
};
/** int64 is text on the wire. */
const large = matching(/^\d{1,19}$/);
const oneOf =
  (...words: readonly string[]): Rule =>
  (value, at) => {
    if (!words.includes(value as string)) fail(at, value, `Expected one of ${words.join(', ')}.`);
  };
const map =
  (fields: Readonly<Record<string, Rule>>, needed: readonly string[] = []): Rule =>
  (value, at) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) fail(at, value, 'Expected an object.');
    for (const [key, one] of Object.entries(value as Json)) {
      const rule = fields[key];
      if (rule === undefined)
        throw new Refused(`Invalid JSON payload received. Unknown name "${key}" at '${at}': Cannot find field.`);
      rule(one, `${at}.${key}`);
    }
    const missing = needed.find((key) => (value as Json)[key] === undefined);
    if (missing !== undefined)
      throw new Refused(`Invalid value for field '${at}.${missing}': ''. Required field.`, 400, 'required');
  };
const list =
  (rule: Rule, least = 0, most = 64): Rule =>
  (value, at) => {
    if (!Array.isArray(value) || value.length < least || value.length > most)
      fail(at, value, `Expected ${least} to ${most} entries.`);
    (value as unknown[]).forEach((one, index) => {
      rule(one, `${at}[${index}]`);
    });
  };

/** Keys and values of labels (guide "Organize resources using labels"). */
const labels: Rule = (value, at) => {
  map({ ...Object.fromEntries(Object.keys(value as Json).map((key) => [key, matching(/^[\p{Ll}\p{Lo}\p{N}_-]{0,63}$/u)])) })(
    value,
    at,
  );
  const bad = Object.keys(value as Json).find((key) => !/^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}$/u.test(key));
  if (bad !== undefined || Object.keys(value as Json).length > 64) fail(at, bad, 'Label keys are invalid.');
};

const resource = (kind: string): Rule =>
  matching(new RegExp(`^(https://[^/]+/compute/v1/)?projects/[a-z0-9.:-]+/.*${kind}/[a-z0-9-]+$`));
const duration = map({ seconds: large, nanos: small });

const metadataItems = list(map({ key: matching(/^[a-zA-Z0-9-_]{1,128}$/), value: text }, ['key']));
const metadataRule = map({ kind: text, fingerprint: text, items: metadataItems }, ['fingerprint']);

const instance = map(
  {
    name: matching(/^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$/),
    description: text,
    machineType: resource('machineTypes'),
    labels,
    disks: list(
      map({
        boot: yesNo,
        autoDelete: yesNo,
        type: oneOf('PERSISTENT', 'SCRATCH'),
        initializeParams: map(
          {
            sourceImage: matching(/global\/images\/(family\/)?[a-z0-9-]+$/),
            diskSizeGb: large,
            diskType: resource('diskTypes'),
            labels,
          },
          ['sourceImage'],
        ),
      }),
      1,
    ),
    guestAccelerators: list(map({ acceleratorType: resource('acceleratorTypes'), acceleratorCount: small }, ['acceleratorType'])),
    networkInterfaces: list(
      map({
        network: text,
        subnetwork: resource('subnetworks'),
        accessConfigs: list(map({ type: oneOf('ONE_TO_ONE_NAT', 'DIRECT_IPV6'), name: text }), 0, 1),
      }),
      1,
      8,
    ),
    scheduling: map({
      provisioningModel: oneOf('FLEX_START', 'RESERVATION_BOUND', 'SPOT', 'STANDARD'),
      onHostMaintenance: oneOf('MIGRATE', 'TERMINATE'),
      automaticRestart: yesNo,
      instanceTerminationAction: oneOf('DELETE', 'STOP'),
      maxRunDuration: duration,
    }),
    metadata: map({ items: metadataItems }),
    serviceAccounts: list(map({ email: text, scopes: list(text) })),
    shieldedInstanceConfig: map({ enableSecureBoot: yesNo, enableVtpm: yesNo, enableIntegrityMonitoring: yesNo }),
  },
  ['name', 'machineType', 'disks', 'networkInterfaces'],
);

/** Of what passed the rules. */
interface Body {
  readonly name: string;
  readonly machineType: string;
  readonly labels?: Record<string, string>;
  readonly disks: readonly {
    readonly boot?: boolean;
    readonly autoDelete?: boolean;
    readonly initializeParams?: { sourceImage: string; diskSizeGb?: string; labels?: Record<string, string> };
  }[];
  readonly guestAccelerators?: readonly { acceleratorType: string; acceleratorCount?: number }[];
  readonly networkInterfaces: readonly { subnetwork?: string; accessConfigs?: readonly unknown[] }[];
  readonly scheduling?: {
    readonly provisioningModel?: string;
    readonly onHostMaintenance?: string;
    readonly automaticRestart?: boolean;
    readonly instanceTerminationAction?: 'DELETE' | 'STOP';
    readonly maxRunDuration?: { seconds?: string };
  };
  readonly metadata?: { items?: readonly { key: string; value?: string }[] };
  readonly serviceAccounts?: readonly unknown[];
}

const last = (path: string): string => path.slice(path.lastIndexOf('/') + 1);

/** @throws Refused */
export function wantedOf(body: unknown, zone: string, known: Catalog): Wanted {
  instance(body, 'resource');
  const { name, machineType, disks, guestAccelerators = [], networkInterfaces, scheduling = {}, ...rest } = body as Body;
  const [accelerator] = guestAccelerators;
  for (const path of [machineType, accelerator?.acceleratorType])
    if (path !== undefined && !path.includes(`/zones/${zone}/`)) fail('resource.machineType', path, `It is not in zone ${zone}.`);
  const type = last(machineType);
  if (known.machineTypes[zone]?.[type] === undefined)
    fail('resource.machineType', machineType, `Machine type with name '${type}' does not exist in zone '${zone}'.`);
  if (accelerator !== undefined && !known.accelerators[zone]?.includes(last(accelerator.acceleratorType)))
    throw new Refused(`The resource '${accelerator.acceleratorType}' was not found`, 404, 'notFound');
  const hasGpu = accelerator !== undefined || /^(a2|a3|g2)-/.test(type);
  const { provisioningModel = 'STANDARD', onHostMaintenance = 'MIGRATE', automaticRestart = true } = scheduling;
  const isSpot = provisioningModel === 'SPOT';
  if (hasGpu && onHostMaintenance !== 'TERMINATE')
    throw new Refused('Instances with guest accelerators do not support live migration.');
  if (isSpot && automaticRestart) throw new Refused('Scheduling must have automaticRestart be false when using Spot.');
  const maxRun = maxRunOf(scheduling.maxRunDuration);
  const onEnd = scheduling.instanceTerminationAction ?? null;
  if (maxRun !== null && onEnd === null)
    throw new Refused('You must specify an instance termination action with max-run-duration.');
  if (onEnd !== null && maxRun === null && !isSpot)
    throw new Refused('You cannot specify a termination action for a VM instance that has the standard provisioning model.');
  const boot = disks.find((disk) => disk.boot === true)?.initializeParams;
  if (boot === undefined || disks.length !== 1) throw new Refused('The instance needs exactly one boot disk that is made with it.');
  const image = imageOf(boot.sourceImage, known);
  const diskGb = Number(boot.diskSizeGb ?? image.sizeGb);
  if (diskGb < image.sizeGb)
    fail(
      'resource.disks[0].initializeParams.diskSizeGb',
      diskGb,
      `Requested disk size cannot be smaller than the image size (${image.sizeGb} GB)`,
    );
  const [nic] = networkInterfaces;
  const subnetwork = nic?.subnetwork ?? '';
  if (known.subnetworks[regionOf(zone)]?.[last(subnetwork)] === undefined || !subnetwork.includes(`/regions/${regionOf(zone)}/`))
    throw new Refused(`The resource '${subnetwork}' was not found`, 404, 'notFound');
  const metadata = byKey(rest.metadata?.items);
  return {
    name,
    machineType: type,
    image,
    diskGb,
    maxRun,
    onEnd,
    isSpot,
    metadata,
    subnetwork,
    accelerator:
      accelerator === undefined ? null : { type: last(accelerator.acceleratorType), count: accelerator.acceleratorCount ?? 1 },
    labels: rest.labels ?? {},
    diskLabels: boot.labels ?? {},
    autoDelete: disks[0]?.autoDelete ?? false,
    hasAddress: (nic?.accessConfigs?.length ?? 0) > 0,
  };
}

function byKey(items: readonly { key: string; value?: string }[] = []): Readonly<Record<string, string>> {
  const metadata = Object.fromEntries(items.map(({ key, value = '' }) => [key, value]));
  const sizes = Object.values(metadata).map((value) => Buffer.byteLength(value));
  if (sizes.some((size) => size > 262_144) || sizes.reduce((sum, size) => sum + size, 0) > 524_288)
    throw new Refused('Metadata is too large.');
  return metadata;
}

/** The body of `instances.setMetadata`. @throws Refused */
export function metadataOf(body: unknown): { readonly fingerprint: string; readonly metadata: Readonly<Record<string, string>> } {
  metadataRule(body, 'resource');
  const { fingerprint = '', items } = body as { fingerprint?: string; items?: readonly { key: string; value?: string }[] };
  return { fingerprint, metadata: byKey(items) };
}

function maxRunOf(written: { seconds?: string } | undefined): number | null {
  if (written === undefined) return null;
  const seconds = Number(written.seconds ?? 0);
  if (seconds < 30 || seconds > 120 * 86_400)
    fail('resource.scheduling.maxRunDuration', written, 'Must be from 30 seconds to 120 days.');
  return seconds;
}

function imageOf(path: string, { images }: Catalog): Image {
  const [, project = '', isFamily, name] = /projects\/([^/]+)\/global\/images\/(family\/)?([^/]+)$/.exec(path) ?? [];
  const found = images[project]?.find((one) => (isFamily === undefined ? one.name : one.family) === name);
  if (found !== undefined) return found;
  throw new Refused(
    `Invalid value for field 'resource.disks[0].initializeParams.sourceImage': '${path}'. The referenced image resource cannot be found.`,
  );
}
