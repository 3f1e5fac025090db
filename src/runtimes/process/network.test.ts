/** The network of a sandbox, with real sandboxes: what a job can take and reach of this host. No packet leaves this machine. */
import { spawnSync } from 'node:child_process';
import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { leftoversOf, plainRecipe } from '../../../test/kit/process-runtime.ts';
import { follow, specOf, watch } from '../../../test/kit/runtime-contract/contract.ts';
import { processesOf } from '../../../test/support/census-processes.ts';
import { lacks } from '../../../test/support/require.ts';
import { scratch } from '../../../test/support/scratch.ts';
import { attempt } from '../../base/errors.ts';
import type { AgentId } from '../../core/slot.ts';
import type { Recipe, Runtime } from '../../ports/runtime.ts';
import { allPids, markVariable, readOr } from '../../system/process-identity.ts';
import { run as runToEnd } from '../../system/run.ts';
import { systemClock } from '../../system/system-clock.ts';
import { frame, MarkerFilter, readyMarker } from '../gate.ts';
import { supervisorOf } from './folder.ts';
import { hostFindings, lookAtHost } from './host.ts';
import { childOfShell, probeNetwork } from './network.ts';
import { createProcessRuntime } from './process.ts';
import { searchPath } from './programs.ts';

const never = new AbortController().signal;

it.each([
  ['with', childOfShell],
  ['without', childOfShell.replace('/children', '/none')],
])('a shell finds the child of a process %s the kernel’s list of them', async (_, lines) => {
  const script = `sh -c 'sleep 600 & echo $! $$; wait' | { read -r c p; echo "$c" $(${lines}); kill "$c"; }`;
  const { stdout } = await runToEnd('/bin/sh', ['-c', script]);
  expect(stdout.toString()).toMatch(/^(\d+) \1\n$/);
});

