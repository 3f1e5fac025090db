/** What a person learns about a host with GPUs, by its facts. */
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { card, hostWith } from '../../../test/kit/images.ts';
import { allRecordings, nvidia, recordings } from '../../../test/support/gpu-recordings.ts';
import { type Device, type Inventory, noGpus } from '../../gpu/inventory.ts';
import { nvidiaInventory } from '../../gpu/nvidia/nvidia.ts';
import type { PciCard } from '../../gpu/pci.ts';
import { readRecording } from '../../gpu/recording.ts';
import { recorded } from '../../gpu/run.ts';
import { type DoctorFacts, gpuDoctor } from './doctor.ts';

const onBus = (driver: string | null): PciCard => ({
  vendor: 'nvidia',
  pciId: '0000:01:00.0',
  isDisplay: true,
  chip: '0x20b2',
  driver,
  renderMinor: null,
});
/** A host of Ubuntu with nothing wrong. */
const well: DoctorFacts = {
  cards: [onBus('nvidia')],
  switches: 0,
  modules: new Set(['nvidia', 'nvidia_uvm', 'ext4']),
  module: '580.95.05',
  secureBoot: true,
  distribution: ['ubuntu', 'debian'],
  hasTool: true,
  toolkit: { kind: 'there', version: '1.18.0' },
  cli: { driver: '580.95.05', failure: null },
  persistenced: true,
  fabricManager: { active: null, version: null },
  apt: { unattended: true, open: [] },
  engine: { version: '29.0.1', cgroupDriver: 'systemd', way: 'cdi' },
  images: [],
  arch: 'amd64',
};
const a100 = (more: Partial<Device> = {}) =>
  card('NVIDIA A100-SXM4-40GB', '8.0', { uuid: 'GPU-a', persistence: true, mig: { mode: 'disabled', pending: null }, ...more });
const host = hostWith('580.95.05', '13.0', a100());
const doctor = (facts: Partial<DoctorFacts>, inventory: Inventory = host) => gpuDoctor(inventory, { ...well, ...facts });
const lines = (facts: Partial<DoctorFacts>, inventory: Inventory = host) =>
  doctor(facts, inventory).map(({ level, subject, message }) => `${level} ${subject}: ${message}`);

test('of a host that is well nothing is said, nor of one without a card', () => {
  expect(lines({})).toEqual([]);
  const without = {
    cards: [],
    modules: new Set(['ext4']),
    module: null,
    hasTool: false,
    toolkit: { kind: 'missing' },
    cli: null,
  } as const;
  expect(lines({ ...without, apt: { unattended: true, open: ['libnvidia-compute-580'] } }, noGpus)).toEqual([]);
});

test('a line names its card once', () => {
  const asks = {
    level: 'error',
    code: 'recovery-action',
    subject: 'GPU-a',
    message: 'GPU-a needs "GPU Reset".',
    hint: null,
  } as const;
  expect(lines({}, { ...host, findings: [asks, { ...asks, message: 'GPU-a: strange.' }] })).toEqual([
    'error GPU-a: Needs "GPU Reset".',
    'error GPU-a: Strange.',
  ]);
});

