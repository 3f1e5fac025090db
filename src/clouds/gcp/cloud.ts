/**
 * Machines of Google Cloud: one Compute Engine instance with its boot disk, in one call. It has its end from that call on, and Google
 * deletes it then. The name of an instance is its run, so it is unique in a zone whatever a request id does.
 */
import { type Clock, sleep } from '../../core/clock.ts';
import { type Birth, type Cloud, CloudError, type Listing, type Made, type Order, type Thing } from '../../ports/cloud.ts';
import { type CloudParts, createCaller } from '../kit/caller.ts';
import { createAccess, type GcpAccess } from './access.ts';
import { GcpCalls } from './calls.ts';
import type { GcpConfig } from './config.ts';
import { deliverByMetadata } from './deliver.ts';
import { usualImage } from './image.ts';
import { gcpPrice, usableType } from './machine-type.ts';
import { instanceOf } from './order.ts';
import { needs } from './permissions.ts';
import { preflight } from './preflight.ts';
import { instanceFields, lists, thingsOf } from './things.ts';
import { instance, operation, type Page, serialPort } from './wire.ts';
import { createZones } from './zones.ts';

/** Seconds by which an end may be later than asked for: it counts from when the machine runs. */
const lateness = 600;
/** ms until the end of a machine that runs must be known. */
const endTime = 60_000;
const lookEvery = 2_000;
/** Bytes of a console's end. */
const consoleEnd = 64 * 1024;

/** What its calls need. */
interface Gcp {
  readonly config: GcpConfig;
  readonly clock: Clock;
  /** ms since the epoch by Google's clock. */
  readonly now: () => number;
  readonly access: GcpAccess;
  readonly calls: GcpCalls;
}

export async function openGcp(config: GcpConfig, parts: CloudParts): Promise<Cloud> {
  const caller = createCaller(parts);
  const access = createAccess(config.credential, caller, parts);
  const calls = new GcpCalls(config, access, caller, parts);
  const zones = createZones(config, calls, parts);
  const gcp: Gcp = { config, clock: parts.clock, now: caller.now, access, calls };
  const price: Cloud['price'] = async ({ type, spot }) => gcpPrice(type, spot);
  return {
    name: config.name,
    type: config.type,
    usualImage,
    // Stopping from within clears the time at which Google deletes it, and its disk stays.
    capabilities: { holdsEnd: config.deathDate === 'cloud', guestEnds: false, endRemoves: true },
    skew: caller.skew,
    get credential() {
      return access.name;
    },
    zones: async (type, signal) => zones(usableType(type, 'find zones'), signal),
    create: (order, signal) => create(gcp, order, signal),
    setEnd: (birth, made, signal) => setEnd(gcp, birth, made, signal),
    list: (owner, _, signal) => list(gcp, owner, signal),
    destroy: (thing, signal) => destroy(gcp, thing, signal),
    console: (made, signal) => consoleOf(gcp, made, signal),
    deliver: (made, text, signal) => deliverByMetadata(calls, made, text, signal),
    price,
    preflight: (plan, signal) => preflight({ config, calls, access, zones, price }, plan, signal),
  };
}

async function create({ config, calls, now }: Gcp, order: Order, signal: AbortSignal): Promise<Made> {
  const { zone } = order.offer;
  if (zone === null)
    throw new CloudError('E_CLOUD_REQUEST', `Cannot create ${order.run}: Compute Engine needs a zone, and the offer has none.`);
  await calls.carryOut(
    {
      method: 'POST',
      path: `zones/${zone}/instances`,
      query: { requestId: order.token },
      body: instanceOf(order, zone, config, now() / 1000),
      doing: `create ${order.run}`,
      offer: { ...order.offer, zone },
      needs: config.hasExternalAddress ? [...needs.insert, ...needs.externalAddress] : needs.insert,
    },
    zone,
    needs.operation,
    signal,
  );
  return { id: order.run, place: zone, zone };
}

