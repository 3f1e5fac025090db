/** What needs a person now, from what is known already: nothing here asks anybody. */
import type { Cause, CauseKind, Seen } from '../notices/decide.ts';
import { type Condition, findingOf } from './conditions.ts';
import type { DeviceManager } from './devices/device-manager.ts';
import { updateHint } from './findings.ts';
import type { SecretTrouble } from './housekeeping.ts';
import type { Observer } from './loop/observe.ts';
import type { Pool } from './loop/pool.ts';
import type { Reconciler } from './loop/reconciler.ts';
import { serviceHold } from './services/ci-events.ts';

export interface CausesParts {
  readonly reconciler: Pick<Reconciler, 'pools' | 'pause' | 'slots'>;
  readonly observer: Pick<Observer, 'away'>;
  readonly deviceManager: Pick<DeviceManager, 'registry' | 'watch' | 'views'> | null;
  readonly secrets: readonly SecretTrouble[];
  readonly conditions: readonly Condition[];
  /** A sentence about the disk of the state directory; null while it has room. */
  readonly stateDisk: string | null;
}

const minute = 60_000;
/** ms that trouble which may pass by itself must last. */
const [soon, aWhile, anHour] = [0, 10 * minute, 60 * minute];

const askDoctor = 'Type "onejob doctor" on the host.';

/** By default one that may pass by itself, and cannot get worse. */
function cause(about: Partial<Cause> & Pick<Cause, 'key' | 'kind' | 'subject' | 'message'>): Cause {
  return { hint: null, stage: 0, patience: aWhile, ...about };
}

export function causesOf(parts: CausesParts): Seen {
  const { deviceManager } = parts;
  const isBlind = deviceManager !== null && deviceManager.registry.inventory?.complete !== true;
  return {
    causes: [
      ...ofDevices(parts),
      ...ofSecrets(parts),
      ...ofServices(parts),
      ...ofRuntimes(parts),
      ...ofPools(parts),
      ...ofConditions(parts),
      ...ofUpdates(parts),
      ...ofDisks(parts),
    ],
    blind: new Set<CauseKind>(isBlind ? ['device'] : []),
  };
}

/** Not those that a person put into quarantine, and not those that only wait for their first check. */
function ofDevices({ deviceManager }: CausesParts): Cause[] {
  if (deviceManager === null) return [];
  const { registry, views, watch } = deviceManager;
  const about = (uuid: string) => {
    const view = views.of(uuid);
    const what = [view?.model, view?.pciId].filter((one) => one != null && one !== '').join(', ');
    return { kind: 'device', subject: uuid, hint: view?.hint ?? null, name: what === '' ? uuid : `${uuid} (${what})` } as const;
  };
  const quarantined = registry.known.all.flatMap(({ uuid, quarantine }): Cause[] => {
    if (quarantine === null || quarantine.remedy === 'person' || quarantine.failures === 0) return [];
    const { name, ...rest } = about(uuid);
    const message = `Device ${name} is in quarantine: ${sentence(without(uuid, quarantine.reason))}`;
    // onejob checks such a device again by itself.
    return [cause({ key: `quarantine ${uuid}`, ...rest, message, patience: quarantine.remedy === 'look' ? aWhile : soon })];
  });
  const missing = views.missing().map(({ uuid, slot, why }): Cause => {
    const { name, ...rest } = about(uuid);
    const message = `Device ${name} is missing, and slot ${slot} waits for it: ${sentence(without(uuid, why))}`;
    return cause({ key: `missing ${uuid}`, ...rest, message });
  });
  const { fault } = watch;
  const all = fault === null ? [] : [cause({ key: 'gpus', kind: 'device', subject: 'GPUs', message: fault })];
  return [...all, ...quarantined, ...missing];
}

/** Worst last. One that others can read was reported when the daemon started. */
const secretStages: readonly SecretTrouble['state'][] = ['expires', 'expired', 'gone'];

function ofSecrets({ secrets }: CausesParts): Cause[] {
  const found = secrets
    .map((one) => ({ ...one.finding, stage: secretStages.indexOf(one.state) }))
    .filter(({ stage }) => stage >= 0)
    .toSorted((one, other) => one.stage - other.stage);
  const worst = new Map(found.map((one) => [one.subject, one]));
  return [...worst].map(([subject, { message, hint, stage }]) =>
    cause({
      key: `secret ${subject}`,
      kind: 'credential',
      subject,
      message: `${subject}: ${message}`,
      hint,
      stage,
      patience: soon,
    }),
  );
}