describe('the driver', () => {
  const gone = { modules: new Set(['ext4']), module: null, cards: [onBus(null)] };
  const broken = (text: string, code: number) =>
    nvidiaInventory({ xml: { ...recorded(text), code }, pciIds: ['0000:01:00.0'], procVersion: null, procGpus: [] });

  test('not installed, although a card is there', () => {
    const absent = broken('', 127);
    expect(lines({ ...gone, hasTool: false, secureBoot: false }, absent)).toEqual([
      "error driver: No driver is loaded for the NVIDIA card at 0000:01:00.0: NVIDIA's driver is not installed.",
    ]);
    const hint = (distribution: string[]) => doctor({ ...gone, hasTool: false, distribution }, absent)[0]?.hint;
    expect(hint(['ubuntu', 'debian'])).toContain('"sudo ubuntu-drivers install --gpgpu"');
    expect(hint(['debian'])).toContain('apt-get install linux-headers-$(uname -r) nvidia-driver');
    expect(hint(['rocky', 'rhel'])).toContain('https://docs.nvidia.com/');
  });

  test('installed, but not loaded: after an upgrade of the kernel, or by Secure Boot', () => {
    const unloaded = broken(nvidia('errors/driver-not-loaded.txt'), 9);
    const found = doctor({ ...gone, secureBoot: true }, unloaded);
    expect(found.map(({ message }) => message)).toEqual([
      "No driver is loaded for the NVIDIA card at 0000:01:00.0: NVIDIA's driver is installed, but its module is not loaded into this kernel.",
      'Secure Boot is on, and the module of the driver is not loaded: the kernel refuses a module whose key it does not know.',
    ]);
    expect(found.map(({ hint }) => hint)).toEqual([
      expect.stringMatching(
        /"sudo modprobe nvidia".*"sudo apt-get install linux-headers-\$\(uname -r\)" and "sudo dkms autoinstall"/,
      ),
      expect.stringContaining('"sudo mokutil --import /var/lib/shim-signed/mok/MOK.der"'),
    ]);
    expect(doctor({ ...gone, secureBoot: null }, unloaded)).toHaveLength(1);
  });

  test('kept from the card by nouveau', () => {
    const nouveau = { cards: [onBus('nouveau')], modules: new Set(['nouveau']), module: null, secureBoot: false };
    const [found, ...more] = doctor(nouveau, broken(nvidia('errors/driver-not-loaded.txt'), 9));
    expect(more).toEqual([]);
    expect(found).toMatchObject({
      level: 'error',
      message: expect.stringContaining('which holds the NVIDIA card at 0000:01:00.0'),
    });
    expect(found?.hint).toMatch(/no-nouveau\.conf && sudo update-initramfs -u && sudo reboot$/);
  });

  test('of another version than its libraries', () => {
    const mismatch = broken(nvidia('errors/version-mismatch-550.txt'), 18);
    const found = doctor(
      { cli: { driver: null, failure: 'initialization error: nvml error: driver/library version mismatch' } },
      mismatch,
    );
    expect(found.filter(({ message }) => /librar/.test(message))).toHaveLength(1);
    expect(found.find(({ message }) => /librar/.test(message))?.hint).toContain('"sudo reboot"');
  });

  test('that unattended upgrades may exchange', () => {
    const open = ['libnvidia-compute-580', 'nvidia-dkms-580', 'nvidia-utils-580'];
    const [found] = doctor({ apt: { unattended: true, open } });
    expect(found).toMatchObject({ level: 'warning', subject: 'driver' });
    expect(found?.message).toContain('(libnvidia-compute-580 and 2 more packages)');
    expect(found?.hint).toContain('Unattended-Upgrade::Package-Blacklist { ".*nvidia"; ');
    expect(lines({ apt: { unattended: false, open } })).toEqual([]);
    expect(lines({ apt: null })).toEqual([]);
  });
});

describe('the container toolkit', () => {
  test('missing, where an Engine needs it', () => {
    const missing = { toolkit: { kind: 'missing' }, cli: null } as const;
    const engine = { version: '20.10.24', cgroupDriver: 'cgroupfs', way: 'request' } as const;
    expect(lines({ ...missing, engine })).toEqual([
      "error container toolkit: NVIDIA's container toolkit is not installed: the Engine cannot give a container a GPU.",
    ]);
    expect(doctor({ ...missing, engine })[0]?.hint).toContain('sudo apt-get install nvidia-container-toolkit');
    expect(doctor({ ...missing, engine, distribution: ['rocky', 'rhel'] })[0]?.hint).toContain('sudo dnf install');
    expect(lines({ ...missing, engine: null })).toEqual([]);
    expect(lines({ ...missing, engine: { ...engine, way: 'cdi' } })).toEqual([]);
  });

  test.each([
    ['1.17.8', 0],
    ['1.20.0', 0],
    ['1.17.7', 1],
    ['1.9.0', 1],
    [null, 1],
  ])('of version %s is %i findings', (version, count) => {
    const found = doctor({ toolkit: { kind: 'there', version } });
    expect(found).toHaveLength(count);
    if (count > 0)
      expect(found[0]).toMatchObject({
        level: 'warning',
        hint: expect.stringContaining('--only-upgrade nvidia-container-toolkit'),
      });
  });

  test('whose cli cannot use the driver, or finds another', () => {
    const failure = 'initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file';
    expect(doctor({ cli: { driver: null, failure } })).toEqual([
      expect.objectContaining({
        level: 'error',
        message: expect.stringContaining(failure),
        hint: expect.stringContaining('ldconfig'),
      }),
    ]);
    expect(lines({ cli: { driver: '570.133.20', failure: null } })).toEqual([
      'error container toolkit: nvidia-container-cli finds driver 570.133.20, but the loaded driver is 580.95.05: containers would get libraries that do not match.',
    ]);
    expect(lines({ cli: { driver: null, failure: null } })).toEqual([]);
  });

  test.each<[DoctorFacts['engine'], string | null, RegExp | null]>([
    [{ version: '20.10.24', cgroupDriver: 'systemd', way: 'request' }, '1.18.0', /cgroupfs/],
    [{ version: '28.5.1', cgroupDriver: 'systemd', way: 'request' }, '1.18.0', /nvidia-ctk cdi generate/],
    [{ version: '29.2.0', cgroupDriver: 'systemd', way: 'request' }, '1.18.0', null],
    [{ version: '28.5.1', cgroupDriver: 'systemd', way: 'runtime' }, '1.17.8', /nvidia-ctk cdi generate/],
    [{ version: '28.5.1', cgroupDriver: 'systemd', way: 'runtime' }, '1.18.0', null],
    [{ version: '28.5.1', cgroupDriver: 'systemd', way: 'cdi' }, '1.17.8', null],
    [{ version: '20.10.24', cgroupDriver: 'cgroupfs', way: 'request' }, '1.18.0', null],
    [{ version: '20.10.24', cgroupDriver: null, way: 'request' }, '1.18.0', null],
    [null, '1.18.0', null],
  ])('%j, toolkit %s: whether a daemon-reload takes GPUs away', (engine, version, hint) => {
    const found = doctor({ engine, toolkit: { kind: 'there', version } });
    expect(found.map(({ subject }) => subject)).toEqual(hint === null ? [] : ['docker']);
    if (hint !== null)
      expect(found[0]).toMatchObject({ message: expect.stringContaining('daemon-reload'), hint: expect.stringMatching(hint) });
  });
});