describe.skipIf(lacks('bubblewrap', 'pasta'))('a job in a network of its own', () => {
  const owner = `network-${process.pid}`;
  let dir: string;
  let runtime: Runtime;
  let events: ReturnType<typeof watch>;
  const open: Server[] = [];

  beforeAll(async () => {
    dir = mkdtempSync(join(tmpdir(), 'onejob-network-'));
    runtime = await createProcessRuntime({ owner, dir });
    events = watch(runtime);
    await events.connected();
  });
  afterAll(async () => {
    for (const { agent } of await runtime.list(never)) await runtime.remove(agent);
    await runtime.sweep(never);
    expect(leftoversOf(dir, owner)).toEqual([]);
    await events.stop();
    for (const server of open) server.close();
    rmSync(dir, { recursive: true });
  });

  /** A server of this host that says `host` to everyone. */
  async function listening(address: string): Promise<number> {
    const server = createServer((client) => client.on('error', () => {}).end('host')).listen(0, address);
    open.push(server);
    await once(server, 'listening');
    return (server.address() as AddressInfo).port;
  }
  const standby = async (changes: Partial<Recipe> = {}) => {
    const spec = specOf({ ...plainRecipe, ...changes });
    await runtime.prepare(spec, () => {}, never);
    const log = follow(runtime, spec.agent);
    await log.until(`${readyMarker(spec.agent)}\n`);
    return { agent: spec.agent, log };
  };
  const run = async (script: string, changes: Partial<Recipe> = {}): Promise<string> => {
    const { agent, log } = await standby(changes);
    await runtime.release(agent, frame(agent, script), never);
    await events.exit(agent);
    await log.ended;
    const filter = new MarkerFilter(agent);
    const out = log.chunks.map((chunk) => Buffer.from(chunk.stream === 'stdout' ? filter.push(chunk.bytes) : chunk.bytes));
    await runtime.remove(agent);
    return Buffer.concat(out).toString();
  };
  /** Shell that says what a server there says, or that there is none. */
  const call = (address: string, port: number): string =>
    `perl -MIO::Socket::IP -e '$s = IO::Socket::IP->new(PeerHost => "${address}", PeerPort => ${port}, Timeout => 3); print $s ? <$s> : "none", "\\n"'`;

  it('reaches no server on the loopback of the host, and no address of the host', async () => {
    const [v4, v6, all] = [await listening('127.0.0.1'), await listening('::1'), await listening('::')];
    const own = ownAddresses();
    const script = [call('127.0.0.1', v4), call('::1', v6), ...own.map((address) => call(address, all))];
    expect(await run(script.join('\n'))).toBe('none\n'.repeat(script.length));
    const said = (await run(script.join('\n'), { network: 'host' })).trimEnd().split('\n');
    // What runs at the same time makes and removes bridges of an Engine, whose addresses are gone then.
    const left = new Set(['127.0.0.1', '::1', ...ownAddresses()]);
    expect(['127.0.0.1', '::1', ...own].filter((address, at) => said[at] !== 'host' && left.has(address))).toEqual([]);
  });

  it('reaches none of them by the name of its interface either, nor by a group that the host is in', async () => {
    const port = await listening('::');
    const heard: string[] = [];
    const udp = createSocket({ type: 'udp6' }, (text, from) => {
      heard.push(text.toString());
      udp.send('host', from.port, from.address);
    });
    udp.bind(port, '::');
    await once(udp, 'listening');
    // Where a kernel has no XFRM, docs/runtimes/process.md says that groups are open.
    const groups = spawnSync('unshare', ['-n', 'ip', 'xfrm', 'policy', 'list']).status === 0 ? ['224.0.0.1', 'ff02::1'] : [];
    const all = ['127.0.0.1', '127.0.0.53', '::1', ...ownAddresses(), ...linkAddresses(), ...groups];
    const dev = `export dev=$(ip -o link show up | sed 's/^[0-9]*: //; s/[:@].*//' | grep -vx lo | head -n 1)`;
    const script = [dev, ...all.flatMap(through(port)).map((each) => `${each} &`), 'wait'].join('\n');
    expect(await run(script)).toBe('none\nnone\n'.repeat(all.length));
    expect(heard).toEqual([]);
    udp.close();
  });

  it('takes no port of the host, whatever is free or not there', async () => {
    const port = await listening('127.0.0.1');
    const { agent, log } = await standby();
    const listen = `perl -MIO::Socket::IP -e '$| = 1; $s = IO::Socket::IP->new(LocalAddr => "127.0.0.1", LocalPort => ${port}, Listen => 5); print $s ? "mine" : "taken", "\\n"; while ($c = $s->accept) { print $c "thief" }'`;
    await runtime.release(agent, frame(agent, `${listen} & ${call('127.0.0.1', port)}; wait`), never);
    await log.until('mine\n');
    expect(await answer('127.0.0.1', port)).toBe('host');
    // As while a daemon restarts.
    await closeAll(open);
    expect(await answer('127.0.0.1', port)).toBe(null);
    await runtime.remove(agent);
    expect(await answer('127.0.0.1', port)).toBe(null);
  });

  it('has a loopback of its own', async () => {
    const server = `perl -MIO::Socket::IP -e '$| = 1; $s = IO::Socket::IP->new(LocalAddr => "127.0.0.1", LocalPort => 4321, Listen => 5); print "up\\n"; $c = $s->accept; print $c "job"'`;
    expect(await run(`${server} | { read up; ${call('127.0.0.1', 4321)}; }`)).toBe('job\n');
  });

  it('may not change its network, nor enter another', async () => {
    const { agent, log } = await standby();
    const tries = [
      'ip route flush table main',
      'ip link set lo down',
      'ip addr add 10.1.2.3/8 dev lo',
      'nsenter --net=/proc/1/ns/net true',
    ];
    const script = tries.map((each) => `${each} 2>/dev/null && echo "DID ${each}"`);
    await runtime.release(agent, frame(agent, script.join('\n')), never);
    await events.exit(agent);
    await log.ended;
    expect(log.text()).not.toContain('DID');
  });

  it('reaches one port of the host where onejob opens it, and no other', async () => {
    const [filter, other] = [await listening('127.0.0.1'), await listening('127.0.0.1')];
    const { agent, log } = await standby();
    const script = [call('127.0.0.1', filter), call('127.0.0.1', other), call('::1', other)];
    expect(await runtime.hostAddress('default', filter, never, agent)).toBe('127.0.0.1');
    expect(await runtime.hostAddress('default', filter, never, agent)).toBe('127.0.0.1');
    expect(helpersOf(agent)).toHaveLength(3);
    await runtime.release(agent, frame(agent, script.join('\n')), never);
    await events.exit(agent);
    await log.ended;
    expect(log.text()).toMatch(/\nhost\nnone\nnone\n$/);
    await runtime.remove(agent);
    expect(helpersOf(agent)).toEqual([]);
  });

  it('has a door from the start where its spec names one', async () => {
    const port = await listening('127.0.0.1');
    const spec = { ...specOf(plainRecipe), doors: [port] };
    await runtime.prepare(spec, () => {}, never);
    const log = follow(runtime, spec.agent);
    await runtime.release(spec.agent, frame(spec.agent, call('127.0.0.1', port)), never);
    await log.ended;
    expect(log.text()).toMatch(/\nhost\n$/);
  });

  it('keeps its network without a manager, and nothing of that outlives it', async () => {
    const port = await listening('127.0.0.1');
    const { agent, log } = await standby();
    await runtime.hostAddress('default', port, never, agent);
    const next = await createProcessRuntime({ owner, dir });
    await next.sweep(never);
    expect(helpersOf(agent)).toHaveLength(3);
    const counted = processesOf({ stateDir: dir, owner }).map(({ command }) => command);
    expect(helpersOf(agent).filter((command) => !counted.some((one) => command.startsWith(one.replace(/…$/, ''))))).toEqual([]);
    await next.release(agent, frame(agent, call('127.0.0.1', port)), never);
    await log.ended;
    expect(log.text()).toMatch(/\nhost\n$/);
    await next.remove(agent);
    expect(helpersOf(agent)).toEqual([]);
  });

  it.each(['its supervisor', 'all that it consists of'])('is removed whole if %s was killed', async (what) => {
    const port = await listening('127.0.0.1');
    const { agent } = await standby();
    await runtime.hostAddress('default', port, never, agent);
    const { pid = 0 } = supervisorOf(join(dir, 'agents', agent)) ?? {};
    process.kill(what === 'its supervisor' ? pid : -pid, 'SIGKILL');
    await runtime.remove(agent);
    expect(helpersOf(agent)).toEqual([]);
  });
});

