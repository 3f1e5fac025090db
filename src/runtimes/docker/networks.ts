/**
 * Networks of sandboxes. Each owner has one bridge on which sandboxes cannot reach each other, and a second one for sandboxes
 * that may reach the internet, but neither the host nor private networks.
 */
import { isIPv4 } from 'node:net';
import { type ErrorOptions, OnejobError } from '../../base/errors.ts';
import { isOwnAddress } from '../../base/own-address.ts';
import { uplinkMtu } from '../../system/default-route.ts';
import { endpointUrl } from '../engine/endpoint.ts';
import type { Engine, NetworkAnswer } from '../engine/engine.ts';
import { labels } from './create.ts';
import { type Firewall, isInterface, unguarded } from './firewall.ts';
import { exceeds, mtuOptions } from './mtu.ts';

const bridgeName = 'com.docker.network.bridge.name';

export class Networks {
  readonly #engine: Engine;
  readonly #owner: string;
  readonly #firewall: Firewall;
  /** What packets of sandboxes must fit into. */
  readonly #uplink: typeof uplinkMtu;
  /** Names of ours in the Engine. */
  readonly #own: string;
  readonly #guarded: string;
  /** By name: its id, once it is there. */
  readonly #made = new Map<string, Promise<string>>();

  constructor(engine: Engine, owner: string, firewall: Firewall, uplink = uplinkMtu) {
    this.#engine = engine;
    this.#owner = owner;
    this.#firewall = firewall;
    this.#uplink = uplink;
    this.#own = `onejob-${owner}`;
    this.#guarded = `${this.#own}-internet`;
  }

  /** The Engine's name for the network in a recipe. Creates it if it is ours. */
  async resolve(network: string): Promise<string> {
    if (network === 'default') return this.#once(this.#own, () => this.#ensure(this.#own, {}));
    if (network !== 'internet') return network;
    // The rules come first; they need no bridge.
    await this.#firewall.guard();
    return this.#once(this.#guarded, () => this.#ensureGuarded());
  }