describe('cards', () => {
  test('with persistence mode off, with the command that fixes it', () => {
    const off = hostWith('580.95.05', '13.0', a100({ persistence: false }), a100({ uuid: 'GPU-b', persistence: false }));
    expect(lines({}, off)).toEqual([expect.stringContaining('warning GPUs: Persistence mode is off for 2 GPUs: ')]);
    expect(doctor({ persistenced: false }, off)[0]?.hint).toContain('systemctl enable --now nvidia-persistenced');
    expect(doctor({ persistenced: true }, off)[0]?.hint).toContain('--no-persistence-mode');
    expect(lines({}, hostWith('6.8', null, a100({ vendor: 'amd', persistence: null })))).not.toContainEqual(
      expect.stringContaining('Persistence'),
    );
  });

  test('with MIG half set up', async () => {
    const finding = { level: 'warning', subject: 'GPU-a', message: 'm', hint: 'h' } as const;
    const pending = hostWith('580.95.05', '13.0', a100({ mig: { mode: 'disabled', pending: 'enabled' }, index: 3 }));
    const hints = (inventory: Inventory) => doctor({}, inventory).map(({ hint }) => hint);
    expect(hints({ ...pending, findings: [{ ...finding, code: 'mig-pending' }] })).toEqual([
      'While nothing uses it, type "sudo nvidia-smi --gpu-reset -i GPU-a", or "sudo nvidia-smi -i GPU-a -mig 0" to leave it as it is.',
    ]);
    expect(hints({ ...pending, findings: [{ ...finding, code: 'mig-empty' }] })[0]).toContain(
      '"sudo nvidia-smi mig -i 3 -cgi PROFILE -C"',
    );
  });

  test('on a board with NVSwitches, whose fabric manager must run and be of the same version', () => {
    const fabricManager = { active: true, version: '580.95.05' };
    expect(lines({ switches: 6, fabricManager })).toEqual([]);
    expect(lines({ switches: 6, fabricManager: { ...fabricManager, version: '580.82.07' } })).toEqual([
      expect.stringContaining('its fabric manager has version 580.82.07 while the driver has 580.95.05'),
    ]);
    expect(doctor({ switches: 6, fabricManager: { active: false, version: null } })).toEqual([
      expect.objectContaining({ level: 'error', hint: expect.stringContaining('nvidia-fabricmanager-580') }),
    ]);
    expect(lines({ switches: 6, fabricManager: { active: null, version: null } })).toEqual([]);
  });

  test('whose image the driver is too old for', () => {
    const images = [
      { pool: 'new', image: 'nvidia/cuda:13.3.1-devel-ubuntu24.04', devices: host.devices },
      { pool: 'old', image: 'nvidia/cuda:12.4.1-devel-ubuntu22.04', devices: host.devices },
      { pool: 'own', image: 'debian:stable-slim', devices: host.devices },
    ];
    const aged = { ...host, driver: '550.54.14', cuda: '12.4' };
    expect(doctor({ images, module: '550.54.14', cli: null }, aged)).toEqual([
      {
        level: 'error',
        subject: 'pool new',
        message:
          'Its image "nvidia/cuda:13.3.1-devel-ubuntu24.04" has CUDA 13.3, which needs driver 580 or newer; this host has 550.54.14.',
        hint: 'Type "onejob image choose --explain" to find a suitable image, or write "image: auto".',
      },
    ]);
    expect(lines({ images, arch: null, module: '550.54.14', cli: null }, aged)).toEqual([]);
  });
});

test('whatever was recorded of a host, each finding is a sentence, and most say what to type', async () => {
  const nothing = {
    ...well,
    cards: null,
    modules: null,
    module: null,
    secureBoot: null,
    distribution: [],
    toolkit: { kind: 'missing' },
  } as DoctorFacts;
  for (const file of allRecordings().filter((name) => /\.(xml|txt|json|csv)$/.test(name))) {
    const inventory = await readRecording(join(recordings, file));
    for (const facts of [well, nothing]) {
      for (const { message, level } of gpuDoctor(inventory, facts)) {
        expect(message).toMatch(/^\S.*[.?!)]$/);
        expect(['warning', 'error']).toContain(level);
      }
    }
  }
});