/** Shell that sets up a host: a way out to another network namespace with servers, and a resolver on its loopback, then `exec`s. */
const labHost = `
  ip link set lo up && mount --bind "$0/resolv.conf" /etc/resolv.conf || exit
  ip link add up0 type veth peer name far0
  unshare -n sh -c 'until ip link set far0 up 2>/dev/null; do sleep 0.02; done; ip addr add 10.99.0.2/24 dev far0; exec perl "$0/far.pl"' "$0" &
  far=$!
  until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.02; done
  ip link set far0 netns $far && ip addr add 10.99.0.1/24 dev up0 && ip link set up0 up && ip route add default via 10.99.0.2 || exit
  perl "$0/resolver.pl" & resolver=$!
  "$@"; code=$?; kill $far $resolver; exit $code`;

/** Answers on TCP and UDP, port 7. */
const far = `use IO::Socket::IP; use IO::Select; $t = IO::Socket::IP->new(LocalAddr => "10.99.0.2", LocalPort => 7, Listen => 5) or die $@;
  $u = IO::Socket::IP->new(LocalAddr => "10.99.0.2", LocalPort => 7, Proto => "udp") or die $@;
  $all = IO::Select->new($t, $u);
  while (@r = $all->can_read) { for (@r) {
    if ($_ == $t) { $c = $t->accept; print $c "far, to ", $c->peerhost, "\\n"; close $c } else { $u->recv($x, 99); $u->send("udp $x") }
  } }`;

