/** `doctor` for a host with GPUs: problems, even invisible ones, with the command that fixes them. Pure. Unknown is not a finding. */

import type { Finding } from '../../base/finding.ts';
import { compareVersions, leadingVersion } from '../../base/version.ts';
import { capital } from '../../gpu/finding.ts';
import type { EngineFacts, GpuHostFacts } from '../../gpu/host-facts.ts';
import type { Device, GpuFinding, Inventory } from '../../gpu/inventory.ts';
import { isInMigMode } from '../../gpu/mig.ts';
import type { Arch } from '../../images/request.ts';
import { whyNotImage } from '../../images/search.ts';

export interface DoctorFacts extends GpuHostFacts {
  /** The Engine that grants devices; null where pools with devices do not use one, or it does not answer. */
  readonly engine: EngineFacts | null;
  /** Finished images of pools, with the devices they may run on. */
  readonly images: readonly { readonly pool: string; readonly image: string; readonly devices: readonly Device[] }[];
  /** null for one that no image is published for. */
  readonly arch: Arch | null;
}

/** The same host always gives the same findings, errors and warnings only. Never throws. */
export function gpuDoctor(inventory: Inventory, facts: DoctorFacts): Finding[] {
  const driver = driverFindings(inventory, facts);
  const covered = new Set(driver.flatMap((each) => each.covers));
  const seen = inventory.findings.filter((each) => !covered.has(each.code)).map((each) => findingOf(each, inventory, facts));
  return [
    ...driver.map(({ covers: _, ...finding }) => finding),
    ...seen,
    ...persistenceFindings(inventory, facts),
    ...fabricFindings(inventory, facts),
    ...toolkitFindings(inventory, facts),
    ...cgroupFindings(inventory, facts),
    ...upgradeFindings(inventory, facts),
    ...imageFindings(inventory, facts),
  ];
}

function findingOf({ level, code, subject, message, hint }: GpuFinding, inventory: Inventory, facts: DoctorFacts): Finding {
  const device = inventory.devices.find((one) => one.uuid === subject);
  const better = driverHint(code, facts) ?? (device === undefined ? null : migHint(code, device));
  // Some begin with their subject, which is shown separately here.
  const sentence = message.startsWith(subject) ? message.slice(subject.length).replace(/^:? /, '') : message;
  return { level, subject: subject === 'host' ? 'GPUs' : subject, message: capital(sentence), hint: better ?? hint, code };
}

function migHint(code: string, device: Device): string | null {
  const { uuid, index } = device;
  if (code === 'mig-empty') {
    const make = `"sudo nvidia-smi mig -i ${index ?? uuid} -cgi PROFILE -C"`;
    return `Create instances with ${make} ("nvidia-smi mig -lgip" lists the profiles; they do not outlive a reboot), or type "sudo nvidia-smi -i ${uuid} -mig 0".`;
  }
  if (code !== 'mig-pending') return null;
  return `While nothing uses it, type "sudo nvidia-smi --gpu-reset -i ${uuid}", or "sudo nvidia-smi -i ${uuid} -mig ${isInMigMode(device) ? 1 : 0}" to leave it as it is.`;
}

/** A finding, and the codes of findings in the inventory that it replaces. */
type Covering = Finding & { readonly covers: readonly string[] };

const missing = ['driver-not-loaded', 'no-driver', 'tool-missing', 'gpus-unseen'] as const;

