/**
 * The hosts that onejob is tried on. Each pair of two properties that can be had together is on one of them, since what breaks a host
 * is mostly one property or two of them; `setups.test.ts` counts.
 */

export interface Setup {
  /** Debian's own Engine is 26. */
  readonly engine: 'Docker 26' | 'Docker 28' | 'Docker 29' | 'Podman';
  /** Where images are; Podman has no choice. */
  readonly images: 'overlay2' | 'containerd' | 'its own';
  /** Who makes the control groups of containers. */
  readonly groups: 'systemd' | 'cgroupfs';
  readonly firewall: 'iptables' | 'nftables';
  /** What a restart of the Engine does to its containers. Podman's are not its service's. */
  readonly restart: 'ends jobs' | 'live-restore' | 'spares jobs';
}

export const values = {
  engine: ['Docker 26', 'Docker 28', 'Docker 29', 'Podman'],
  images: ['overlay2', 'containerd', 'its own'],
  groups: ['systemd', 'cgroupfs'],
  firewall: ['iptables', 'nftables'],
  restart: ['ends jobs', 'live-restore', 'spares jobs'],
} as const satisfies { [K in keyof Setup]: readonly Setup[K][] };

/** Whether such a host can be had. */
export function exists({ engine, images, firewall, restart }: Setup): boolean {
  if (engine === 'Podman') return images === 'its own' && restart === 'spares jobs';
  return images !== 'its own' && restart !== 'spares jobs' && (firewall === 'iptables' || engine === 'Docker 29');
}

const row = (...[engine, images, groups, firewall, restart]: [...{ [K in keyof Setup]: Setup[K] }[keyof Setup][]]) =>
  ({ engine, images, groups, firewall, restart }) as Setup;

export const setups: readonly Setup[] = [
  row('Docker 26', 'overlay2', 'systemd', 'iptables', 'ends jobs'),
  row('Docker 26', 'containerd', 'cgroupfs', 'iptables', 'live-restore'),
  row('Docker 28', 'overlay2', 'systemd', 'iptables', 'live-restore'),
  row('Docker 28', 'containerd', 'cgroupfs', 'iptables', 'ends jobs'),
  row('Docker 29', 'containerd', 'systemd', 'iptables', 'live-restore'),
  row('Docker 29', 'overlay2', 'cgroupfs', 'nftables', 'live-restore'),
  row('Docker 29', 'containerd', 'systemd', 'nftables', 'ends jobs'),
  row('Podman', 'its own', 'systemd', 'nftables', 'spares jobs'),
  row('Podman', 'its own', 'cgroupfs', 'iptables', 'spares jobs'),
];

export const nameOf = (setup: Setup): string => Object.values(setup).join(', ');

/** What a host runs before its services start for the first time, to become that one. */
export function scriptOf({ engine, images, groups, firewall, restart }: Setup): string {
  if (engine === 'Podman')
    // Its service ends when nobody asks, and on this slow kernel a start takes as long as onejob waits for an Engine.
    return `mkdir -p /etc/containers/containers.conf.d /etc/systemd/system/podman.service.d
: >/etc/only-podman
printf '[Service]\\nExecStart=\\nExecStart=/usr/bin/podman system service --time=0\\n' >/etc/systemd/system/podman.service.d/here.conf
printf '[engine]\\ncgroup_manager="${groups}"\\n[network]\\nfirewall_driver="${firewall}"\\n' >/etc/containers/containers.conf.d/here.conf
`;
  const daemon = {
    'exec-opts': [`native.cgroupdriver=${groups}`],
    'live-restore': restart === 'live-restore',
    features: { 'containerd-snapshotter': images === 'containerd' },
    ...(firewall === 'nftables' && { 'firewall-backend': firewall }),
  };
  // With nftables the Engine does not let the host forward by itself.
  return `cp -rlf '/usr/lib/engines/${engine.replace('Docker ', '')}/.' /
mkdir -p /etc/docker
echo '${JSON.stringify(daemon)}' >/etc/docker/daemon.json
echo net.ipv4.ip_forward=1 >/etc/sysctl.d/here.conf
`;
}
