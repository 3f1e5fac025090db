/** Addresses of this host and of networks of its own. */
import { BlockList, isIP } from 'node:net';

/** As `localhost` is called in the files that systems come with. */
const names = /^(?:(?:.+\.)?localhost|localhost\.localdomain|ip6-localhost|ip6-loopback)$/;

/**
 * Whether a host as an address names it is this one or of a network of its own: there the broker could reach what a sandbox may
 * not, such as the metadata of a cloud. Names are not looked up: a bucket's may well lead into one's own network.
 */
export function isNear(hostname: string): boolean {
  const host = hostname
    .replace(/^\[(.*)\]$/, '$1')
    .replace(/\.$/, '')
    .toLowerCase();
  const version = isIP(host);
  return version === 0 ? names.test(host) : near.check(host, version === 4 ? 'ipv4' : 'ipv6');
}

/** What no public host has (IANA's special-purpose registries): private, of the link, for tests, to many at a time, reserved. */
const four = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
] as const;

/** Those that lead to an address above by a gateway of the network's own are here whole. */
const six = [
  ['::', 127],
  ['64:ff9b:1::', 48],
  ['2001::', 32],
  ['fc00::', 7],
  ['fe80::', 10],
  ['fec0::', 10],
  ['ff00::', 8],
] as const;

/** Addresses of six that say one of four, `4` in its place. That of `::ffff:4` is known to Node. */
const within = [
  ['::4', 96],
  ['::ffff:0:4', 96],
  ['64:ff9b::4', 96],
  ['2002:4::', 16],
] as const;

const near = new BlockList();
for (const [net, bits] of six) near.addSubnet(net, bits, 'ipv6');
for (const [net, bits] of four) {
  near.addSubnet(net, bits, 'ipv4');
  const [a = 0, b = 0, c = 0, d = 0] = net.split('.').map(Number);
  const said = `${(a * 256 + b).toString(16)}:${(c * 256 + d).toString(16)}`;
  for (const [form, before] of within) near.addSubnet(form.replace(/4(?=::$|$)/, said), before + bits, 'ipv6');
}