  /**
   * As `Runtime.hostAddress`: the gateway of the network's bridge, if it is an address of this host. An Engine with its own
   * network namespace has gateways, too, but other services listen there.
   */
  async hostAddress(network: string, port: number, signal: AbortSignal): Promise<string> {
    const { endpoint } = this.#engine;
    if (!Number.isInteger(port) || port < 1 || port > 65_535) throw new RangeError(`invalid TCP port: ${port}`);
    if (network === 'none') throw hostUnreachable(network, 'it has only its own loopback interface');
    if (endpoint.kind !== 'unix') throw hostUnreachable(network, `the Engine at ${endpointUrl(endpoint)} is not on this host`);
    if (network === 'host') {
      // As far as the Engine's default bridge shows.
      const bridge = (await this.#engine.network('bridge', signal))?.Options?.[bridgeName];
      if (bridge === undefined || (await isInterface(bridge))) return '127.0.0.1';
      throw hostUnreachable(network, "the Engine's bridges are not on the network that onejob sees");
    }
    const look = async (): Promise<NetworkAnswer | null> => this.#engine.network(await this.resolve(network), signal);
    let answer = await look();
    if (answer === null) {
      // Somebody has removed it since it was created.
      this.forget();
      answer = await look();
    }
    if (answer === null) throw hostUnreachable(network, 'the Engine has no such network');
    const address = await gatewayHere(network, answer, !(await this.#engine.isPodman(signal)));
    if (network === 'internet') await this.#firewall.open({ address, port });
    return address;
  }

  /** Restores rules that a firewall reload removed, while the network is in use. */
  async guard(): Promise<void> {
    // If that fails, the next sandbox is refused with the reason.
    if (this.#made.has(this.#guarded)) await this.#firewall.guard().catch(() => {});
  }

  /** To be called if the Engine no longer has a network: it is looked up again. */
  forget(): void {
    this.#made.clear();
  }

  /** Removes our networks. One in use stays, with its rules. @throws OnejobError E_ENGINE_FAILED for one in use by nothing */
  async sweep(signal: AbortSignal): Promise<void> {
    this.forget();
    const networks = await this.#engine.networks(`${labels.owner}=${this.#owner}`, signal);
    const removals = await Promise.allSettled(networks.map((network) => this.#remove(network, signal)));
    if ((await this.#engine.network(this.#guarded, signal)) === null) await this.#firewall.remove();
    const failed = removals.find(({ status }) => status === 'rejected');
    if (failed?.status === 'rejected') throw failed.reason;
  }

  /** Sorted by age: an Engine creates several networks of one name for simultaneous requests (20.10, measured). */
  async #named(name: string): Promise<NetworkAnswer[]> {
    return (await this.#engine.networks(`${labels.owner}=${this.#owner}`))
      .filter(({ Name }) => Name === name)
      .sort((a, b) => (`${a.Created} ${a.Id}` < `${b.Created} ${b.Id}` ? -1 : 1));
  }

  /** Returns its id, because several may have the same name. */
  async #ensure(name: string, more: Readonly<Record<string, string>>): Promise<string> {
    const fitting = mtuOptions(this.#uplink());
    const there = await this.#named(name);
    // One that an earlier manager made; in use, for which Podman answers with an error, it stays as it is until the next one.
    const large = there.filter(({ Options }) => exceeds(Options, fitting) && Options?.[bridgeName] === more[bridgeName]);
    const removals = await Promise.all(large.map(({ Id }) => this.#engine.removeNetwork(Id).catch(() => false)));
    if (removals.filter(Boolean).length === there.length) {
      const label = { [labels.owner]: this.#owner };
      const options = { 'com.docker.network.bridge.enable_icc': 'false', ...fitting, ...more };
      await this.#engine.createNetwork({ Name: name, CheckDuplicate: true, Driver: 'bridge', Labels: label, Options: options });
    }
    const [first, ...others] = await this.#named(name);
    if (first === undefined || first.Options?.[bridgeName] !== more[bridgeName]) {
      const message = `Cannot create network "${name}": a network with that name exists, and it does not belong to onejob.`;
      const hint = `Inspect it with "docker network inspect ${name}", and remove it if nothing needs it.`;
      throw new OnejobError('E_NAME_TAKEN', message, { hint });
    }
    for (const { Id } of others) await this.#engine.removeNetwork(Id);
    return first.Id;
  }

  async #ensureGuarded(): Promise<string> {
    const id = await this.#ensure(this.#guarded, { [bridgeName]: this.#firewall.bridge });
    if (await this.#firewall.hasBridge()) return id;
    // The Engine has its own network namespace: our rules would see none of its packets.
    await this.#engine.removeNetwork(id);
    await this.#firewall.remove();
    throw unguarded("the Engine's bridges are not on the network that onejob sees");
  }

  /** A failure affects those who waited; the next call tries again. */
  #once(name: string, make: () => Promise<string>): Promise<string> {
    const making = this.#made.get(name) ?? make();
    this.#made.set(name, making);
    return making.catch((error: unknown) => {
      if (this.#made.get(name) === making) this.#made.delete(name);
      throw error;
    });
  }

  /**
   * Removes an unused network of ours. An Engine before 28.1 may keep the endpoint of a removed container, or count one too many,
   * when several come and go at once (moby/moby#23302, #42119). The former can be disconnected.
   */
  async #remove({ Id, Name }: NetworkAnswer, signal: AbortSignal): Promise<void> {
    const engine = this.#engine;
    if (await engine.removeNetwork(Id)) return;
    const ends = Object.entries((await engine.network(Id, signal))?.Containers ?? {});
    for (const [container, end] of ends) {
      if ((await engine.inspect(container, signal)) === null) await engine.disconnect(Id, end.Name);
    }
    if (await engine.removeNetwork(Id)) return;
    const kept = await engine.network(Id, signal);
    // Another user's container is on it, so that user has to remove it.
    if (kept === null || Object.keys(kept.Containers ?? {}).length > 0) return;
    const message = `Cannot remove network "${Name}": the Engine reports that it is in use, but lists no container on it.`;
    const hint = `The next daemon uses it again. To remove it, restart the Engine and type "docker network rm ${Name}".`;
    throw new OnejobError('E_ENGINE_FAILED', message, { hint });
  }
}

/**
 * The gateway of a bridge on this host.
 * @param isNamed whether the Engine names its bridges as Docker does: `br-` and the beginning of the network's id
 * @throws OnejobError E_NO_DOOR
 */
async function gatewayHere(network: string, answer: NetworkAnswer, isNamed: boolean): Promise<string> {
  if (answer.Driver !== 'bridge') {
    throw hostUnreachable(network, `its driver is "${answer.Driver}", and only a bridge has a gateway on this host`);
  }
  const bridge = answer.Options?.[bridgeName] ?? (isNamed ? `br-${answer.Id.slice(0, 12)}` : null);
  if (bridge !== null && !(await isInterface(bridge))) {
    throw hostUnreachable(network, `its bridge ${bridge} is not on the network that onejob sees`);
  }
  const gateways = (answer.IPAM?.Config ?? []).flatMap(gatewayOf);
  // Every job with IPv6 also has IPv4, but not the other way round.
  for (const gateway of gateways.toSorted((a, b) => Number(isIPv4(b)) - Number(isIPv4(a)))) {
    if (await isOwnAddress(gateway)) return gateway;
  }
  const why = gateways.length === 0 ? 'it has no gateway' : `its gateway ${gateways.join(' or ')} is not an address of this host`;
  if (isNamed || gateways.length === 0) throw hostUnreachable(network, why);
  throw hostUnreachable(network, `${why} now`, {
    hint: 'Podman creates a bridge with its first container and removes it with the last one: try again while a container exists, or write network: host.',
    retry: true,
  });
}

function hostUnreachable(network: string, why: string, more: ErrorOptions = {}): OnejobError {
  return new OnejobError('E_NO_DOOR', `Sandboxes on network "${network}" cannot reach services on this host: ${why}.`, {
    hint: 'Write network: default or internet, with a Docker Engine on this host that runs as root.',
    ...more,
  });
}

/** Engines before 28 do not report the gateway of a subnet that a user gave. They choose its first address. */
function gatewayOf({ Gateway, Subnet }: { readonly Gateway: string; readonly Subnet: string }): string[] {
  const given = Gateway.replace(/\/.*$/, '');
  if (given !== '') return [given];
  const parts = Subnet.replace(/\/.*$/, '').split('.').map(Number);
  const [a, b, c, d] = parts;
  return parts.length === 4 && d !== undefined ? [`${a}.${b}.${c}.${d + 1}`] : [];
}
