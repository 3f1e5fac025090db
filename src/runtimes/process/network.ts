/**
 * The network namespace of a sandbox, and `pasta` (Debian package `passt`), which carries its traffic as a user's program does: it
 * calls out through the host's own network, and nothing calls in. So a job can take no port of the host, and reaches none of the
 * host's own addresses.
 *
 * Guarantees: pasta runs as a user without rights, in a user namespace that owns the network namespace. No job is that user or in
 * that user namespace, so no job can change the network. What keeps the namespace and pasta alive is a pipe that the supervisor's
 * shell holds: it ends with that shell, however that ends. Nothing of it is in a file that confined programs (AppArmor) must open.
 */
import { mkdtempSync } from 'node:fs';
import { readdir, readlink } from 'node:fs/promises';
import { type NetworkInterfaceInfo, networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { quoted } from '../../base/quoted.ts';
import { defaultRoute } from '../../system/default-route.ts';
import { removeTree } from '../../system/foreign-tree.ts';
import { allPids, childrenOf, killPid, readOr } from '../../system/process-identity.ts';
import { run } from '../../system/run.ts';
import { firstUid } from '../uids.ts';
import { isInstalled, searchPath } from './programs.ts';
import { type Trial, trialLimit, wasLate } from './trials.ts';

/** Address at which a sandbox asks the host's resolver, where that is one on the host's loopback. */
const resolver = '169.254.1.1';
/** Nothing has these addresses: pasta answers for every gateway, and calls others from an address of the host. */
const nobody = ['-a', '169.254.1.3', '-n', '255.255.255.0', '-g', '169.254.1.2'];

/** What pasta accepts. */
const largestMtu = 65_520;

/** How this host reaches others, as far as sandboxes need to know. Looked at for each sandbox: it may change at any time. */
export interface Uplink {
  /** pasta's options. */
  readonly options: readonly string[];
  /** Addresses of the host. */
  readonly addresses: readonly string[];
  /** Text of `/etc/resolv.conf`; null: the host's file. */
  readonly resolvConf: string | null;
}

type Interfaces = NodeJS.Dict<NetworkInterfaceInfo[]>;

export function uplink(read = (path: string): string => readOr(path, ''), interfaces: Interfaces = networkInterfaces()): Uplink {
  const v4 = defaultRoute(read('/proc/net/route'));
  const ways6 = read('/proc/net/ipv6_route').matchAll(/^0{32} 00 0{32} 00 (?!0{32})\w{32} .* (?!lo$)(\S+)$/gm);
  const links = new Set([...ways6].flatMap(([, name]) => name ?? []));
  const v6 = links.size > 0;
  const link = v4 ?? (v6 ? null : anyInterface(interfaces));
  const mtu = link === null ? 0 : Number(read(`/sys/class/net/${link.name}/mtu`));
  const { text, forwards } = resolvConf(read('/etc/resolv.conf'));
  const given = link?.gateway === false ? ['-i', link.name, ...nobody] : [];
  const families = link !== null && v6 && given.length === 0 ? [] : [link === null && v6 ? '-6' : '-4'];
  return {
    options: [
      ...families,
      ...given,
      ...(mtu === 0 ? [] : ['-m', String(Math.min(mtu, largestMtu))]),
      ...(forwards ? ['--dns-forward', resolver] : []),
    ],
    addresses: ownAddresses(read, links),
    resolvConf: forwards ? text : null,
  };
}

/** A host without a default route, such as one of a closed network: pasta needs an interface, and the kernel of the host decides. */
function anyInterface(interfaces: Interfaces): { readonly name: string; readonly gateway: boolean } | null {
  const names = Object.entries(interfaces).filter(([, list = []]) =>
    list.some(({ family, internal }) => family === 'IPv4' && !internal),
  );
  const [first] = names;
  return first === undefined ? null : { name: first[0], gateway: false };
}

/**
 * From tables of the kernel, because addresses of interfaces that are down count as well. Addresses of one link can be called only on
 * the links that lead out.
 */
function ownAddresses(read: (path: string) => string, links: ReadonlySet<string>): string[] {
  const v4 = read('/proc/net/fib_trie').matchAll(/\|-- (\S+)\n(?:\s+\/\d+ .*\n)*?\s+\/32 host LOCAL$/gm);
  const v6 = read('/proc/net/if_inet6').matchAll(/^(\w{32}) \w+ \w+ (00|20) \w+ +(\S+)$/gm);
  const addresses = [...v4].flatMap(([, address = '']) => (address.startsWith('127.') ? [] : [address]));
  const hexes = [...v6].flatMap(([, hex = '', scope, link = '']) => (scope === '00' || links.has(link) ? [hex] : []));
  // A host that forwards IPv6 answers at one more address of each network.
  const any = read('/proc/net/anycast6').matchAll(/^\d+ +(\S+) +(\w{32}) /gm);
  for (const [, link = '', hex = ''] of any) if (!hex.startsWith('fe80') || links.has(link)) hexes.push(hex);
  return [...new Set([...addresses, ...hexes.map((hex) => hex.replace(/(\w{4})(?!$)/g, '$1:'))])];
}

/** A resolver on the host's loopback is out of reach in a sandbox, so pasta passes questions on to it. */
function resolvConf(text: string): { readonly text: string; readonly forwards: boolean } {
  const lines = text.split('\n');
  const isLocal = (line: string): boolean => /^\s*nameserver\s+127\./.test(line);
  if (!lines.some(isLocal)) return { text, forwards: false };
  return { text: [`nameserver ${resolver}`, ...lines.filter((line) => !isLocal(line))].join('\n'), forwards: true };
}

/** File in the sandbox's folder with pasta's identity. */
export const networkFile = 'network';

/** What pasta carries to the host: nothing. Its own defaults open the host's loopback. */
const closed = ['-t', 'none', '-u', 'none', '-U', 'none', '--no-map-gw'];

/**
 * How a shell starts pasta: under root as a user that no agent has. Some hosts keep the node for such interfaces to root, so it gets
 * one of its own.
 */
export function pasta(root: boolean, more: readonly string[]): string {
  const program = ['pasta', '--foreground', '--quiet', ...closed, ...more];
  if (!root) return program.map(quoted).join(' ');
  const become = [`--reuid=${firstUid}`, `--regid=${firstUid}`, '--clear-groups', '--bounding-set=-all', '--inh-caps=-all'];
  const node = 'mount -t tmpfs -o mode=755 onejob /dev/net && mknod -m 666 /dev/net/tun c 10 200 || exit';
  return ['unshare', '--mount', '/bin/sh', '-c', `${node}; exec setpriv "$@"`, 'sh', ...become, ...program].map(quoted).join(' ');
}

/** A datagram for a group reaches the host's own members, and all hosts are in some. On the loopback they are the job's. */
const noGroups = ['224.0.0.0/4', 'ff00::/8'].flatMap((groups) =>
  ['dev lo action allow priority 1', 'action block priority 2'].map(
    (what) => `xfrm policy add dir out dst ${groups} proto udp ${what}`,
  ),
);

/**
 * How a shell starts what makes a network and carries its traffic until its standard input ends. It writes a line `ready` once the
 * network is there, or lines that say what is wrong. The network is that of its only child.
 */
export function networkCommand(root: boolean, { options, addresses }: Uplink): string {
  const isOn = (address: string): boolean => !options.includes(address.includes(':') ? '-4' : '-6');
  // Of this network itself: other kinds of routes do not bind a job that names the interface (SO_BINDTODEVICE, IP_UNICAST_IF).
  const routes = ['127.0.0.0/8', '::1', ...addresses].filter(isOn).map((address) => `route append local ${address} dev '"$d"'\\n`);
  const hold = [
    // The interface that is not the loopback; others that a kernel adds, such as tunl0, are down.
    `for d in $(ip -o link show up | sed 's/^[0-9]*: //; s/[:@].*//'); do [ "$d" = lo ] || break; done`,
    `printf '${routes.join('')}' | ip -batch - || exit`,
    // No route does this for groups of a link. A kernel without XFRM cannot.
    `printf '${noGroups.join('\\n')}' | ip -force -batch - >/dev/null 2>&1`,
    'echo ready',
    // It ends with the pipe, or with pasta.
    'exec setpriv --pdeathsig KILL cat >/dev/null 2>&1',
  ];
  return pasta(root, ['--config-net', '-T', 'none', ...options, '--', '/bin/sh', '-c', hold.join('\n')]);
}

/** The process that holds the network of this pasta. */
export function childOf(pid: number): number | null {
  return childrenOf(pid)[0] ?? null;
}

/** The start of a command, for a shell, that runs in the network of the process `holder`: a pid, or a variable of the shell. */
export function entering(root: boolean, holder: number | '$h'): string {
  const net = `--net="/proc/${holder}/ns/net"`;
  return root ? `nsenter ${net} --` : `nsenter --user="/proc/${holder}/ns/user" ${net} --preserve-credentials --`;
}

/** In a shell: the children of process `$p`. A kernel without CONFIG_PROC_CHILDREN has no list of them. */
export const childOfShell =
  'cat "/proc/$p/task/$p/children" 2>/dev/null || grep -ls "^PPid:[[:space:]]*$p$" /proc/[0-9]*/status | tr -cd "0-9\\n"';

/**
 * Lines of shell that make a network and then run `inside`, lines in which `enter` is the start of a command in that network. The
 * current folder is the sandbox's; `file` there gets pasta's identity. If there is no network, `failed` runs, and `$r` says why.
 * Descriptors 7 to 9 and the variables `h`, `p`, `r` are taken.
 */
export function networkScript(
  { root, uplink, file }: { readonly root: boolean; readonly uplink: Uplink; readonly file: string },
  inside: (enter: string) => readonly string[],
  failed: readonly string[],
): string[] {
  const ready = `${file}.ready`;
  return [
    `mkfifo -m 600 ${ready}`,
    '{ {',
    `  IFS= read -r r <${ready}; rm -f ${ready}`,
    `  if [ "$r" = ready ] && IFS=' ' read -r p r <${file} && h=$(${childOfShell}) && [ "$h" ]; then`,
    // One child, and a blank.
    '    h=${h%%[!0-9]*}',
    ...inside(entering(root, '$h')),
    '  else',
    ...failed,
    '  fi',
    // The pipe that keeps it alive is descriptor 8.
    '} 8>&1 >&9 9>&- | {',
    `  exec 3>&- 9>&- 2>&1`,
    `  IFS= read -r s </proc/self/stat; printf '%s\\n' "$s" >${file} || exit`,
    `  exec ${networkCommand(root, uplink)}`,
    '} | {',
    '  exec 3>&- 9>&- 2>/dev/null; w=',
    '  while IFS= read -r l; do',
    // What an old pasta says before its usage, and one that may not use /dev/net/tun. The latter leaves a process that keeps the pipe.
    "    case $l in ready) w=ready; break ;; *syslog*) ;; *'unrecognized option'*|*' tun '*|*/net/tun*|*TUNSETIFF*) w=$l; break ;; *) w=$l ;; esac",
    '  done',
    `  printf '%s\\n' "\${w:-it ended}" >${ready}`,
    '} >/dev/null; } 9>&1',
  ];
}

/** Begins the name of a probe's folder. */
const ofProbe = '.network-';
/** Folders of probes that this process runs now. */
const probes = new Set<string>();

/**
 * Whether networks can be made here: one like a job's must be made, and differ from ours. `dir`: the folder of sandboxes, where it
 * also removes what is left of earlier probes. `within`: ms.
 */
export async function probeNetwork(root: boolean, dir: string, programs = searchPath, within = trialLimit): Promise<Trial> {
  const folder = mkdtempSync(join(dir, ofProbe));
  probes.add(folder);
  // Of a manager that was killed meanwhile, or whose power was cut: this one alone has the folder.
  for (const name of await readdir(dir))
    if (name.startsWith(ofProbe) && !probes.has(join(dir, name))) await clearProbe(join(dir, name));
  try {
    const inside = (enter: string): string[] => [`${enter} readlink /proc/self/ns/net`];
    const script = networkScript({ root, uplink: uplink(), file: networkFile }, inside, [`printf '%s\\n' "$r" >&2; exit 1`]);
    // The shell's children would hold its output, and `timeout` ends them with it.
    const how = { cwd: folder, input: script.join('\n'), env: { PATH: programs, ONEJOB_PROBE: folder } };
    const ended = await run('timeout', ['-s', 'KILL', String(within / 1_000), '/bin/sh', '-s'], how);
    const made = ended.stdout.toString().trim();
    if (/^net:\[\d+\]$/.test(made) && made !== (await readlink('/proc/self/ns/net')))
      return { end: 'works', why: 'pasta is installed and a probe network was made.' };
    if (!(await isInstalled('pasta', programs))) return { end: 'absent', why: 'pasta (Debian package "passt") is not installed.' };
    if (wasLate(ended))
      return { end: 'late', why: `pasta is installed, and a probe network was not there within ${within / 1_000} s.` };
    const lastLine = ended.stderr.trim().split('\n').at(-1) || 'it said nothing';
    return { end: 'fails', why: `pasta is installed but a probe network failed: ${lastLine.replace(/\.$/, '')}.` };
  } finally {
    await clearProbe(folder);
    probes.delete(folder);
  }
}

/** A pasta that has failed may leave a process. */
async function clearProbe(folder: string): Promise<void> {
  for (const pid of allPids()) if (readOr(`/proc/${pid}/environ`, '').includes(folder)) killPid(pid, 'KILL');
  await removeTree(folder);
}
