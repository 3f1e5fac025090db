/** The cloud of type `azure`: a subscription, spoken to over Azure Resource Manager. */
import { z } from 'zod';
import { brief, shown } from '../../http/exchange.ts';
import { type Cloud, CloudError, type Made, type Offer, type Order, type Price, runName, type Thing } from '../../ports/cloud.ts';
import { type CloudParts, createCaller } from '../kit/caller.ts';
import { ExpiringCache } from '../kit/expiring-cache.ts';
import { Arm, type ArmAnswer, type ArmCall } from './arm.ts';
import { type AzureConfig, isAzureItself, usualImage } from './config.ts';
import { createArmCredential } from './credential.ts';
import { deliverByUserData } from './deliver.ts';
import { setMachineEnd } from './end.ts';
import { parseGroup, parseResource, resources } from './id.ts';
import { listAzureThings } from './list.ts';
import { createMachine, throwAwayKey } from './machine.ts';
import { preflight } from './preflight.ts';
import { azurePrice, livePrice } from './prices.ts';

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
  const arm = new Arm(config, caller, credential, parts);
  let key: Promise<string> | null = null;
  const sshKey = (): Promise<string> => {
    key ??= makeKey();
    return key;
  };
  const prices = new ExpiringCache<Price | null>(clock.now);

  /** null: it goes, or has gone. */
  async function refusalOf(call: ArmCall, signal: AbortSignal): Promise<ArmAnswer | null> {
    const answer = await arm.ask(call, signal);
    return answer.ok || answer.status === 404 || answer.said.code === 'ResourceGroupBeingDeleted' ? null : answer;
  }

  /** The call that removes a thing, by force: else a machine is first asked to shut down, which may take long. */
  function removal({ kind, id }: Pick<Thing, 'kind' | 'id'>): ArmCall {
    if (kind === 'group') {
      const group = parseGroup(id)?.group ?? '';
      const call = { method: 'DELETE', path: id, version: 'resources', needs: 'removeGroup' } as const;
      const query = { forceDeletionTypes: 'Microsoft.Compute/virtualMachines' };
      if (runName.test(group)) return { ...call, query, doing: `remove resource group ${group}` };
      const message = `Cannot remove resource group "${brief(group)}": it is not named as onejob names its groups.`;
      throw new CloudError('E_CLOUD_REQUEST', message, { hint: 'Remove it yourself, if it is not needed.' });
    }
    const resource = parseResource(id);
    if (resource === null || resource.kind !== kind)
      throw new CloudError('E_CLOUD_REQUEST', `Cannot remove ${kind} "${brief(id)}": it is not such an Azure resource.`);
    const { version, remove: needs } = resources[kind];
    const call = { method: 'DELETE', path: id, version, needs, doing: `remove ${kind} ${resource.name}` } as const;
    return kind === 'machine' ? { ...call, query: { forceDeletion: 'true' } } : call;
  }

  async function destroy(thing: Pick<Thing, 'kind' | 'id'>, signal: AbortSignal): Promise<void> {
    const call = removal(thing);
    let refused = await refusalOf(call, signal);
    // Azure refuses the parameter while the group has nothing of that type.
    if (refused?.said.code === 'UnsupportedForceDeletionResourceTypeInQueryString')
      refused = await refusalOf({ ...call, query: {} }, signal);
    if (refused !== null) throw arm.refuse(call, refused);
  }

  async function consoleOf({ id }: Pick<Made, 'id'>, signal: AbortSignal): Promise<string> {
    const { name = '' } = parseResource(id) ?? {};
    const doing = `read the console of ${name}`;
    const call: ArmCall = {
      method: 'POST',
      path: `${id}/retrieveBootDiagnosticsData`,
      version: 'compute',
      needs: 'console',
      doing,
    };
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

  async function price(offer: Pick<Offer, 'type' | 'spot'>, signal: AbortSignal): Promise<Price | null> {
    if (!isAzureItself(config)) return azurePrice(offer);
    const asked = { caller: elsewhere, location: config.location, wall: clock.wall() };
    const ask = async (shared: AbortSignal) => ({ value: await livePrice(asked, offer, shared), until: clock.now() + priceLife });
    return (await prices.get(`${offer.type} ${offer.spot}`, ask, signal)) ?? azurePrice(offer);
  }

  return {
    name: config.name,
    type: config.type,
    // A machine that shuts itself down is billed as before, until it is deallocated.
    capabilities: { holdsEnd: config.deathDate === 'cloud', guestEnds: false, endRemoves: false },
    skew: caller.skew,
    credential: credential.title,
    // A pin breaks where a size is offered in some zones only, so Azure chooses.
    zones: async () => [null],
    usualImage,
    create: (order: Order, signal) => createMachine({ config, arm, clock, sshKey }, order, signal),
    setEnd: (birth, made, signal) => setMachineEnd({ config, arm, now: caller.now }, birth, made, signal),
    list: (owner, _scope, signal) => listAzureThings(arm, config.subscription, owner, signal),
    destroy,
    console: consoleOf,
    deliver: (made, text, signal) => deliverByUserData(arm, made, text, signal),
    price,
    preflight: (plan, signal) => preflight({ config, arm, credential, price }, plan, signal),
  };
}
