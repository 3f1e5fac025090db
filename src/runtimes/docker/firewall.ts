/**
 * The firewall of the Engine's host, with the rules of the network `internet`. No sandbox starts on that network unless the rules
 * were seen just before: a reload of the firewall removes them without notice.
 *
 * All rules refer to the name of the bridge, which is fixed per owner, so they can exist before the bridge. They are in two
 * chains with the owner's id in their names, so they can be found and removed.
 */
import { hash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { isIPv4 } from 'node:net';
import { z } from 'zod';
import { OnejobError } from '../../base/errors.ts';
import { jsonOf } from '../../system/json.ts';
import { run } from '../../system/run.ts';
import { blockedRanges } from '../private-ranges.ts';

export interface Firewall {
  /** Name of the bridge that the rules are about. */
  readonly bridge: string;
  /** Why rules cannot be kept here, as the end of a sentence; null if they can. */
  obstacle(): Promise<string | null>;
  /** Makes sure that all rules exist. @throws OnejobError E_NETWORK_UNGUARDED */
  guard(): Promise<void>;
  /** Lets the bridge's containers reach this port of the host until `remove`. @throws OnejobError E_NETWORK_UNGUARDED */
  open(port: HostPort): Promise<void>;
  /** Whether the bridge is on this host. If not, this process and the Engine are on different networks. */
  hasBridge(): Promise<boolean>;
  /** Removes the rules, if there are any. */
  remove(): Promise<void>;
}

/** Docker's order. The others are tried if the Engine does not keep its rules in the first. */
const flavours = ['iptables', 'iptables-legacy', 'iptables-nft'] as const;
type Flavour = (typeof flavours)[number];
const families = ['ipv4', 'ipv6'] as const;
/** ms */
const patience = 20_000;

export interface FirewallOptions {
  /** Those that jobs may ask; default: those of the Engine. */
  readonly nameservers?: (() => Promise<readonly string[]>) | undefined;
  /** Whether the Engine is Podman, whose packets do not pass Docker's chains, although a Docker Engine on the same host may keep some. */
  readonly isPodman?: () => Promise<boolean>;
}

/** `local`: whether the Engine is on this host. */
export function createFirewall(owner: string, local: boolean, options: FirewallOptions = {}): Firewall {
  const { nameservers = nameserversOfHost, isPodman = async () => false } = options;
  const names = namesOf(owner);
  /** How the tools print our rules, with the rules themselves: each tool prints them in its own way. */
  const written = new Map<Family, { readonly from: string; readonly lines: string }>();
  const hostPorts = new Map<string, HostPort>();
  let turn: Promise<unknown> = Promise.resolve();

  // One at a time, because two writers would overwrite each other's rules.
  const inTurn = <T>(work: () => Promise<T>): Promise<T> => {
    const done = turn.then(work, work);
    turn = done.catch(() => {});
    return done;
  };

  const look = async (): Promise<{ flavour: Flavour } | { why: string }> => {
    if (!local) return { why: 'the Engine is not on this host' };
    if (process.getuid?.() !== 0) return { why: 'only root may change the firewall of this host' };
    // Of an Engine that is away, others say so.
    if (await isPodman().catch(() => false)) return { why: 'Podman keeps its rules elsewhere than in the chain DOCKER-USER' };
    const whys: string[] = [];
    for (const flavour of await flavoursHere()) {
      const saved = await ask(tool(flavour, 'ipv4', 'save'), ['-t', 'filter']);
      if (saved.ok && isEngines(saved.output)) return { flavour };
      whys.push(
        saved.ok ? `${flavour} shows no chain DOCKER-USER, so the Engine keeps no rules there` : `${flavour}: ${saved.output}`,
      );
    }
    return { why: whys[0] ?? '' };
  };

  const guard = async (): Promise<void> => {
    const keeper = await look();
    if ('why' in keeper) throw unguarded(keeper.why);
    const servers = await nameservers();
    for (const family of await familiesHere()) {
      const before = await save(keeper.flavour, family);
      // A previous manager opened these, for services that outlive it and whose sandboxes must stay connected.
      const used = family === 'ipv4' ? await inUse(hostPortsIn(before, names)) : [];
      const open = new Map([...used.map((port) => [keyOf(port), port] as const), ...hostPorts]);
      const inOrder = [...open].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, port]) => port);
      const rules = rulesFor(family, names, servers, inOrder);
      const from = JSON.stringify([keeper.flavour, rules]);
      const known = written.get(family);
      if (known?.from === from && known.lines === ours(before, names).join('\n')) continue;
      await restore(keeper.flavour, family, writing(before, family, names, rules));
      const after = await save(keeper.flavour, family);
      const missing = missingRule(after, family, names, rules);
      if (missing !== null) throw unguarded(`the rules were written, but ${missing}`);
      written.set(family, { from, lines: ours(after, names).join('\n') });
    }
  };

  const remove = async (): Promise<void> => {
    written.clear();
    hostPorts.clear();
    if (!local || process.getuid?.() !== 0) return;
    for (const flavour of await flavoursHere()) {
      for (const family of families) {
        const saved = await ask(tool(flavour, family, 'save'), ['-t', 'filter']);
        const taking = saved.ok ? removing(saved.output, names) : null;
        if (taking !== null) await restore(flavour, family, taking);
      }
    }
  };

  return {
    bridge: names.bridge,
    obstacle: async () => {
      const keeper = await look();
      return 'why' in keeper ? keeper.why : null;
    },
    guard: () => inTurn(guard),
    open: async (port) => {
      hostPorts.set(keyOf(port), port);
      await inTurn(guard);
    },
    hasBridge: () => isInterface(names.bridge),
    remove: () => inTurn(remove),
  };
}

