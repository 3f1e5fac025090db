/**
 * The firewall rules of the network `internet`, as text. Pure: the wanted rules, and whether a firewall has them.
 *
 * All rules refer to the name of the bridge, which is fixed per owner, so they can exist before the bridge. They are in two
 * chains with the owner's id in their names, so they can be found and removed.
 */
import { createHash } from 'node:crypto';

/**
 * Ranges that are not globally reachable (IANA's registry), and multicast: neighbours, metadata services of clouds, other
 * containers.
 */
const blockedRanges: readonly string[] = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
];

export interface Names {
  /** Name of the bridge. An interface name has at most 15 characters. */
  readonly bridge: string;
  /** Packets from the bridge to anywhere else. */
  readonly forward: string;
  /** Packets from the bridge to the host itself. */
  readonly input: string;
}

export function namesOf(owner: string): Names {
  const id = owner.length <= 12 ? owner : createHash('sha256').update(owner).digest('hex').slice(0, 12);
  return { bridge: `oj-${id}`, forward: `onejob-${id}-fwd`, input: `onejob-${id}-in` };
}

export type Family = 'ipv4' | 'ipv6';

/**
 * Docker reserves the first chain for its users' rules and checks it before its own. It never gives our bridge an IPv6 address,
 * so all IPv6 is refused.
 */
const hooks = { ipv4: { forward: 'DOCKER-USER', input: 'INPUT' }, ipv6: { forward: 'FORWARD', input: 'INPUT' } } as const;

/** A part of the host that may be reached: one TCP port at one IPv4 address. */
export interface HostPort {
  readonly address: string;
  readonly port: number;
}

interface Chains {
  readonly forward: readonly string[];
  readonly input: readonly string[];
}

/**
 * The rules in our two chains. Jobs may ask only the name servers, and only for names, and reach only `hostPorts` on the host. A
 * connection is refused with a reset, because any other answer reaches the caller a second later.
 */
export function rulesFor(
  family: Family,
  names: Names,
  nameservers: readonly string[],
  hostPorts: readonly HostPort[] = [],
): Chains {
  const refuse = ['-p tcp -j REJECT --reject-with tcp-reset', '-j REJECT'];
  if (family === 'ipv6') return { forward: refuse, input: refuse };
  const open = hostPorts.map(({ address, port }) => `-d ${address}/32 -i ${names.bridge} -p tcp -m tcp --dport ${port} -j RETURN`);
  const questions = [...new Set(nameservers)].flatMap((server) =>
    ['udp', 'tcp'].map((protocol) => `-d ${server}/32 -p ${protocol} -m ${protocol} --dport 53 -j RETURN`),
  );
  return { forward: blockedRanges.map((range) => `-d ${range} -j ${names.input}`), input: [...questions, ...open, ...refuse] };
}

/** This owner's lines of a firewall, as `iptables-save` prints them. */
export function ours(saved: string, names: Names): string[] {
  const own = new Set([names.forward, names.input]);
  return saved.split('\n').filter((line) => line.split(' ').some((word) => own.has(word.replace(/^:/, ''))));
}

/** The open ports in a firewall. Unlike rules for name servers they contain the name of the bridge. */
export function hostPortsIn(saved: string, names: Names): HostPort[] {
  return ours(saved, names).flatMap((line): HostPort[] => {
    if (!line.startsWith(`-A ${names.input} `) || !line.includes(` -i ${names.bridge} `)) return [];
    const [, address] = / -d ([\d.]+)(?:\/32)? /.exec(line) ?? [];
    const [, port] = / --dport (\d+) .*-j RETURN$/.exec(line) ?? [];
    return address === undefined || port === undefined ? [] : [{ address, port: Number(port) }];
  });
}

/** Whether the Engine keeps its rules in this firewall. A tool of the same name may read another one. */
export function isEngines(saved: string): boolean {
  return saved.includes('\n:DOCKER-USER ') && /^-A FORWARD (.* )?-j DOCKER-USER$/m.test(saved);
}

/** Why these rules do not hold; null if all exist. */
export function missingRule(saved: string, family: Family, names: Names, rules: Chains): string | null {
  const lines = ours(saved, names);
  for (const hook of ['forward', 'input'] as const) {
    const chain = names[hook];
    if (!lines.includes(jump(family, hook, names))) return `no rule leads from ${hooks[family][hook]} to chain ${chain}`;
    const count = lines.filter((line) => line.startsWith(`-A ${chain} `)).length;
    if (count !== rules[hook].length) return `chain ${chain} has ${count} rules instead of ${rules[hook].length}`;
  }
  return null;
}

/** Input of `iptables-restore --noflush` that fills the chains and puts the jumps to them first, in one step. */
export function writing(saved: string, family: Family, names: Names, rules: Chains): string {
  const lines = ['*filter', `:${names.forward} - [0:0]`, `:${names.input} - [0:0]`];
  for (const hook of ['forward', 'input'] as const) lines.push(...rules[hook].map((rule) => `-A ${names[hook]} ${rule}`));
  lines.push(...withoutJumps(saved, names));
  for (const hook of ['forward', 'input'] as const) lines.push(jump(family, hook, names).replace('-A', '-I'));
  return [...lines, 'COMMIT', ''].join('\n');
}

/** Input of `iptables-restore --noflush` that removes everything of this owner; null if there is nothing. */
export function removing(saved: string, names: Names): string | null {
  const chains = [names.forward, names.input].filter((chain) => saved.includes(`\n:${chain} `));
  if (chains.length === 0) return null;
  // Both are emptied first, since one leads to the other.
  const emptied = chains.map((chain) => `:${chain} - [0:0]`);
  return ['*filter', ...emptied, ...withoutJumps(saved, names), ...chains.map((chain) => `-X ${chain}`), 'COMMIT', ''].join('\n');
}

function jump(family: Family, hook: 'forward' | 'input', names: Names): string {
  return `-A ${hooks[family][hook]} -i ${names.bridge} -j ${names[hook]}`;
}

function withoutJumps(saved: string, names: Names): string[] {
  return ours(saved, names)
    .filter((line) => new RegExp(`^-A (?!${names.forward} ).* -j (${names.forward}|${names.input})$`).test(line))
    .map((line) => line.replace('-A', '-D'));
}