/** Every name has the address 10.1.2.3. */
const resolver = `use IO::Socket::IP; $u = IO::Socket::IP->new(LocalAddr => "127.0.0.53", LocalPort => 53, Proto => "udp") or die $@;
  while ($u->recv($q, 999)) { $u->send(substr($q, 0, 2) . pack("H*", "8180000100010000" . "0000") . substr($q, 12) . pack("H*", "c00c00010001000000050004" . "0a010203")) }`;

it.skipIf(lacks('bubblewrap', 'pasta', 'mount'))(
  'a job calls others as the host does, also by name where the resolver is on its loopback',
  async () => {
    const dir = mkdtempSync(join(tmpdir(), 'onejob-lab-'));
    writeFileSync(join(dir, 'resolv.conf'), 'nameserver 127.0.0.53\n');
    writeFileSync(join(dir, 'far.pl'), far);
    writeFileSync(join(dir, 'resolver.pl'), resolver);
    const udp = `perl -MIO::Socket::IP -e '$s = IO::Socket::IP->new(PeerHost => "10.99.0.2", PeerPort => 7, Proto => "udp"); $s->send("hello"); $s->recv($x, 99); print "$x\\n"'`;
    const tcp = `perl -MIO::Socket::IP -e '$s = IO::Socket::IP->new(PeerHost => "10.99.0.2", PeerPort => 7); print <$s>'`;
    const job = ['ip -6 route show default', udp, tcp, 'getent ahostsv4 some.lab | head -n 1'];
    const module = (path: string) => JSON.stringify(new URL(path, import.meta.url).href);
    const program = `
    const { createProcessRuntime } = await import(${module('./process.ts')});
    const { frame } = await import(${module('../gate.ts')});
    const runtime = await createProcessRuntime(${JSON.stringify({ owner: `lab-${process.pid}`, dir })});
    const never = new AbortController().signal;
    const spec = ${JSON.stringify(specOf(plainRecipe, { agent: 'lab-1' }))};
    await runtime.prepare(spec, () => {}, never);
    await runtime.release(spec.agent, frame(spec.agent, ${JSON.stringify(job.join('\n'))}), never);
    const start = { time: 0n, atTime: 0, stdout: 0, stderr: 0 };
    for await (const chunks of runtime.logs(spec.agent, start, never)) for (const { bytes } of chunks) process.stdout.write(bytes);
    await runtime.remove(spec.agent);
    await runtime.sweep(never);`;
    const args = ['--net', '--mount', 'sh', '-c', labHost, dir, process.execPath, '--input-type=module', '-e', program];
    const { stdout, stderr } = await runToEnd('unshare', args, { timeout: 40_000 });
    rmSync(dir, { recursive: true });
    const said = stdout.toString().split('\n').slice(2);
    expect(said, stderr).toEqual(['udp hello', 'far, to 10.99.0.1', expect.stringMatching(/^10\.1\.2\.3 +STREAM some\.lab$/), '']);
  },
);

async function closeAll(servers: readonly Server[]): Promise<void> {
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
}

/** What a server says; null if there is none. */
function answer(host: string, port: number): Promise<string | null> {
  return new Promise((resolve) => {
    const socket = connect({ host, port });
    socket.once('error', () => resolve(null));
    socket.once('data', (bytes) => {
      socket.destroy();
      resolve(bytes.toString());
    });
  });
}

/** Processes of the agent's network. */
function helpersOf(agent: AgentId): string[] {
  return allPids().flatMap((pid) => {
    const isMine = readOr(`/proc/${pid}/environ`, '').split('\0').includes(`${markVariable}=${agent}`);
    const command = readOr(`/proc/${pid}/cmdline`, '').split('\0');
    return isMine && (command[0] === 'cat' || command[0] === 'pasta') ? [command.join(' ')] : [];
  });
}

/** Shell that calls a server by TCP and UDP through the interface `$dev`, whatever routes say, and says what it answers. */
const through = (port: number) => (address: string) =>
  ['tcp', 'udp'].map((proto) => {
    const made = `IO::Socket::IP->new(PeerHost => shift, PeerPort => ${port}, Proto => "${proto}", Timeout => 1, Sockopts => [[SOL_SOCKET, 25, $ENV{dev}]])`;
    const answered = '$s && $s->send("job") && IO::Select->new($s)->can_read(1) && $s->recv($x, 9) && $x';
    const to = `'${address}'${address.startsWith('fe80') ? '%$dev' : ''}`;
    return `perl -MIO::Socket::IP -MIO::Select -MSocket -e '$s = ${made}; print ${answered} ? $x : "none", "\\n"' ${to}`;
  });

