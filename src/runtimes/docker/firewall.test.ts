import { describe, expect, test } from 'vitest';
import {
  createFirewall,
  hostPortsIn,
  isEngines,
  missingRule,
  namesOf,
  removing,
  rulesFor,
  serversIn,
  serversOfDaemon,
  writing,
} from './firewall.ts';

const names = namesOf('0123456789ab');
const rules = rulesFor('ipv4', names, ['10.0.0.53', '10.0.0.53']);
const engines = '*filter\n:INPUT ACCEPT [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\n-A DOCKER-USER -j RETURN\nCOMMIT\n';
const standing = [
  engines.replace('COMMIT\n', ''),
  `:${names.forward} - [0:0]\n:${names.input} - [0:0]\n`,
  `-A INPUT -i ${names.bridge} -j ${names.input}\n-A DOCKER-USER -i ${names.bridge} -j ${names.forward}\n`,
  ...rules.forward.map((rule) => `-A ${names.forward} ${rule}\n`),
  ...rules.input.map((rule) => `-A ${names.input} ${rule}\n`),
  'COMMIT\n',
].join('');

test.runIf(process.getuid?.() === 0)('Podman next to a Docker Engine has no use for the chains of that', async () => {
  const firewall = createFirewall('podman', true, { isPodman: async () => true });
  expect(await firewall.obstacle()).toBe('Podman keeps its rules elsewhere than in the chain DOCKER-USER');
  await expect(firewall.guard()).rejects.toMatchObject({ code: 'E_NETWORK_UNGUARDED' });
});

describe('rules of the network internet', () => {
  test('names fit an interface and a chain, even for a long owner', () => {
    for (const owner of ['a', '0123456789ab', 'an-owner-of-many-letters-0123456789']) {
      const { bridge, forward, input } = namesOf(owner);
      expect(bridge.length).toBeLessThanOrEqual(15);
      expect(Math.max(forward.length, input.length)).toBeLessThanOrEqual(28);
    }
  });

  test('name servers may be asked for names, each rule once', () => {
    expect(rules.input.filter((rule) => rule.includes('10.0.0.53'))).toEqual([
      '-d 10.0.0.53/32 -p udp -m udp --dport 53 -j RETURN',
      '-d 10.0.0.53/32 -p tcp -m tcp --dport 53 -j RETURN',
    ]);
    expect(rules.input.at(-1)).toBe('-j REJECT');
  });

  test('IPv6 has no exception', () => {
    expect(rulesFor('ipv6', names, ['10.0.0.53']).forward.at(-1)).toBe('-j REJECT');
    expect(JSON.stringify(rulesFor('ipv6', names, ['10.0.0.53']))).not.toContain('RETURN');
  });

  test('a door is one TCP port, comes before the refusals, and is found again', () => {
    const doors = [{ address: '172.18.0.1', port: 8080 }];
    const { input, forward } = rulesFor('ipv4', names, ['10.0.0.53'], doors);
    expect(input.slice(2, -2)).toEqual([`-d 172.18.0.1/32 -i ${names.bridge} -p tcp -m tcp --dport 8080 -j RETURN`]);
    expect(forward).toEqual(rules.forward);
    const saved = standing.replace(`-A ${names.input} -p tcp`, `-A ${names.input} ${input[2]}\n-A ${names.input} -p tcp`);
    expect(hostPortsIn(saved, names)).toEqual(doors);
    expect(hostPortsIn(standing, names)).toEqual([]);
    expect(missingRule(saved, 'ipv4', names, { input, forward })).toBeNull();
    expect(rulesFor('ipv6', names, [], doors).input).toEqual(['-p tcp -j REJECT --reject-with tcp-reset', '-j REJECT']);
  });

  test('missing rules are reported', () => {
    expect(missingRule(standing, 'ipv4', names, rules)).toBeNull();
    expect(missingRule(engines, 'ipv4', names, rules)).toContain('DOCKER-USER');
    expect(missingRule(standing.replace(`-A INPUT -i ${names.bridge}`, '-A INPUT -i other'), 'ipv4', names, rules)).toContain(
      'INPUT',
    );
    expect(missingRule(standing.replace(`-A ${names.input} -j REJECT\n`, ''), 'ipv4', names, rules)).toContain(
      'has 3 rules instead of 4',
    );
  });

  test('writing again replaces the jumps, and removing takes all of ours and nothing else', () => {
    const again = writing(standing, 'ipv4', names, rules).split('\n');
    expect(again.filter((line) => line.startsWith('-D '))).toHaveLength(2);
    expect(again.filter((line) => line.startsWith('-I '))).toHaveLength(2);
    const gone = removing(standing, names);
    expect(gone?.split('\n').filter((line) => line.startsWith('-D ') || line.startsWith('-X '))).toHaveLength(4);
    expect(removing(standing, namesOf('another'))).toBeNull();
    expect(removing(engines, names)).toBeNull();
  });

  test("the Engine's firewall is told from an empty one", () => {
    expect(isEngines(engines)).toBe(true);
    expect(isEngines('*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n')).toBe(false);
    expect(isEngines(engines.replace('-A FORWARD -j DOCKER-USER\n', ''))).toBe(false);
  });
});

test('name servers are read as the Engine reads them', () => {
  expect(serversIn('# nameserver 1.1.1.1\nnameserver 10.1.1.1\n nameserver fd00::1\nsearch x\n')).toEqual(['10.1.1.1', 'fd00::1']);
  expect(serversOfDaemon('{ "dns": ["10.2.2.2"] }')).toEqual(['10.2.2.2']);
  expect(serversOfDaemon('')).toEqual([]);
  expect(serversOfDaemon('{ "dns": 3 }')).toEqual([]);
});
