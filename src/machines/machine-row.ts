/** Rows of the ledger as they begin: a machine that is about to be created, and one that another onejob made. */
import { randomBytes, randomUUID } from 'node:crypto';
import type { Offer, Price, Thing } from '../ports/cloud.ts';
import type { HostConfig } from '../schema/host-config.ts';
import type { Machine } from '../store/machine.ts';
import type { OwnedCloud } from './cloud-memory.ts';
import { hashOf } from './join/protocol.ts';

/** What nothing is known of yet. */
const blank = {
  made: null,
  end: null,
  why: null,
  isFailure: false,
  joinedAt: null,
  stage: null,
  items: [],
  absent: [],
  seenAt: null,
  tokenHash: '',
  credentialHash: null,
  price: null,
  console: null,
  registrations: null,
} satisfies Partial<Machine>;

/** `now`: seconds by the clock of its cloud. */
export function intended(
  host: HostConfig,
  { cloud, owner }: OwnedCloud,
  {
    offer,
    price,
    joinToken,
    now,
  }: { readonly offer: Offer; readonly price: Price | null; readonly joinToken: string; readonly now: number },
): Machine {
  return {
    ...blank,
    run: `onejob-${randomBytes(8).toString('hex')}`,
    owner,
    cloud: cloud.name,
    host: host.host,
    offer,
    token: randomUUID(),
    born: now,
    expires: now + Math.round(host.lifetime / 1000),
    state: 'intent',
    since: now,
    tokenHash: hashOf(joinToken),
    by: cloud.credential,
    price,
  };
}

/** To be removed. `drains`: it is told to drain first, if it runs. */
export function adopted(
  run: string,
  things: readonly Thing[],
  { cloud, owner }: OwnedCloud,
  { host, now, drains }: { readonly host: string; readonly now: number; readonly drains: boolean },
): Machine {
  const machine = things.find(({ kind }) => kind === 'machine');
  const [{ born, expires } = { born: null, expires: null }] = things;
  return {
    ...blank,
    run,
    owner,
    cloud: cloud.name,
    host,
    offer: machine?.offer ?? { type: 'unknown', spot: false, zone: null },
    token: '',
    born: born ?? now,
    expires: expires ?? now,
    state: drains && machine?.state === 'running' ? 'draining' : 'ending',
    since: now,
    why: 'It was ended with "onejob cloud down".',
    made: machine === undefined ? null : { id: machine.id, place: machine.place, zone: null },
    seenAt: now,
    by: cloud.credential,
  };
}