/** @throws OnejobError */
export function unguarded(why: string): OnejobError {
  return new OnejobError('E_NETWORK_UNGUARDED', `Cannot keep the network "internet" from the host and private networks: ${why}.`, {
    hint: 'Run onejob as root on the host of a Docker Engine that has its iptables rules on, or write network: none or default (for untrusted jobs: trust.forks and trust.others: refuse, or trust.network).',
  });
}

function keyOf({ address, port }: HostPort): string {
  return `${address}:${port}`;
}

/** The ports with a listener at exactly that address. Another is closed before a program that listens everywhere takes it. */
async function inUse(hostPorts: readonly HostPort[]): Promise<HostPort[]> {
  if (hostPorts.length === 0) return [];
  const lines = (await readFile('/proc/self/net/tcp', 'utf8')).split('\n').map((line) => line.trim().split(/\s+/));
  const listening = new Set(lines.flatMap(([, local, , state]) => (local !== undefined && state === '0A' ? [local] : [])));
  return hostPorts.filter((port) => listening.has(asListed(port)));
}

/** As the kernel lists it: the bytes of the address in the CPU's order, the port as usual. */
function asListed({ address, port }: HostPort): string {
  const bytes = address.split('.').reverse();
  return [bytes, [port >> 8, port & 255]]
    .map((part) => part.map((byte) => Number(byte).toString(16).padStart(2, '0')).join(''))
    .join(':')
    .toUpperCase();
}

/** Calling iptables-legacy makes the kernel load it, so it is skipped unless it is in use. */
async function flavoursHere(): Promise<Flavour[]> {
  const tables = await readFile('/proc/self/net/ip_tables_names', 'utf8').catch(() => '');
  return flavours.filter((flavour) => flavour !== 'iptables-legacy' || tables.includes('filter'));
}

/** A kernel without IPv6 needs no rules for it. */
async function familiesHere(): Promise<readonly Family[]> {
  return readFile('/proc/self/net/if_inet6').then(
    () => families,
    () => ['ipv4'] as const,
  );
}

async function save(flavour: Flavour, family: Family): Promise<string> {
  const { ok, output } = await ask(tool(flavour, family, 'save'), ['-t', 'filter']);
  if (ok) return output;
  throw unguarded(output);
}