function driverFindings({ devices }: Inventory, facts: GpuHostFacts): Covering[] {
  const { cards, modules, secureBoot } = facts;
  const nvidia = (cards ?? []).filter((card) => card.vendor === 'nvidia');
  const isLoaded = modules === null ? facts.module !== null : modules.has('nvidia');
  const nouveau = nvidia.filter((card) => card.driver === 'nouveau');
  const bare = nvidia.filter((card) => card.driver === null);
  const findings: Covering[] = [];
  if (nouveau.length > 0 || (nvidia.length > 0 && !isLoaded && modules?.has('nouveau') === true)) {
    const which = nouveau.length === 0 ? '' : `, which holds ${places(nouveau.map(({ pciId }) => pciId))}`;
    const message = `The module nouveau is loaded${which}: nouveau cannot run compute jobs, and prevents NVIDIA's driver from using the card.`;
    const hint = driverHint('nouveau-loaded', facts);
    findings.push({ level: 'error', subject: 'driver', message, hint, covers: ['nouveau-loaded', ...missing] });
  } else if (bare.length > 0 && !isLoaded && !devices.some(({ vendor }) => vendor === 'nvidia')) {
    const why = facts.hasTool ? 'is installed, but its module is not loaded into this kernel' : 'is not installed';
    const message = `No driver is loaded for ${places(bare.map(({ pciId }) => pciId))}: NVIDIA's driver ${why}.`;
    const hint = driverHint(facts.hasTool ? 'driver-not-loaded' : 'tool-missing', facts);
    findings.push({ level: 'error', subject: 'driver', message, hint, covers: missing });
  }
  // If the module is loaded, the firmware has accepted it.
  if (secureBoot === true && !isLoaded && nvidia.length > 0) {
    const message =
      'Secure Boot is on, and the module of the driver is not loaded: the kernel refuses a module whose key it does not know.';
    findings.push({ level: 'error', subject: 'secure boot', message, hint: enrol(facts), covers: [] });
  }
  return findings;
}

function places(pciIds: readonly string[]): string {
  return pciIds.length === 1 ? `the NVIDIA card at ${pciIds[0]}` : `the NVIDIA cards at ${pciIds.join(', ')}`;
}

/** A better hint for a finding of the inventory; null where its own is best. */
function driverHint(code: string, { distribution }: Pick<GpuHostFacts, 'distribution'>): string | null {
  const [isDebian, isFedora] = [distribution.includes('debian'), distribution.some((id) => id === 'fedora' || id === 'rhel')];
  switch (code) {
    case 'nouveau-loaded': {
      const keep = `printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | sudo tee /etc/modprobe.d/no-nouveau.conf`;
      const rebuild = isDebian ? ' && sudo update-initramfs -u' : isFedora ? ' && sudo dracut --force' : '';
      return `Install NVIDIA's driver, if it is not there yet, and type: ${keep}${rebuild} && sudo reboot`;
    }
    case 'driver-not-loaded': {
      const headers = isDebian ? 'apt-get install linux-headers-$(uname -r)' : 'dnf install kernel-devel-$(uname -r)';
      const build =
        isDebian || isFedora ? ` After a kernel upgrade, first type "sudo ${headers}" and "sudo dkms autoinstall".` : '';
      return `Type "sudo modprobe nvidia", and check dmesg if it fails.${build}`;
    }
    case 'tool-missing': {
      if (distribution.includes('ubuntu')) return 'Type "sudo ubuntu-drivers install --gpgpu" and reboot.';
      const packages = 'linux-headers-$(uname -r) nvidia-driver nvidia-smi';
      if (isDebian) return `Type "sudo apt-get install ${packages}" and reboot; they are in contrib and non-free.`;
      return "Install NVIDIA's driver: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ explains how for each distribution.";
    }
    case 'library-mismatch':
      return 'Type "sudo reboot" after the running jobs have ended: they continue, but new containers cannot use a GPU.';
    default:
      return null;
  }
}

/** Where DKMS keeps the key that it signs with. */
function enrol({ distribution }: GpuHostFacts): string {
  const key = distribution.includes('ubuntu') ? '/var/lib/shim-signed/mok/MOK.der' : '/var/lib/dkms/mok.pub';
  return `Type "sudo mokutil --import ${key}", reboot, and confirm the key at the console ("Enroll MOK"); or turn off Secure Boot in the firmware.`;
}

function persistenceFindings({ devices }: Inventory, { persistenced }: DoctorFacts): Finding[] {
  const off = devices.filter((device) => device.kind === 'gpu' && device.persistence === false);
  if (off.length === 0) return [];
  const cards = off.length === 1 ? `${off[0]?.uuid}` : `${off.length} GPUs`;
  const message = `Persistence mode is off for ${cards}: without a client the driver releases the card, each query wakes it again (which takes seconds), and settings are lost.`;
  // Ubuntu starts the daemon with an option that leaves the mode as it is.
  const hint =
    persistenced === true
      ? 'Type "sudo nvidia-smi -pm 1"; to keep it after a reboot, remove "--no-persistence-mode" from the unit: "sudo systemctl edit --full nvidia-persistenced".'
      : 'Type "sudo systemctl enable --now nvidia-persistenced", or, if there is no such unit, "sudo nvidia-smi -pm 1" after each boot.';
  return [{ level: 'warning', subject: 'GPUs', message, hint }];
}

