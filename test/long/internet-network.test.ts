/** The network `internet`, with real packets: what it reaches, what it does not, and that nothing can take its rules away for long. */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { DockerRuntime } from '../../src/runtimes/docker/docker.ts';
import { missingRule, namesOf, rulesFor, writing } from '../../src/runtimes/docker/firewall.ts';
import { frame, readyMarker } from '../../src/runtimes/gate.ts';
import { anOwner, recipe } from '../kit/docker-runtime.ts';
import { follow, specOf, watch } from '../kit/runtime-contract/contract.ts';
import { privateEngine } from '../support/dockerd.ts';
import { ensureImages } from '../support/images.ts';
import { engineIptables } from '../support/iptables.ts';
import { lacks } from '../support/require.ts';

const ip = (...args: string[]) => execFileSync('ip', args);
const never = () => new AbortController().signal;
const quiet = () => {};

/**
 * Other machines, as containers see them: a network namespace with two private addresses and a public one, which answers
 * at ports 53 and 80.
 */
async function anotherMachine() {
  const outside = `ojt${process.pid}`.slice(0, 15);
  const [nameserver, neighbour, far] = ['10.213.77.53', '10.213.77.80', '44.128.77.80'];
  const script = `read go; ip link set lo up; ip link set ojpeer up; ip addr add 10.213.77.2/24 dev ojpeer
    for a in ${nameserver} ${neighbour}; do ip addr add $a/24 dev ojpeer; done; ip addr add ${far}/32 dev ojpeer
    ip route add default via 10.213.77.1
    for p in 53 80; do
      busybox nc -ll -p $p -e busybox echo "here is $p" & all="$all $!"
      listens=$(printf ':%04X [^ ]* 0A ' $p)
      until grep -qs "$listens" /proc/net/tcp /proc/net/tcp6 || ! kill -0 $!; do sleep 0.05; done
    done
    echo up; cat >/dev/null; kill $all`;
  const holder = spawn('unshare', ['-n', 'sh', '-c', `echo; ${script}`], { stdio: ['pipe', 'pipe', 'inherit'] });
  const close = async () => {
    const gone = once(holder, 'exit');
    holder.stdin.end('\n');
    if (holder.exitCode === null) await gone;
    execFileSync('sh', ['-c', `ip link del ${outside} 2>/dev/null || :`]);
  };
  try {
    await once(holder.stdout, 'data');
    ip('link', 'add', outside, 'type', 'veth', 'peer', 'name', 'ojpeer', 'netns', String(holder.pid));
    ip('addr', 'add', '10.213.77.1/24', 'dev', outside);
    ip('link', 'set', outside, 'up');
    ip('route', 'add', `${far}/32`, 'dev', outside);
    holder.stdin.write('\n');
    await once(holder.stdout, 'data');
  } catch (error) {
    await close();
    throw error;
  }
  return {
    nameserver,
    neighbour,
    far,
    host: '10.213.77.1',
    [Symbol.asyncDispose]: close,
  };
}

const saved = (command: string): string => execFileSync(command, ['-t', 'filter'], { stdio: 'pipe' }).toString();
const firewall = (): string =>
  saved(`${engineIptables()}-save`) + saved(`${engineIptables().replace('iptables', 'ip6tables')}-save`);

