/** Facts of simulated hosts: folders of the test, and small scripts instead of tools. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { emptyHost, fakeTools, hangs, plugIn } from '../../test/support/fake-tools/fake-tools.ts';
import { scratch } from '../../test/support/scratch.ts';
import { readHostFacts } from './host-facts.ts';
import { createRunner } from './run.ts';

/** A host with one card of NVIDIA's, unless a test takes it away; its tools say nothing but what the test has them say. */
function host({ hasCard = true, limit = 5_000 } = {}) {
  const dir = scratch();
  const { sys, proc } = emptyHost(dir.path);
  const etc = join(dir.path, 'etc');
  const tools = fakeTools(dir.path);
  // This machine's own must not answer.
  for (const tool of ['systemctl', 'apt-config', 'apt-mark', 'dpkg-query', 'mokutil']) tools.put(tool, 'exit 1');
  if (hasCard) plugIn(sys, '0000:01:00.0', { vendor: '0x10de', driver: 'nvidia' });
  const write = (path: string, content: string | Uint8Array) => {
    mkdirSync(dirname(join(dir.path, path)), { recursive: true });
    writeFileSync(join(dir.path, path), content);
  };
  const facts = () => readHostFacts({ runner: createRunner({ path: tools.path }), sys, proc, etc, limit });
  return { dir, sys, tools, write, facts, [Symbol.dispose]: () => dir[Symbol.dispose]() };
}

test('nothing there is nothing known, and no tool is asked where there is no card', async () => {
  using empty = host({ hasCard: false });
  expect(await empty.facts()).toEqual({
    cards: [],
    switches: 0,
    modules: null,
    module: null,
    secureBoot: null,
    distribution: [],
    hasTool: false,
    toolkit: { kind: 'missing' },
    cli: null,
    persistenced: null,
    fabricManager: { active: null, version: null },
    apt: null,
  });
  expect(['systemctl', 'apt-config', 'mokutil'].flatMap((tool) => empty.tools.calls(tool))).toEqual([]);
});

test('of the kernel: cards, switches, modules, the driver that is loaded; and whose distribution it is', async () => {
  using here = host();
  plugIn(here.sys, '0000:05:00.0', { vendor: '0x10de', class: '0x068000' });
  plugIn(here.sys, '0000:06:00.0', { vendor: '0x10de', class: '0x068000' });
  plugIn(here.sys, '0000:07:00.0', { vendor: '0x8086', class: '0x068000' });
  here.write('proc/modules', 'nvidia_uvm 1 0 - Live 0x0 (POE)\nnvidia 2 1 nvidia_uvm, Live 0x0 (POE)\next4 3 1 - Live 0x0\n');
  const version = 'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@x)\n';
  here.write('proc/driver/nvidia/version', version);
  here.write('etc/os-release', 'NAME="Rocky Linux"\nID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\n');
  const facts = await here.facts();
  expect(facts).toMatchObject({ switches: 2, module: '580.95.05', distribution: ['rocky', 'rhel', 'centos', 'fedora'] });
  expect(facts.cards).toMatchObject([{ pciId: '0000:01:00.0', driver: 'nvidia' }]);
  expect([...(facts.modules ?? [])]).toEqual(['nvidia_uvm', 'nvidia', 'ext4']);
});

describe('Secure Boot', () => {
  const variable = 'sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c';
  test.each([
    ['on, by the firmware', [6, 0, 0, 0, 1], 'exit 1', true],
    ['off, by the firmware', [6, 0, 0, 0, 0], 'echo SecureBoot enabled', false],
    ['on, by mokutil', null, 'echo SecureBoot enabled', true],
    ['off, by mokutil', null, 'echo SecureBoot disabled', false],
    ['off without EFI', null, 'echo "EFI variables are not supported on this system"; exit 255', false],
    ['unknown', null, 'echo "Failed to read SecureBoot"; exit 1', null],
    ['unknown for an invalid variable', [1], 'exit 1', null],
  ])('%s', async (_, bytes, mokutil, expected) => {
    using here = host();
    if (bytes !== null) here.write(variable, Uint8Array.from(bytes));
    here.tools.put('mokutil', mokutil);
    expect((await here.facts()).secureBoot).toBe(expected);
  });
});

