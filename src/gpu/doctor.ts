/**
 * What `doctor` says of a host with GPUs: what the look at its devices found, with the command that mends it, and what nobody
 * sees before it breaks. Pure: a host is its inventory and its facts. What could not be found out is no finding.
 */

import { whyNotImage } from '../images/search.ts';
import type { Finding } from '../runtimes/runtime.ts';
import { driverFindings, mendDriver } from './doctor-driver.ts';
import type { DoctorFacts } from './doctor-facts.ts';
import { cgroupFindings, toolkitFindings } from './doctor-toolkit.ts';
import type { Device, GpuFinding, Inventory } from './inventory.ts';

/** The same host always gives the same findings, errors and warnings only. Never throws. */
export function gpuDoctor(inventory: Inventory, facts: DoctorFacts): Finding[] {
  const driver = driverFindings(inventory, facts);
  const covered = new Set(driver.flatMap((each) => each.covers));
  const seen = inventory.findings.filter((each) => !covered.has(each.code)).map((each) => shown(each, inventory, facts));
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

function shown({ level, code, subject, message, hint }: GpuFinding, inventory: Inventory, facts: DoctorFacts): Finding {
  const device = inventory.devices.find((one) => one.uuid === subject);
  const mended = mendDriver(code, facts) ?? (device === undefined ? null : mendMig(code, device));
  // Some begin with what they are about, which is said beside it here.
  const said = message.startsWith(`${subject}: `) ? message.slice(subject.length + 2) : message;
  return { level, subject: subject === 'host' ? 'GPUs' : subject, message: capital(said), hint: mended ?? hint };
}

function capital(text: string): string {
  return `${text.slice(0, 1).toUpperCase()}${text.slice(1)}`;
}

function mendMig(code: string, { uuid, index, mig }: Device): string | null {
  if (code === 'mig-empty') {
    const make = `"sudo nvidia-smi mig -i ${index ?? uuid} -cgi PROFILE -C"`;
    return `Make instances with ${make} ("nvidia-smi mig -lgip" lists the profiles; they do not outlive a reboot), or type "sudo nvidia-smi -i ${uuid} -mig 0".`;
  }
  if (code !== 'mig-pending') return null;
  const back = mig !== null && 'mode' in mig && mig.mode === 'enabled' ? 1 : 0;
  return `While nothing uses it type "sudo nvidia-smi --gpu-reset -i ${uuid}", or "sudo nvidia-smi -i ${uuid} -mig ${back}" to leave it as it is.`;
}

function persistenceFindings({ devices }: Inventory, { persistenced }: DoctorFacts): Finding[] {
  const off = devices.filter((device) => device.kind === 'gpu' && device.persistence === false);
  if (off.length === 0) return [];
  const cards = off.length === 1 ? `${off[0]?.uuid}` : `${off.length} GPUs`;
  const message = `Persistence mode is off for ${cards}: without a client the driver lets go of the card, each look wakes it again (seconds), and settings are lost.`;
  // Ubuntu starts the daemon in a way that leaves the mode as it is.
  const hint =
    persistenced === true
      ? 'Type "sudo nvidia-smi -pm 1"; for after a reboot, take "--no-persistence-mode" out of the unit: "sudo systemctl edit --full nvidia-persistenced".'
      : 'Type "sudo systemctl enable --now nvidia-persistenced", or "sudo nvidia-smi -pm 1" after each boot where there is no such unit.';
  return [{ level: 'warning', subject: 'GPUs', message, hint }];
}

function fabricFindings({ driver }: Inventory, { switches, fabricManager, module }: DoctorFacts): Finding[] {
  if (switches === 0) return [];
  const { active, version } = fabricManager;
  const wanted = module ?? driver;
  const about = { level: 'error', subject: 'fabric manager' } as const;
  const there = `This board has ${switches === 1 ? 'an NVSwitch' : `${switches} NVSwitches`}`;
  const consequence = 'CUDA ends with error 802 although nvidia-smi looks well';
  const branch = wanted?.split('.')[0] ?? 'BRANCH';
  if (version !== null && wanted !== null && version !== wanted) {
    const message = `${there}, and its fabric manager is ${version} while the driver is ${wanted}: they must be the same, or ${consequence}.`;
    return [{ ...about, message, hint: `Install nvidia-fabricmanager of version ${wanted} and restart it.` }];
  }
  if (active !== false) return [];
  const hint = `Type "sudo systemctl enable --now nvidia-fabricmanager"; where there is no such unit, install nvidia-fabricmanager-${branch} (nvidia-fabricmanager from branch 590 on) first.`;
  return [{ ...about, message: `${there}, and nvidia-fabricmanager does not run: ${consequence}.`, hint }];
}

/** Files of APT that end in the name below come after Debian's own. */
const aptFile = '/etc/apt/apt.conf.d/51-keep-nvidia-driver';

function upgradeFindings({ devices }: Inventory, { apt }: DoctorFacts): Finding[] {
  if (apt === null || !apt.unattended || apt.open.length === 0 || !devices.some(({ vendor }) => vendor === 'nvidia')) return [];
  const [first = '', ...more] = apt.open;
  const which = more.length === 0 ? first : `${first} and ${more.length} more packages`;
  const message = `Unattended upgrades may exchange the driver (${which}) while it is loaded: from then on no container gets a GPU until a reboot.`;
  const line = `Unattended-Upgrade::Package-Blacklist { ".*nvidia"; "libcuda1"; "cuda-drivers"; };`;
  return [{ level: 'warning', subject: 'driver', message, hint: `Type: echo '${line}' | sudo tee ${aptFile}` }];
}

function imageFindings(inventory: Inventory, { images, arch }: DoctorFacts): Finding[] {
  if (arch === null) return [];
  return images.flatMap(({ pool, image, devices }): Finding[] => {
    const why = whyNotImage(image, inventory, devices, arch);
    if (why === null) return [];
    const hint = 'Type "onejob image choose --explain" for one that can be used, or write "image: auto".';
    return [{ level: 'error', subject: `pool ${pool}`, message: `Its image "${image}" ${why}.`, hint }];
  });
}