describe.skipIf(lacks('docker', 'busybox', 'root'))('network internet', { timeout: 60_000 }, () => {
  const { owner, make, leftovers } = anOwner();
  const names = namesOf(owner);
  let machine: Awaited<ReturnType<typeof anotherMachine>>;
  let runtime: DockerRuntime;
  let events: ReturnType<typeof watch>;
  const host = createServer((socket) => socket.end('here is the host\n'));
  let port: number;

  beforeAll(async () => {
    await ensureImages();
    machine = await anotherMachine();
    host.listen(0, '0.0.0.0');
    await once(host, 'listening');
    const address = host.address();
    port = typeof address === 'object' ? (address?.port ?? 0) : 0;
    runtime = await make({ nameservers: async () => [machine.nameserver] });
    events = watch(runtime);
    await events.connected();
  });
  afterAll(async () => {
    await machine[Symbol.asyncDispose]();
    host.close();
    for (const { agent } of await runtime.list(never())) await runtime.remove(agent);
    await runtime.sweep(never());
    await events.stop();
    runtime.close();
    expect(await leftovers()).toEqual([]);
    expect(firewall()).not.toContain(owner);
  });

  const standby = async (network: string) => {
    const spec = specOf({ ...recipe, network });
    await runtime.prepare(spec, quiet, never());
    const log = follow(runtime, spec.agent);
    await log.until(readyMarker(spec.agent));
    return async (script: string) => {
      await runtime.release(spec.agent, frame(spec.agent, script), never());
      await events.exit(spec.agent);
      await log.ended;
      return log.text().split('\n').slice(2, -1);
    };
  };
  const tries = (): Record<string, string> => ({
    far: `${machine.far} 80`,
    neighbour: `${machine.neighbour} 80`,
    'name server': `${machine.nameserver} 53`,
    "name server's other port": `${machine.nameserver} 80`,
    "neighbour's port 53": `${machine.neighbour} 53`,
    'host by its gateway': `$gateway ${port}`,
    'host by another address': `${machine.host} ${port}`,
  });
  const trying = () =>
    [
      `gateway=$(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p')`,
      ...Object.entries(tries()).map(
        ([what, where]) => `nc -w 5 ${where} </dev/null 2>/dev/null | grep -q '^here is' && echo "${what}"`,
      ),
      'exit 0',
    ].join('\n');

  test('jobs reach the internet and their name server; neighbours and the host only from the default network', async () => {
    const [open, closed] = await Promise.all([standby('default'), standby('internet')]);
    expect(await open(trying())).toEqual(Object.keys(tries()));
    expect(await closed(trying())).toEqual(['far', 'name server']);
  });

  test('jobs do not reach each other, and have no IPv6', async () => {
    const listener = await standby('internet');
    const caller = await standby('internet');
    void listener('exec nc -ll -p 5000 -e echo here');
    const net = '$(hostname -i | sed "s/[0-9]*$//")';
    const script = `ip -6 addr show eth0 | grep -c inet6; for n in 2 3 4 5; do nc -w 1 ${net}$n 5000 </dev/null 2>/dev/null; done; exit 0`;
    expect(await caller(script)).toEqual(['0']);
  });

  test('rules that somebody took away are back before the next sandbox starts, and once only', async () => {
    await standby('internet');
    const before = firewall()
      .split('\n')
      .filter((line) => line.includes(owner));
    const iptables = engineIptables();
    execFileSync('sh', ['-c', `${iptables} -w -D INPUT -i ${names.bridge} -j ${names.input}; ${iptables} -w -F ${names.forward}`]);
    const closed = await standby('internet');
    expect(await closed(trying())).toEqual(['far', 'name server']);
    expect(
      firewall()
        .split('\n')
        .filter((line) => line.includes(owner)),
    ).toEqual(before);
    // A firewall that was emptied while jobs run is restored by the next look at all of them.
    execFileSync('sh', ['-c', `${iptables} -w -D DOCKER-USER -i ${names.bridge} -j ${names.forward}`]);
    await runtime.list(never());
    expect(firewall()).toContain(`-A DOCKER-USER -i ${names.bridge} -j ${names.forward}`);
  });

  test('another manager of the same owner finds the rules, changes nothing and can sweep them', async () => {
    const other = await make({ nameservers: async () => [machine.nameserver] });
    const spec = specOf({ ...recipe, network: 'internet' });
    await other.prepare(spec, quiet, never());
    for (const { agent } of await other.list(never())) await other.remove(agent);
    await other.sweep(never());
    other.close();
    expect(firewall()).not.toContain(owner);
    expect(await leftovers()).toEqual([]);
    // And it is made anew when it is needed again.
    expect(await (await standby('internet'))(trying())).toEqual(['far', 'name server']);
  });

  test('doctor says that it can be had', async () => {
    expect((await runtime.check(never())).map((one) => one.message)).toContain('Pools may use network: internet.');
  });
});

describe.skipIf(lacks('docker', 'dockerd', 'busybox'))('an Engine whose packets pass elsewhere', { timeout: 60_000 }, () => {
  test('is refused the network internet, with the reason, and nothing is left', async () => {
    await using engine = await privateEngine();
    await ensureImages(engine.socket);
    const { owner, make, leftovers } = anOwner(engine.socket);
    const runtime = await make();
    const spec = specOf({ ...recipe, network: 'internet' });
    await expect(runtime.prepare(spec, quiet, never())).rejects.toMatchObject({
      code: 'E_NETWORK_UNGUARDED',
      retry: false,
      message: expect.stringMatching(/not on the network that onejob sees|DOCKER-USER/),
    });
    await runtime.remove(spec.agent);
    expect(await leftovers()).toEqual([]);
    expect(firewall()).not.toContain(owner);
    runtime.close();
  });

  test('that restarts or is killed leaves the rules alone', async () => {
    await using engine = await privateEngine();
    const inside = (command: string, input = '') =>
      execFileSync('nsenter', [`--net=/proc/${engine.pid}/ns/net`, 'sh', '-c', `${command} 2>/dev/null`], { input }).toString();
    const names = namesOf('restarted');
    const rules = rulesFor('ipv4', names, ['10.0.0.53']);
    const before = inside('iptables-save -t filter');
    expect(missingRule(before, 'ipv4', names, rules)).toContain('no rule leads from DOCKER-USER');
    inside('iptables-restore --noflush', writing(before, 'ipv4', names, rules));
    for (const how of ['stop', 'kill'] as const) {
      await engine[how]();
      await engine.start();
      const after = inside('iptables-save -t filter');
      expect(missingRule(after, 'ipv4', names, rules)).toBeNull();
      expect(after.indexOf('-A FORWARD -j DOCKER-USER')).toBe(after.indexOf('-A FORWARD '));
    }
  });
});