async function restore(flavour: Flavour, family: Family, text: string): Promise<void> {
  const { ok, output } = await ask(tool(flavour, family, 'restore'), ['--noflush', '--wait', '10'], text);
  if (!ok) throw unguarded(output);
}

function tool(flavour: Flavour, family: Family, verb: 'save' | 'restore'): string {
  return `${family === 'ipv4' ? flavour : flavour.replace('iptables', 'ip6tables')}-${verb}`;
}

/** Whether this process' network has an interface of that name. */
export async function isInterface(name: string): Promise<boolean> {
  const lines = (await readFile('/proc/self/net/dev', 'utf8')).split('\n');
  return lines.some((line) => line.trimStart().startsWith(`${name}:`));
}

/** The output of a tool if it worked, else one line that says why not. Never rejects. */
async function ask(command: string, args: readonly string[], input = ''): Promise<{ ok: boolean; output: string }> {
  const { code, stdout, stderr } = await run(command, args, { input, timeout: patience });
  if (code === 0) return { ok: true, output: stdout.toString() };
  if (typeof code === 'string') return { ok: false, output: `"${command}" is not installed` };
  return { ok: false, output: `"${command}" failed: ${stderr.trim().split('\n').at(0) || `it ended with exit code ${code}`}` };
}

const daemonConfig = z.object({ dns: z.array(z.string()).optional() });

/**
 * The name servers of the Engine's containers: those of its host, or of its own config. IPv4 only, without loopback addresses,
 * because Docker asks those from the host.
 */
async function nameserversOfHost(): Promise<string[]> {
  const [resolv, resolved, daemon] = await Promise.all(
    // systemd-resolved writes the servers behind its 127.0.0.53 to the second file.
    ['/etc/resolv.conf', '/run/systemd/resolve/resolv.conf', '/etc/docker/daemon.json'].map((path) =>
      readFile(path, 'utf8').catch(() => ''),
    ),
  );
  const servers = [...serversIn(resolv ?? ''), ...serversIn(resolved ?? ''), ...serversOfDaemon(daemon ?? '')];
  return [...new Set(servers)].filter((address) => isIPv4(address) && !address.startsWith('127.')).sort();
}

export function serversIn(resolvConf: string): string[] {
  return [...resolvConf.matchAll(/^\s*nameserver\s+(\S+)/gm)].map(([, address = '']) => address);
}

export function serversOfDaemon(text: string): string[] {
  // The file is missing, or the Engine would not start with it.
  return daemonConfig.safeParse(jsonOf(text)).data?.dns ?? [];
}

/** `bridge` (15 characters at most), and the chains for packets from it: `forward` to anywhere else, `input` to the host. */
export type Names = Readonly<Record<'bridge' | 'forward' | 'input', string>>;

export function namesOf(owner: string): Names {
  const id = owner.length <= 12 ? owner : hash('sha256', owner).slice(0, 12);
  return { bridge: `oj-${id}`, forward: `onejob-${id}-fwd`, input: `onejob-${id}-in` };
}

export type Family = 'ipv4' | 'ipv6';

/** Docker checks the first, its users' own, before its rules. Our bridge never gets an IPv6 address, so all IPv6 is refused. */
const hooks = { ipv4: { forward: 'DOCKER-USER', input: 'INPUT' }, ipv6: { forward: 'FORWARD', input: 'INPUT' } } as const;

/** A part of the host that may be reached: one TCP port at one IPv4 address. */
export interface HostPort {
  readonly address: string;
  readonly port: number;
}

type Chains = Readonly<Record<'forward' | 'input', readonly string[]>>;

/**
 * The rules in our two chains. Jobs may ask only the name servers, and only for names, and reach only `hostPorts` on the host. A
 * connection is refused with a reset, because any other answer reaches the caller a second later.
 */
export function rulesFor(family: Family, names: Names, nameservers: readonly string[], hostPorts: readonly HostPort[] = []) {
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