function fabricFindings({ driver }: Inventory, { switches, fabricManager, module }: DoctorFacts): Finding[] {
  if (switches === 0) return [];
  const { active, version } = fabricManager;
  const wanted = module ?? driver;
  const about = { level: 'error', subject: 'fabric manager' } as const;
  const there = `This board has ${switches === 1 ? 'an NVSwitch' : `${switches} NVSwitches`}`;
  const consequence = 'CUDA fails with error 802 although nvidia-smi looks fine';
  const branch = wanted?.split('.')[0] ?? 'BRANCH';
  if (version !== null && wanted !== null && version !== wanted) {
    const message = `${there}, and its fabric manager has version ${version} while the driver has ${wanted}: the versions must be the same, or ${consequence}.`;
    return [{ ...about, message, hint: `Install version ${wanted} of nvidia-fabricmanager and restart it.` }];
  }
  if (active !== false) return [];
  const hint = `Type "sudo systemctl enable --now nvidia-fabricmanager"; if there is no such unit, first install nvidia-fabricmanager-${branch} (nvidia-fabricmanager from branch 590 on).`;
  return [{ ...about, message: `${there}, and nvidia-fabricmanager is not running: ${consequence}.`, hint }];
}

/** Older ones let an image become root on the host: CVE-2024-0132, CVE-2025-23359 and CVE-2025-23266 (fixed in 1.17.8). */
const toolkitFloor = '1.17.8';

/** First version whose runtime `nvidia` injects by CDI instead of a hook (release notes of 1.18.0). */
const runtimeByCdi = '1.18.0';
/** First version that turns a device request into a CDI name, if there is an `nvidia-cdi-hook` (release notes of Docker Engine). */
const requestByCdi = '29.2';

function toolkitFindings(inventory: Inventory, { toolkit, cli, engine, distribution, module, hasTool }: DoctorFacts): Finding[] {
  const isNvidia = inventory.devices.some(({ vendor }) => vendor === 'nvidia');
  const subject = 'container toolkit';
  const findings: Finding[] = [];
  if (toolkit.kind === 'missing') {
    // There may be a CDI specification from elsewhere, and without an Engine no pool needs it.
    if (!isNvidia || engine === null || engine.way === 'cdi') return [];
    const message = "NVIDIA's container toolkit is not installed: the Engine cannot give a container a GPU.";
    const guide = 'https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html';
    const install = installer(distribution, 'install');
    const configure = 'sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker';
    const hint =
      install === null
        ? `Install it as described at ${guide}, then type: ${configure}`
        : `Type: ${install} && ${configure} (for the package sources see ${guide})`;
    return [{ level: 'error', subject, message, hint }];
  }
  const { version } = toolkit;
  if (version === null || compareVersions(version, toolkitFloor) < 0) {
    const what = version === null ? 'is so old that it does not report its version' : `has version ${version}`;
    const message = `It ${what}; below ${toolkitFloor} an image can break out of its container and become root on this host (CVE-2024-0132, CVE-2025-23359, CVE-2025-23266).`;
    const upgrade = installer(distribution, 'upgrade');
    const hint = upgrade === null ? 'Install a newer nvidia-container-toolkit.' : `Type "${upgrade}".`;
    findings.push({ level: 'warning', subject, message, hint });
  }
  if (cli === null || !(isNvidia || hasTool)) return findings;
  // No pool of this host may use containers.
  const level = engine === null ? 'warning' : 'error';
  const isKnown = inventory.findings.some(({ code }) => ['library-mismatch', 'driver-not-loaded', 'nvml-missing'].includes(code));
  if (cli.failure !== null && !isKnown) {
    const message = `nvidia-container-cli cannot use the driver, so no container will get a GPU: ${cli.failure}.`;
    findings.push({ level, subject, message, hint: cliHint(cli.failure) });
  }
  const driver = module ?? leadingVersion(inventory.driver);
  if (cli.driver !== null && driver !== null && compareVersions(cli.driver, driver) !== 0) {
    const message = `nvidia-container-cli finds driver ${cli.driver}, but the loaded driver is ${driver}: containers would get libraries that do not match.`;
    findings.push({ level, subject, message, hint: 'Type "sudo ldconfig"; if that does not help, reboot.' });
  }
  return findings;
}

