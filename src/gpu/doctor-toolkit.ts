/** What stands between the driver and a container: NVIDIA's container toolkit, and what the Engine does with it. Pure. */
import { compareVersions, leadingVersion } from '../images/version.ts';
import type { Finding } from '../runtimes/runtime.ts';
import type { DoctorFacts } from './doctor-facts.ts';
import type { GpuHostFacts } from './host-facts.ts';
import type { Inventory } from './inventory.ts';

/**
 * Versions below it let an image become root on the host: CVE-2024-0132 (fixed in 1.16.2), CVE-2025-23359 (1.17.4) and
 * CVE-2025-23266 (1.17.8), NVIDIA's security bulletins.
 */
const toolkitFloor = '1.17.8';

/** From it on the runtime `nvidia` injects by CDI instead of a hook (release notes of 1.18.0). */
const runtimeByCdi = '1.18.0';
/** From it on a device request becomes one for a CDI name, where there is an `nvidia-cdi-hook` (release notes of Docker Engine). */
const requestByCdi = '29.2';

export function toolkitFindings(
  inventory: Inventory,
  { toolkit, cli, engine, distribution, module, hasTool }: DoctorFacts,
): Finding[] {
  const isNvidia = inventory.devices.some(({ vendor }) => vendor === 'nvidia');
  const subject = 'container toolkit';
  const found: Finding[] = [];
  if (toolkit.kind === 'missing') {
    // A CDI specification may have been made elsewhere, and without an Engine nobody needs it.
    if (!isNvidia || engine === null || engine.way === 'cdi') return [];
    const message = "NVIDIA's container toolkit is not installed: the Engine cannot give a container a GPU.";
    const guide = 'https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html';
    const install = installer(distribution, 'install');
    const configure = 'sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker';
    const hint =
      install === null
        ? `Install it as ${guide} says, then type: ${configure}`
        : `Type: ${install} && ${configure} (where its packages are: ${guide})`;
    return [{ level: 'error', subject, message, hint }];
  }
  const { version } = toolkit;
  if (version === null || compareVersions(version, toolkitFloor) < 0) {
    const what = version === null ? 'is so old that it does not say its version' : `has version ${version}`;
    const message = `It ${what}; below ${toolkitFloor} an image can break out of its container and become root on this host (CVE-2024-0132, CVE-2025-23359, CVE-2025-23266).`;
    const upgrade = installer(distribution, 'upgrade');
    const hint = upgrade === null ? 'Install a newer nvidia-container-toolkit.' : `Type "${upgrade}".`;
    found.push({ level: 'warning', subject, message, hint });
  }
  if (cli === null || !(isNvidia || hasTool)) return found;
  // No pool of this host may have to do with containers.
  const level = engine === null ? 'warning' : 'error';
  const isKnown = inventory.findings.some(({ code }) => ['library-mismatch', 'driver-not-loaded', 'nvml-missing'].includes(code));
  if (cli.failure !== null && !isKnown) {
    const message = `nvidia-container-cli cannot use the driver, so no container will get a GPU: ${cli.failure}.`;
    found.push({ level, subject, message, hint: mendCli(cli.failure) });
  }
  const driver = module ?? leadingVersion(inventory.driver);
  if (cli.driver !== null && driver !== null && compareVersions(cli.driver, driver) !== 0) {
    const message = `nvidia-container-cli finds driver ${cli.driver}, and the one that is loaded is ${driver}: containers would get libraries that do not fit.`;
    found.push({ level, subject, message, hint: 'Type "sudo ldconfig"; if that does not help, reboot.' });
  }
  return found;
}

function mendCli(failure: string): string {
  if (/mismatch/i.test(failure)) return 'Type "sudo reboot".';
  if (/not loaded/i.test(failure)) return 'Type "sudo modprobe nvidia".';
  if (/cannot open shared object|load library/i.test(failure))
    return 'Type "sudo ldconfig"; if that does not help, install the libraries of the driver again.';
  return 'Type "sudo nvidia-container-cli -k -d /dev/tty info" and look at what it says.';
}

/** A command; null on a distribution that is not known. */
function installer(distribution: GpuHostFacts['distribution'], what: 'install' | 'upgrade'): string | null {
  const is = (...ids: string[]) => distribution.some((id) => ids.includes(id));
  const name = 'nvidia-container-toolkit';
  if (is('debian')) return what === 'install' ? `sudo apt-get install ${name}` : `sudo apt-get install --only-upgrade ${name}`;
  if (is('fedora', 'rhel')) return `sudo dnf ${what} ${name}`;
  if (is('suse', 'opensuse')) return `sudo zypper ${what === 'install' ? 'install' : 'update'} ${name}`;
  return null;
}

/** With systemd a `daemon-reload` writes the right to devices anew, and knows nothing of what a hook has added. */
export function cgroupFindings({ devices }: Inventory, { engine, toolkit }: DoctorFacts): Finding[] {
  if (engine === null || engine.cgroupDriver !== 'systemd' || !devices.some(({ vendor }) => vendor === 'nvidia')) return [];
  const version = toolkit.kind === 'there' ? toolkit.version : null;
  const older = (has: string | null, than: string) => has === null || compareVersions(has, than) < 0;
  const byHook =
    (engine.way === 'request' && older(leadingVersion(engine.version), requestByCdi)) ||
    (engine.way === 'runtime' && older(version, runtimeByCdi));
  if (!byHook) return [];
  const message =
    'The Engine keeps control groups by systemd and gives GPUs by a hook: each "systemctl daemon-reload" takes the GPUs from running containers.';
  const cdi = 'sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml';
  const turnOn = older(leadingVersion(engine.version), '25')
    ? 'write { "exec-opts": ["native.cgroupdriver=cgroupfs"] } into /etc/docker/daemon.json (or move to Docker Engine 25 or newer, which can grant by CDI)'
    : `grant by CDI: type "${cdi}" and write { "features": { "cdi": true } } into /etc/docker/daemon.json`;
  const hint = `To keep them, ${turnOn}; then "sudo systemctl restart docker".`;
  return [{ level: 'warning', subject: 'docker', message, hint }];
}