/** Of this machine's interfaces that lead out. */
function linkAddresses(): string[] {
  const { stdout } = spawnSync(
    'sh',
    ['-c', `for d in $(ip -6 route show default | sed 's/.* dev //; s/ .*//'); do ip -o -6 addr show scope link dev $d; done`],
    { encoding: 'utf8' },
  );
  return [...stdout.matchAll(/inet6 ([^/ ]+)/g)].map(([, address = '']) => address);
}

/** Of this machine's interfaces, those that are down as well. */
function ownAddresses(): string[] {
  const { stdout } = spawnSync('ip', ['-o', 'addr', 'show', 'scope', 'global'], { encoding: 'utf8' });
  return [...stdout.matchAll(/inet6? ([^/ ]+)/g)].map(([, address = '']) => address);
}

describe('a host on which no network can be made', () => {
  /** The programs of this host, with another pasta, or none. */
  async function probed(pasta: string | null, within = 50_000, seen: (agents: string) => void = () => {}) {
    using here = scratch();
    const bin = join(here.path, 'bin');
    mkdirSync(bin);
    // Under root pasta runs as another user.
    chmodSync(here.path, 0o755);
    for (const folder of searchPath.split(':').toReversed())
      for (const name of attempt(() => readdirSync(folder)) ?? []) {
        rmSync(join(bin, name), { force: true });
        if (!/^pas(ta|st)/.test(name)) symlinkSync(join(folder, name), join(bin, name));
      }
    if (pasta !== null) writeFileSync(join(bin, 'pasta'), `#!/bin/sh\n${pasta}\n`, { mode: 0o755 });
    const agents = join(here.path, 'agents');
    mkdirSync(join(agents, '.network-earlier/made'), { recursive: true });
    const trial = await probeNetwork(process.getuid?.() === 0, agents, bin, within);
    seen(agents);
    return trial;
  }

  it('has nothing left of a probe, nor of one that was cut off', async () => {
    let left: string[] | null = null;
    await probed(null, 50_000, (agents) => {
      left = readdirSync(agents);
    });
    expect(left).toEqual([]);
  });

  it('without pasta says what to install', async () => {
    expect(await probed(null)).toEqual({ end: 'absent', why: 'pasta (Debian package "passt") is not installed.' });
  });

  it('with a pasta that is too old says what it said', async () => {
    const old = `echo "pasta: unrecognized option '--config-net'" >&2; echo 'Usage: pasta [OPTION]...' >&2; echo '  -h, --help' >&2; exit 1`;
    const why = "pasta is installed but a probe network failed: pasta: unrecognized option '--config-net'.";
    expect(await probed(old)).toEqual({ end: 'fails', why });
  });

  it('with a pasta that takes too long says nothing about what this host can do', async () => {
    const why = 'pasta is installed, and a probe network was not there within 0.5 s.';
    expect(await probed('exec sleep 60', 500)).toEqual({ end: 'late', why });
  });
});

describe.skipIf(lacks('bubblewrap'))('a host on which bubblewrap does not run in time', () => {
  it('isolates its jobs all the same, and doctor says that this could not be shown', async () => {
    using here = scratch();
    const hurried = {
      ...systemClock,
      after(_: number, due: () => void) {
        due();
        return () => {};
      },
    };
    const host = await lookAtHost({ owner: `busy-${process.pid}`, dir: here.path, clock: hurried });
    expect([host.mode, host.filter === null]).toEqual(['bubblewrap', false]);
    expect(await hostFindings(host)).toContainEqual({
      level: 'warning',
      subject: 'isolation',
      message:
        'Bubblewrap is installed, and a probe sandbox did not run within 5 s. Jobs are isolated by it all the same, or do not start.',
      hint: expect.stringContaining('trials.json'),
    });
  });
});
