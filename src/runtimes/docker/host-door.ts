/**
 * Under which address sandboxes on a network of the Engine reach what listens on this host: the gateway of their bridge. An
 * address is only given when it is one of this host's own: an Engine with a network of its own has gateways, too, and what
 * listens there is not ours.
 */
import { readFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { OnejobError } from '../../errors.ts';
import { isOwnAddress } from '../../own-address.ts';
import { endpointUrl } from './endpoint.ts';
import type { Engine, NetworkAnswer } from './engine.ts';
import type { Firewall } from './firewall.ts';
import type { Networks } from './networks.ts';

export interface DoorParts {
  readonly engine: Engine;
  readonly networks: Networks;
  readonly firewall: Firewall;
  readonly podman: boolean;
}

/** As `Runtime.door`. */
export async function openDoor(
  { engine, networks, firewall, podman }: DoorParts,
  network: string,
  port: number,
  signal: AbortSignal,
) {
  if (!Number.isInteger(port) || port < 1 || port > 65_535) throw new RangeError(`no TCP port: ${port}`);
  if (network === 'none') throw noDoor(network, 'it has none but its own loopback');
  if (engine.endpoint.kind !== 'unix') throw noDoor(network, `the Engine at ${endpointUrl(engine.endpoint)} is not on this host`);
  if (network === 'host') {
    if (await isEngineHere(await engine.network('bridge', signal))) return '127.0.0.1';
    throw noDoor(network, "the Engine's bridges are not on the network that onejob sees");
  }
  const look = async (): Promise<NetworkAnswer | null> => engine.network(await networks.resolve(network), signal);
  let answer = await look();
  if (answer === null) {
    // Somebody removed it since it was made.
    networks.forget();
    answer = await look();
  }
  if (answer === null) throw noDoor(network, 'the Engine has no such network');
  const address = await gatewayHere(network, answer, !podman);
  if (network === 'internet') await firewall.open({ address, port });
  return address;
}

/**
 * The gateway of a bridge that is on this host.
 * @param isNamed whether the Engine names its bridges as Docker does: `br-` and the beginning of the network's id
 * @throws OnejobError E_NO_DOOR
 */
async function gatewayHere(network: string, answer: NetworkAnswer, isNamed: boolean): Promise<string> {
  if (answer.Driver !== 'bridge') {
    throw noDoor(network, `its driver is "${answer.Driver}", and only a bridge has a gateway on this host`);
  }
  const bridge = answer.Options?.[bridgeName] ?? (isNamed ? `br-${answer.Id.slice(0, 12)}` : null);
  if (bridge !== null && !(await isInterface(bridge))) {
    throw noDoor(network, `its bridge ${bridge} is not on the network that onejob sees`);
  }
  const gateways = (answer.IPAM?.Config ?? []).flatMap(gatewayOf);
  // Jobs have IPv4 wherever they have IPv6, and not the other way round.
  for (const gateway of [...gateways.filter(isIPv4), ...gateways.filter((one) => !isIPv4(one))]) {
    if (await isOwnAddress(gateway)) return gateway;
  }
  const why = gateways.length === 0 ? 'it has no gateway' : `its gateway ${gateways.join(' or ')} is no address of this host`;
  if (isNamed || gateways.length === 0) throw noDoor(network, why);
  throw noDoor(network, `${why} now`, {
    hint: 'Podman makes a bridge with its first container and takes it away with the last: try again while one is there, or write network: host.',
    retry: true,
  });
}

/** Whether the Engine's containers on the network `host` are on this process' network, as far as its own bridge tells. */
async function isEngineHere(standard: NetworkAnswer | null): Promise<boolean> {
  const bridge = standard?.Options?.[bridgeName];
  return bridge === undefined || isInterface(bridge);
}

function noDoor(network: string, why: string, more: { readonly hint?: string; readonly retry?: boolean } = {}): OnejobError {
  return new OnejobError('E_NO_DOOR', `Sandboxes on network "${network}" cannot reach what listens on this host: ${why}.`, {
    hint: 'Write network: default or internet for a Docker Engine of this host, run by root.',
    ...more,
  });
}

const bridgeName = 'com.docker.network.bridge.name';

async function isInterface(name: string): Promise<boolean> {
  const lines = (await readFile('/proc/self/net/dev', 'utf8')).split('\n');
  return lines.some((line) => line.trimStart().startsWith(`${name}:`));
}

/** Engines before 28 do not say which gateway they chose for a subnet that somebody gave: the first address in it. */
function gatewayOf({ Gateway, Subnet }: { readonly Gateway: string; readonly Subnet: string }): string[] {
  const said = Gateway.replace(/\/.*$/, '');
  if (said !== '') return [said];
  const parts = Subnet.replace(/\/.*$/, '').split('.').map(Number);
  const [a, b, c, d] = parts;
  return parts.length === 4 && d !== undefined ? [`${a}.${b}.${c}.${d + 1}`] : [];
}
