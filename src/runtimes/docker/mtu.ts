/**
 * The largest packet on networks of the Engine. A bridge that is made without one has 1500, whatever the host's uplink has: with
 * less there (1400 to 1460 in clouds, less in a VPN), and where the host answers with no ICMP, TLS of jobs hangs.
 */
import { type Finding, fine, warning } from '../../base/finding.ts';

export const mtuOption = 'com.docker.network.driver.mtu';
/** What Podman makes of it, and lists. */
const podmansOption = 'mtu';

/** What a bridge has that is made without the option. */
const usual = 1_500;

/** The interface to other hosts; null if it is unknown. */
type Uplink = { readonly name: string; readonly mtu: number } | null;
type Options = Readonly<Record<string, string>> | null | undefined;

/** The option for a network of ours; none if the usual value fits. */
export function mtuOptions(uplink: Uplink): Readonly<Record<string, string>> {
  return uplink === null || uplink.mtu >= usual ? {} : { [mtuOption]: String(uplink.mtu) };
}

/** Whether a network has a larger one than `wanted`, also one that was made without the option. */
export function exceeds(has: Options, wanted: Options): boolean {
  return mtuOf(has) > mtuOf(wanted);
}

function mtuOf(options: Options): number {
  return Number(options?.[mtuOption] ?? options?.[podmansOption] ?? usual);
}

/**
 * `bridge`: options of the Engine's default bridge, which builds and pools with `network: bridge` use; null: it has none. Podman has
 * another one, which takes the MTU of the uplink by itself and knows no `daemon.json`.
 */
export function mtuFindings(uplink: Uplink, bridge: Options, { podman = false }: { readonly podman?: boolean } = {}): Finding[] {
  if (uplink === null || uplink.mtu >= usual) return [];
  const { name, mtu } = uplink;
  const ours = fine('docker', `The uplink ${name} has an MTU of ${mtu}; onejob's own networks have it, too.`);
  if (podman || bridge === null || !exceeds(bridge, { [mtuOption]: String(mtu) })) return [ours];
  const has = mtuOf(bridge);
  const message = `The Engine's default bridge has an MTU of ${has}, but the uplink ${name} has ${mtu}: TLS may hang in image builds and on that bridge.`;
  const hint = `Write { "mtu": ${mtu} } into /etc/docker/daemon.json and restart the Engine. A network of your own needs "docker network create -o ${mtuOption}=${mtu} NAME".`;
  return [ours, warning('docker', message, hint)];
}
