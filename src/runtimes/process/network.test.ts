/** The network of a sandbox, with real sandboxes: what a job can take and reach of this host. No packet leaves this machine. */
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { leftoversOf, plainRecipe } from '../../../test/kit/process-runtime.ts';
import { follow, specOf, watch } from '../../../test/kit/runtime-contract/contract.ts';
import { lacks } from '../../../test/support/require.ts';
import type { AgentId } from '../../core/slot.ts';
import { allPids, markVariable, readOr } from '../../system/process-identity.ts';
import { frame, MarkerFilter, readyMarker } from '../gate.ts';
import type { Recipe, Runtime } from '../runtime.ts';
import { supervisorOf } from './folder.ts';
import { createProcessRuntime } from './process.ts';

const never = new AbortController().signal;

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
    expect(await run(script.join('\n'), { network: 'host' })).toBe('host\n'.repeat(script.length));
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

/** Of this machine's interfaces, those that are down as well. */
function ownAddresses(): string[] {
  const { stdout } = spawnSync('ip', ['-o', 'addr', 'show', 'scope', 'global'], { encoding: 'utf8' });
  return [...stdout.matchAll(/inet6? ([^/ ]+)/g)].map(([, address = '']) => address);
}