async function setEnd({ config, calls, clock }: Gcp, { run, expires }: Birth, made: Made, signal: AbortSignal): Promise<string> {
  if (config.deathDate === 'manager-only') return 'onejob alone ("death_date: manager-only")';
  const until = clock.now() + endTime;
  const path = `zones/${made.place}/instances/${made.id}`;
  const call = { path, query: { fields: instanceFields }, needs: needs.instance };
  for (;;) {
    const found = await calls.call({ ...call, doing: `read the end of ${run}` }, instance, signal);
    const text = found.resourceStatus?.scheduling?.terminationTimestamp;
    const at = Date.parse(text ?? '') / 1000;
    const action = found.scheduling.instanceTerminationAction;
    if (action !== 'DELETE') throw noEnd(run, `its "instanceTerminationAction" is ${action ?? 'not set'} instead of DELETE`);
    if (at > expires + lateness) throw noEnd(run, `it says ${text}, which is later than ${timeOf(expires)}`);
    if (!Number.isNaN(at)) return `Compute Engine deletes it at ${timeOf(at)} (terminationTimestamp)`;
    if (clock.now() >= until) throw noEnd(run, `it has no "terminationTimestamp" (${found.status})`);
    await sleep(clock, lookEvery, signal);
    signal.throwIfAborted();
  }
}

async function list({ access, calls }: Gcp, owner: string, signal: AbortSignal): Promise<Listing> {
  // What is wrong with the credential itself is an error of its own.
  await access.token(signal);
  const things: Thing[] = [];
  const unknown: string[] = [];
  // Quoted, because a word of digits would be compared as a number.
  const query = { filter: `labels.onejob-owner="${owner}"` };
  const listed = lists.map((list) => {
    const { what, fields, needs: permissions } = list;
    const call = { kind: what, fields, path: `aggregated/${what}`, doing: `list ${what}`, needs: permissions, query };
    const each = (scope: string, part: Page['items'][string]): void => {
      // A global address belongs to a load balancer, never to a machine.
      if (scope !== 'global') things.push(...thingsOf(list, scope, part, owner, unknown));
    };
    return calls.pages(call, each, unknown, signal);
  });
  const errors = await Promise.all(listed);
  const refused = errors.includes(null) ? undefined : errors.find((error) => error?.retry === false);
  return { things, unknown, ...(refused != null && { refused }) };
}

async function destroy({ calls }: Gcp, thing: Pick<Thing, 'kind' | 'id' | 'place'>, signal: AbortSignal): Promise<void> {
  const { kind, id, place } = thing;
  const where = /^[a-z]+-[a-z]+\d+$/.test(place) ? `regions/${place}` : `zones/${place}`;
  const list = lists.find((one) => one.kind === kind);
  if (list === undefined) return;
  const call = { path: `${where}/${list.what}/${id}`, doing: `delete ${kind} ${id} in ${place}`, needs: list.remove };
  const query = kind === 'machine' ? { noGracefulShutdown: 'true' } : {};
  try {
    await calls.call({ ...call, method: 'DELETE', query }, operation, signal);
  } catch (error) {
    if (!(error instanceof CloudError) || error.reason !== 'notFound') throw error;
  }
}

async function consoleOf({ calls }: Gcp, { id, place }: Pick<Made, 'id' | 'place'>, signal: AbortSignal): Promise<string> {
  // A negative start counts from the end.
  const call = { path: `zones/${place}/instances/${id}/serialPort`, query: { start: String(-consoleEnd) } };
  const found = await calls.call({ ...call, doing: `read the console of ${id}`, needs: needs.console }, serialPort, signal);
  return found.contents.slice(-consoleEnd);
}

const timeOf = (seconds: number): string => new Date(seconds * 1000).toISOString();

function noEnd(run: string, why: string): CloudError {
  return new CloudError('E_CLOUD_END', `Cannot confirm the end of ${run}: ${why}.`, {
    hint: 'Look whether the type of machine takes "maxRunDuration".',
  });
}