function cliHint(failure: string): string {
  if (/mismatch/i.test(failure)) return 'Type "sudo reboot".';
  if (/not loaded/i.test(failure)) return 'Type "sudo modprobe nvidia".';
  if (/cannot open shared object|load library/i.test(failure))
    return 'Type "sudo ldconfig"; if that does not help, reinstall the libraries of the driver.';
  return 'Type "sudo nvidia-container-cli -k -d /dev/tty info" and check what it prints.';
}

function installer(distribution: GpuHostFacts['distribution'], what: 'install' | 'upgrade'): string | null {
  const is = (...ids: string[]) => distribution.some((id) => ids.includes(id));
  const name = 'nvidia-container-toolkit';
  if (is('debian')) return what === 'install' ? `sudo apt-get install ${name}` : `sudo apt-get install --only-upgrade ${name}`;
  if (is('fedora', 'rhel')) return `sudo dnf ${what} ${name}`;
  if (is('suse', 'opensuse')) return `sudo zypper ${what === 'install' ? 'install' : 'update'} ${name}`;
  return null;
}

/** With systemd a `daemon-reload` writes the device permissions anew, without those that a hook has added. */
function cgroupFindings({ devices }: Inventory, { engine, toolkit }: DoctorFacts): Finding[] {
  if (engine === null || engine.cgroupDriver !== 'systemd' || !devices.some(({ vendor }) => vendor === 'nvidia')) return [];
  const version = toolkit.kind === 'there' ? toolkit.version : null;
  const older = (has: string | null, than: string) => has === null || compareVersions(has, than) < 0;
  const byHook =
    (engine.way === 'request' && older(leadingVersion(engine.version), requestByCdi)) ||
    (engine.way === 'runtime' && older(version, runtimeByCdi));
  if (!byHook) return [];
  const message =
    'The Engine manages control groups through systemd and grants GPUs through a hook: each "systemctl daemon-reload" removes the GPUs from running containers.';
  const cdi = 'sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml';
  const turnOn = older(leadingVersion(engine.version), '25')
    ? 'write { "exec-opts": ["native.cgroupdriver=cgroupfs"] } into /etc/docker/daemon.json (or upgrade to Docker Engine 25 or newer, which can grant GPUs through CDI)'
    : `grant GPUs through CDI: type "${cdi}" and write { "features": { "cdi": true } } into /etc/docker/daemon.json`;
  const hint = `To keep them, ${turnOn}; then "sudo systemctl restart docker".`;
  return [{ level: 'warning', subject: 'docker', message, hint }];
}

/** APT reads this file after Debian's own. */
const aptFile = '/etc/apt/apt.conf.d/51-keep-nvidia-driver';

function upgradeFindings({ devices }: Inventory, { apt }: DoctorFacts): Finding[] {
  if (apt === null || !apt.unattended || apt.open.length === 0 || !devices.some(({ vendor }) => vendor === 'nvidia')) return [];
  const [first = '', ...more] = apt.open;
  const which = more.length === 0 ? first : `${first} and ${more.length} more packages`;
  const message = `Unattended upgrades may replace the driver (${which}) while it is loaded: after that, no container gets a GPU until a reboot.`;
  const line = `Unattended-Upgrade::Package-Blacklist { ".*nvidia"; "libcuda1"; "cuda-drivers"; };`;
  return [{ level: 'warning', subject: 'driver', message, hint: `Type: echo '${line}' | sudo tee ${aptFile}` }];
}

function imageFindings(inventory: Inventory, { images, arch }: DoctorFacts): Finding[] {
  if (arch === null) return [];
  return images.flatMap(({ pool, image, devices }): Finding[] => {
    const why = whyNotImage(image, inventory, devices, arch);
    if (why === null) return [];
    const hint = 'Type "onejob image choose --explain" to find a suitable image, or write "image: auto".';
    return [{ level: 'error', subject: `pool ${pool}`, message: `Its image "${image}" ${why}.`, hint }];
  });
}
