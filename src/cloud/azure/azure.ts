/** The cloud of type `azure`: a subscription, spoken to over Azure Resource Manager. */
import { z } from 'zod';
import { brief, shown } from '../../http/exchange.ts';
import { type Cloud, CloudError, type Made, type Offer, type Order, type Price, type Thing } from '../cloud.ts';
import { type CloudParts, createCaller } from '../kit/caller.ts';
import { type Answered, type Call, createArm } from './arm.ts';
import { type AzureConfig, isAzureItself } from './config.ts';
import { createArmCredential } from './credential.ts';
import { deliverByUserData } from './deliver.ts';
import { setMachineEnd } from './end.ts';
import { parseGroup, parseResource, runName } from './id.ts';
import { listThings } from './list.ts';
import { createMachine, throwAwayKey } from './machine.ts';
import type { Doing } from './permissions.ts';
import { preflight } from './preflight.ts';
import { listPrice, livePrice } from './prices.ts';
import { usualImage } from './type.ts';

/** ms that a price is good for. */
const priceLife = 86_400_000;
/** Characters of a console's end. */
const consoleEnd = 64 * 1024;

const bootData = z.object({ serialConsoleLogBlobUri: z.string().nullish() });

/** `makeKey`: makes the public key that Azure wants of every machine. */
export function createAzure(config: AzureConfig, parts: CloudParts, makeKey = throwAwayKey): Cloud {
  const { clock } = parts;
  const caller = createCaller(parts);
  // Its clock is not Azure's: prices come through caches, and machines end by the clock of Azure Resource Manager.
  const elsewhere = createCaller(parts);
  const credential = createArmCredential(config, parts, { send: elsewhere.send, now: caller.now });
  const arm = createArm(config, caller, credential, parts);
  let key: Promise<string> | null = null;
  const sshKey = (): Promise<string> => {
    key ??= makeKey();
    return key;
  };
  const prices = new Map<string, { readonly price: Price | null; readonly until: number }>();

  /** null: it goes, or has gone. */
  async function remove(call: Call, signal: AbortSignal): Promise<Answered | null> {
    const answer = await arm.ask(call, signal);
    return answer.ok || answer.status === 404 || answer.said.code === 'ResourceGroupBeingDeleted' ? null : answer;
  }

  /** By force: else a machine is first asked to shut down, which may take long. */
  async function removeGroup(id: string, signal: AbortSignal): Promise<void> {
    const group = parseGroup(id)?.group ?? '';
    if (!runName.test(group)) {
      const message = `Cannot remove resource group "${brief(group)}": it is not named as onejob names its groups.`;
      throw new CloudError('E_CLOUD_REQUEST', message, { hint: 'Remove it yourself, if it is not needed.' });
    }
    const call: Call = {
      ...{ method: 'DELETE', path: id, version: 'resources', needs: 'removeGroup', doing: `remove resource group ${group}` },
    };
    const force = { forceDeletionTypes: 'Microsoft.Compute/virtualMachines' };
    let refused = await remove({ ...call, query: force }, signal);
    // Azure refuses the parameter while the group has nothing of that type.
    if (refused?.said.code === 'UnsupportedForceDeletionResourceTypeInQueryString') refused = await remove(call, signal);
    if (refused !== null) throw arm.refuse(call, refused);
  }

  const removal: Readonly<
    Record<'machine' | 'disk' | 'interface' | 'address', Pick<Call, 'version' | 'query'> & { needs: Doing }>
  > = {
    machine: { version: 'compute', query: { forceDeletion: 'true' }, needs: 'removeMachine' },
    disk: { version: 'disks', needs: 'removeDisk' },
    interface: { version: 'network', needs: 'removeInterface' },
    address: { version: 'network', needs: 'removeAddress' },
  };

  async function destroy({ kind, id }: Pick<Thing, 'kind' | 'id'>, signal: AbortSignal): Promise<void> {
    if (kind === 'group') return removeGroup(id, signal);
    const resource = parseResource(id);
    if (kind === 'schedule' || kind === 'spot-request' || resource?.kind !== kind)
      throw new CloudError('E_CLOUD_REQUEST', `Cannot remove ${kind} "${brief(id)}": Azure has no such thing.`);
    const call: Call = { method: 'DELETE', path: id, doing: `remove ${kind} ${resource.name}`, ...removal[kind] };
    const refused = await remove(call, signal);
    if (refused !== null) throw arm.refuse(call, refused);
  }

  async function consoleOf({ id }: Pick<Made, 'id'>, signal: AbortSignal): Promise<string> {
    const { name = '' } = parseResource(id) ?? {};
    const doing = `read the console of ${name}`;
    const call: Call = { method: 'POST', path: `${id}/retrieveBootDiagnosticsData`, version: 'compute', needs: 'console', doing };
    const answer = await arm.ask({ ...call, query: { sasUriExpirationTimeInMinutes: '5' } }, signal);
    // Nothing has been written yet, or the machine is gone.
    if (answer.status === 404 || answer.status === 409) return '';
    if (!answer.ok) throw arm.refuse(call, answer);
    const { serialConsoleLogBlobUri: url } = arm.bodyAs(bootData, call, answer);
    if (url == null || url === '') return '';
    // The address itself is the credential, so it must not be in a message, and the token must not go there.
    const isSafe = URL.parse(url)?.protocol === 'https:' || new URL(config.endpoint).origin === URL.parse(url)?.origin;
    if (!isSafe) throw new CloudError('E_CLOUD_ANSWER', `Cannot ${doing}: Azure refers to ${shown(url)}, which is not encrypted.`);
    const log = await elsewhere.send({ method: 'GET', url, headers: {} }, { doing, place: shown(url), changes: false }, signal);
    if (log.status === 404) return '';
    if (log.status !== 200)
      throw new CloudError('E_CLOUD_ANSWER', `Cannot ${doing}: ${shown(url)} answered ${log.status}.`, { retry: true });
    return log.text.slice(-consoleEnd);
  }

  async function priceOf(offer: Pick<Offer, 'type' | 'spot'>, signal: AbortSignal): Promise<Price | null> {
    const name = `${offer.type} ${offer.spot}`;
    const known = prices.get(name);
    if (known !== undefined && clock.now() < known.until) return known.price;
    const live = isAzureItself(config)
      ? await livePrice({ caller: elsewhere, location: config.location, wall: clock.wall() }, offer, signal)
      : null;
    const price = live ?? listPrice(offer);
    prices.set(name, { price, until: clock.now() + priceLife });
    return price;
  }

  const cloud: Cloud = {
    name: config.name,
    type: config.type,
    // A machine that shuts itself down is billed as before, until it is deallocated.
    capabilities: { guestEnds: false, endRemoves: false },
    skew: caller.skew,
    credential: credential.title,
    // A pin breaks where a size is offered in some zones only, so Azure chooses.
    zones: async () => [null],
    usualImage,
    create: (order: Order, signal) => createMachine({ config, arm, clock, sshKey }, order, signal),
    setEnd: (birth, made, signal) => setMachineEnd({ config, arm, now: caller.now }, birth, made, signal),
    list: (owner, _scope, signal) => listThings({ subscription: config.subscription, arm }, owner, signal),
    destroy,
    console: consoleOf,
    deliver: (made, text, signal) => deliverByUserData(arm, made, text, signal),
    price: priceOf,
    preflight: (plan, signal) => preflight({ config, arm, credential, price: priceOf }, plan, signal),
  };
  return cloud;
}
