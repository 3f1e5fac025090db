/** How a sandbox's network follows that of the host, from the kernel's tables. */
import type { NetworkInterfaceInfo } from 'node:os';
import { expect, it } from 'vitest';
import { uplink } from './network.ts';

const head = 'Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n';
const route = (name: string, target: string, gateway: string, metric: number, mask: string) =>
  `${name}\t${target}\t${gateway}\t0003\t0\t0\t${metric}\t${mask}\t0\t0\t0\n`;
const lan = route('eth0', '000200C0', '00000000', 0, '00FFFFFF');
const zero = '0'.repeat(32);
const v6 = (gateway: string, name: string) => `${zero} 00 ${zero} 00 ${gateway} 00000400 00000001 00000000 00000003     ${name}\n`;
const noV6 = `${zero} 00 ${zero} 00 ${zero} ffffffff 00000001 00000000 00200200       lo\n`;
const trie = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 192.0.2.0
        /24 link UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.0
           /8 host LOCAL
        |-- 127.0.0.1
           /32 host LOCAL
     |-- 172.17.0.1
        /32 host LOCAL
     |-- 192.0.2.2
        /32 link BROADCAST
        /32 host LOCAL
     |-- 192.0.2.255
        /32 link BROADCAST
`;
const address = { family: 'IPv4', address: '192.0.2.2', netmask: '255.255.255.0', internal: false } as NetworkInterfaceInfo;
const interfaces = { lo: [{ ...address, address: '127.0.0.1', internal: true } as NetworkInterfaceInfo], eth0: [address] };

function look(files: Readonly<Record<string, string>>) {
  const all: Readonly<Record<string, string>> = {
    '/proc/net/ipv6_route': noV6,
    '/sys/class/net/eth0/mtu': '1400\n',
    '/etc/resolv.conf': 'nameserver 192.0.2.53\n',
    ...files,
  };
  return uplink((path) => all[path] ?? '', interfaces);
}

it('has the MTU of the interface that leads out, and IPv6 only where the host has it', () => {
  const wlan = route('wlan0', '00000000', '010200C0', 600, '00000000');
  const table = head + wlan + route('eth0', '00000000', '010200C0', 100, '00000000') + lan;
  expect(look({ '/proc/net/route': table }).options).toEqual(['-4', '-m', '1400']);
  const both = { '/proc/net/route': table, '/proc/net/ipv6_route': v6(`fd${zero.slice(3)}1`, 'eth0') + noV6 };
  expect(look(both).options).toEqual(['-m', '1400']);
  expect(look({ '/proc/net/route': head, '/proc/net/ipv6_route': both['/proc/net/ipv6_route'] }).options).toEqual(['-6']);
});

it('is that of some interface where no route leads out, or no gateway is named', () => {
  // pasta of 2025 and newer refuses a gateway that is not in the network of the address.
  const given = ['-4', '-i', 'eth0', '-a', '169.254.1.3', '-n', '255.255.255.0', '-g', '169.254.1.2', '-m', '1400'];
  expect(look({ '/proc/net/route': head + lan }).options).toEqual(given);
  expect(look({ '/proc/net/route': head + route('eth0', '00000000', '00000000', 0, '00000000') }).options).toEqual(given);
});

it('knows the addresses of the host, those of interfaces that are down too, and of a link only where it leads out', () => {
  const addresses =
    'fd000000000000000000000000000002 04 40 00 80     eth0\nfe8000000000000000fc00fffe000001 04 40 20 80     eth0\n';
  const others = 'fe8000000000000000fc00fffe000002 05 40 20 80  docker0\n00000000000000000000000000000001 01 80 10 80       lo\n';
  const anycast = `2    eth0            fd${'0'.repeat(30)}     1\n5    docker0         fe80${'0'.repeat(28)}     1\n`;
  const files = { '/proc/net/fib_trie': trie, '/proc/net/if_inet6': addresses + others, '/proc/net/anycast6': anycast };
  const found = ['172.17.0.1', '192.0.2.2', 'fd00:0000:0000:0000:0000:0000:0000:0002'];
  const forwarding = 'fd00:0000:0000:0000:0000:0000:0000:0000';
  expect(look(files).addresses).toEqual([...found, forwarding]);
  const leading = { ...files, '/proc/net/ipv6_route': v6(`fd${zero.slice(3)}1`, 'eth0') + noV6 };
  expect(look(leading).addresses).toEqual([...found, 'fe80:0000:0000:0000:00fc:00ff:fe00:0001', forwarding]);
});

it('passes questions on to a resolver on the loopback of the host, and keeps the rest of the file', () => {
  const table = { '/proc/net/route': head + route('eth0', '00000000', '010200C0', 0, '00000000') };
  expect(look(table)).toMatchObject({ resolvConf: null });
  const local = look({ ...table, '/etc/resolv.conf': 'search lab\nnameserver 127.0.0.53\noptions edns0\n' });
  expect(local.options).toEqual(['-4', '-m', '1400', '--dns-forward', '169.254.1.1']);
  expect(local.resolvConf).toBe('nameserver 169.254.1.1\nsearch lab\noptions edns0\n');
});