/**
 * One cause for all pools of a service, which grows when none is left: it refuses the credential, cannot be reached, or does not
 * know the queue.
 */
function ofServices({ reconciler }: CausesParts): Cause[] {
  const troubles = reconciler.pools.flatMap((pool) => {
    const why = serviceHold(pool) ?? (isOfService(pool) ? (pool.backoff?.last.message ?? null) : null);
    return why === null || pool.leaving ? [] : [{ service: pool.service.name, pool: pool.config.name, why }];
  });
  return [...Map.groupBy(troubles, ({ service }) => service)].map(([service, found]): Cause => {
    const pools = found.map(({ pool }) => pool);
    const which = `${pools.length === 1 ? 'pool' : 'pools'} ${pools.join(', ')}`;
    const message = `CI service ${service} gives no jobs to ${which}: ${sentence(found[0]?.why ?? '')}`;
    const all = reconciler.pools.filter((one) => one.service.name === service && !one.leaving);
    const subject = `service ${service}`;
    return cause({ key: subject, kind: 'service', subject, message, hint: askDoctor, stage: pools.length < all.length ? 0 : 1 });
  });
}

function ofRuntimes({ observer }: CausesParts): Cause[] {
  return [...observer.away].map(([name, why]) => {
    const subject = `runtime ${name}`;
    return cause({ key: subject, kind: 'runtime', subject, message: sentence(why) });
  });
}

function ofPools({ reconciler }: CausesParts): Cause[] {
  return reconciler.pools.flatMap((pool): Cause[] => {
    if (pool.backoff === null || pool.leaving || isOfService(pool)) return [];
    const subject = `pool ${pool.config.name}`;
    const message = `Pool ${pool.config.name} has kept failing for an hour: ${sentence(pool.backoff.last.message)}`;
    return [cause({ key: subject, kind: 'pool', subject, message, hint: askDoctor, patience: anHour })];
  });
}

function ofConditions({ conditions }: CausesParts): Cause[] {
  return conditions.flatMap((one): Cause[] => {
    const { kind, text, hint, patience } = one;
    if (patience === null) return [];
    const { subject } = findingOf(one);
    return [cause({ key: `${kind} ${subject}`, kind: 'pool', subject, message: text, hint, patience })];
  });
}

/** A new image that failed more than once. It is worse while the other slots of its pool cannot work. */
function ofUpdates({ reconciler }: CausesParts): Cause[] {
  return reconciler.pools.flatMap(({ config: { name }, rollout, leaving }): Cause[] => {
    const { update, backoff } = rollout;
    if (update === null || backoff === null || backoff.failures < 2 || leaving) return [];
    const { image, slot, others } = update;
    const subject = `pool ${name}`;
    const message = `The new ${image} of ${subject} has kept failing on ${slot} for an hour, and ${others}: ${sentence(backoff.last.message)}`;
    const about = { key: `image of ${subject}`, kind: 'pool', subject, message } as const;
    return [{ ...about, hint: updateHint, stage: rollout.canGoBack ? 0 : 1, patience: anHour }];
  });
}

function ofDisks({ reconciler, stateDisk }: CausesParts): Cause[] {
  const held = reconciler.pause.held.filter(([reason]) => reason.startsWith('disk:'));
  const full = held.map(([reason, detail]) => {
    const hint = '"onejob jobs prune" and "onejob image prune" free space and inodes.';
    return cause({ key: reason, kind: 'disk', subject: 'disk', message: `No job starts: ${sentence(detail)}`, hint });
  });
  if (stateDisk === null) return full;
  const hint = '"onejob jobs prune" removes old jobs.';
  return [...full, cause({ key: 'state disk', kind: 'disk', subject: 'state disk', message: stateDisk, hint })];
}

function isOfService({ backoff }: Pool): boolean {
  return backoff?.last.code.startsWith('E_CI_') === true;
}

function without(uuid: string, text: string): string {
  return text.startsWith(`${uuid} `) ? text.slice(uuid.length + 1) : text;
}

/** The first line, which is the message; further lines are output of agents. */
function sentence(text: string): string {
  const [first = ''] = text.split('\n', 1);
  return /[.?!]$/.test(first) ? first : `${first}.`;
}