describe("NVIDIA's container tools", () => {
  const ctk = (text: string) => `[ "$*" = --version ] && printf '${text}'`;
  test.each([
    ['NVIDIA Container Toolkit CLI version 1.17.8\\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d\\n', '1.17.8'],
    ['NVIDIA Container Toolkit CLI version 1.19.0-rc.7\\n', '1.19.0'],
    ['NVIDIA Container Toolkit CLI version unknown\\n', null],
    ['', null],
  ])('%s', async (text, version) => {
    using here = host();
    here.tools.put('nvidia-ctk', ctk(text));
    expect((await here.facts()).toolkit).toEqual({ kind: 'there', version });
  });

  test('from before nvidia-ctk', async () => {
    using here = host();
    here.tools.put('nvidia-container-runtime-hook', 'exit 1');
    expect((await here.facts()).toolkit).toEqual({ kind: 'there', version: null });
  });

  const info = `cat <<'EOF'
NVRM version:   535.104.05
CUDA version:   12.2

Device Index:   0
Model:          NVIDIA GeForce RTX 3090
EOF`;
  test.each([
    ['answers', info, { driver: '535.104.05', failure: null }],
    ['does not know the driver (Jetson)', 'echo "NVRM version:   (null)"', { driver: null, failure: null }],
    [
      'complains',
      'echo "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch" >&2; exit 1',
      { driver: null, failure: 'initialization error: nvml error: driver/library version mismatch' },
    ],
    ['dies in silence', 'kill -9 $$', { driver: null, failure: 'it ended with exit code 137' }],
    ['prints without end', 'yes', { driver: null, failure: expect.any(String) }],
  ])('a cli that %s', async (_, body, expected) => {
    using here = host();
    here.tools.put('nvidia-container-cli', `[ "$*" = info ] || exit 9\n${body}`);
    expect((await here.facts()).cli).toEqual(expected);
  });

  test('a cli that hangs does not block', async () => {
    using here = host({ limit: 200 });
    here.tools.put('nvidia-container-cli', hangs);
    expect((await here.facts()).cli).toEqual({ driver: null, failure: 'it timed out' });
  });
});

describe('services', () => {
  test.each([
    ['echo active', true],
    ['echo inactive; exit 3', false],
    ['echo failed; exit 3', false],
    ['echo unknown; exit 4', false],
    ['echo "System has not been booted with systemd as init system (PID 1)."; exit 1', null],
    ['exit 127', null],
  ])('%s', async (body, expected) => {
    using here = host();
    here.tools.put('systemctl', body);
    expect((await here.facts()).persistenced).toBe(expected);
    expect(here.tools.calls('systemctl')).toEqual(['is-active nvidia-persistenced']);
  });

  test('the fabric manager is asked for on a board with NVSwitches', async () => {
    using here = host();
    plugIn(here.sys, '0000:05:00.0', { vendor: '0x10de', class: '0x068000' });
    here.tools.put('systemctl', 'case "$2" in nvidia-fabricmanager) echo inactive; exit 3;; *) echo active;; esac');
    expect((await here.facts()).fabricManager).toEqual({ active: false, version: null });
    here.tools.put('nv-fabricmanager', 'echo "Fabric Manager version is : 535.104.05"');
    expect((await here.facts()).fabricManager).toEqual({ active: false, version: '535.104.05' });
  });
});

describe('unattended upgrades', () => {
  const config = `APT::Periodic "";
APT::Periodic::Update-Package-Lists "1";
APT::Periodic::Unattended-Upgrade "1";
Unattended-Upgrade "";
Unattended-Upgrade::Package-Blacklist "";
`;
  const installed = [
    'installed libnvidia-compute-580',
    'installed nvidia-dkms-580',
    'installed nvidia-container-toolkit',
    'installed linux-modules-nvidia-580-generic',
    'config-files nvidia-driver-535',
    'not-installed libcuda1',
  ];
  const drivers = ['libnvidia-compute-580', 'nvidia-dkms-580', 'linux-modules-nvidia-580-generic'];
  const withApt = (apt: string, holds: readonly string[] = [], upgrades = true) => {
    const here = host();
    here.write('apt', apt);
    here.tools.prints('apt-config', join(here.dir.path, 'apt'));
    here.tools.put('apt-mark', holds.length === 0 ? 'true' : `printf '%s\\n' ${holds.join(' ')}`);
    here.tools.put('dpkg-query', `printf '%s\\n' ${installed.map((line) => `'${line}'`).join(' ')}; exit 1`);
    if (upgrades) here.tools.put('unattended-upgrade', 'exit 1');
    return here;
  };

  test.each([
    ['none is kept', config, [], drivers],
    ['some are held', config, ['nvidia-dkms-580', 'vim'], [drivers[0], drivers[2]]],
    ['some are excepted', `${config}Unattended-Upgrade::Package-Blacklist:: "libnvidia-";\n`, [], drivers.slice(1)],
    ['all are excepted', `${config}Unattended-Upgrade::Package-Blacklist:: ".*nvidia";\n`, [], []],
    [
      'an exception is not an expression of ours',
      `${config}Unattended-Upgrade::Package-Blacklist:: "(?P<x>nvidia";\n`,
      [],
      drivers,
    ],
  ])('%s', async (_, apt, holds, open) => {
    using here = withApt(apt, holds);
    expect((await here.facts()).apt).toEqual({ unattended: true, open });
  });

  test('turned off, or not installed', async () => {
    using off = withApt(config.replace('Unattended-Upgrade "1"', 'Unattended-Upgrade "0"'));
    expect((await off.facts()).apt?.unattended).toBe(false);
    using absent = withApt(config, [], false);
    // A machine that runs this test may have it.
    if ((await createRunner({ path: '/usr/bin:/bin' }).find('unattended-upgrade')) === null) {
      expect((await absent.facts()).apt?.unattended).toBe(false);
    }
  });

  test('without an answer of APT are unknown', async () => {
    using here = withApt(config);
    here.tools.put('apt-config', 'echo E: broken >&2; exit 100');
    expect((await here.facts()).apt).toBeNull();
  });
});
