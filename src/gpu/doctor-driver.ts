/** Why there is no driver that works, and what to type on this distribution. Pure. */
import type { Finding } from '../runtimes/runtime.ts';
import type { GpuHostFacts } from './host-facts.ts';
import type { Inventory } from './inventory.ts';

/** A finding, and the codes of those in the inventory that it says better. */
export type Covering = Finding & { readonly covers: readonly string[] };

const missing = ['driver-not-loaded', 'no-driver', 'tool-missing', 'gpus-unseen'] as const;

/** Cards of NVIDIA's that its driver does not have, and what keeps it from them. */
export function driverFindings({ devices }: Inventory, facts: GpuHostFacts): Covering[] {
  const { cards, modules, secureBoot } = facts;
  const nvidia = (cards ?? []).filter((card) => card.vendor === 'nvidia');
  const isLoaded = modules === null ? facts.module !== null : modules.has('nvidia');
  const held = nvidia.filter((card) => card.driver === 'nouveau');
  const bare = nvidia.filter((card) => card.driver === null);
  const found: Covering[] = [];
  if (held.length > 0 || (nvidia.length > 0 && !isLoaded && modules?.has('nouveau') === true)) {
    const which = held.length === 0 ? '' : `, which holds ${places(held.map(({ pciId }) => pciId))}`;
    const message = `The module nouveau is loaded${which}: with it nothing can be computed, and NVIDIA's driver cannot have the card.`;
    found.push({
      level: 'error',
      subject: 'driver',
      message,
      hint: mendDriver('nouveau-loaded', facts),
      covers: ['nouveau-loaded', ...missing],
    });
  } else if (bare.length > 0 && !isLoaded && !devices.some(({ vendor }) => vendor === 'nvidia')) {
    const message = facts.hasTool
      ? `${places(bare.map(({ pciId }) => pciId))}: NVIDIA's driver is installed, but its module is not loaded into this kernel.`
      : `${places(bare.map(({ pciId }) => pciId))}: NVIDIA's driver is not installed.`;
    const hint = mendDriver(facts.hasTool ? 'driver-not-loaded' : 'tool-missing', facts);
    found.push({ level: 'error', subject: 'driver', message: `No driver has ${message}`, hint, covers: missing });
  }
  // With a module that is loaded the firmware was content.
  if (secureBoot === true && !isLoaded && nvidia.length > 0) {
    const message =
      'Secure Boot is on, and the module of the driver is not loaded: the kernel refuses one whose key it does not know.';
    found.push({ level: 'error', subject: 'secure boot', message, hint: enrol(facts), covers: [] });
  }
  return found;
}

function places(pciIds: readonly string[]): string {
  return pciIds.length === 1 ? `the NVIDIA card at ${pciIds[0]}` : `the NVIDIA cards at ${pciIds.join(', ')}`;
}

/** What to type about a finding of the inventory; null where there is nothing better than its own hint. */
export function mendDriver(code: string, { distribution }: Pick<GpuHostFacts, 'distribution'>): string | null {
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
        isDebian || isFedora ? ` After an upgrade of the kernel first "sudo ${headers}" and "sudo dkms autoinstall".` : '';
      return `Type "sudo modprobe nvidia", and look into dmesg if it fails.${build}`;
    }
    case 'tool-missing': {
      if (distribution.includes('ubuntu')) return 'Type "sudo ubuntu-drivers install --gpgpu" and reboot.';
      const packages = 'linux-headers-$(uname -r) nvidia-driver nvidia-smi';
      if (isDebian) return `Type "sudo apt-get install ${packages}" and reboot; they are in contrib and non-free.`;
      return "Install NVIDIA's driver: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ says how for each distribution.";
    }
    case 'library-mismatch':
      return 'Type "sudo reboot" once the running jobs have ended: they go on, but new containers cannot use a GPU.';
    default:
      return null;
  }
}

/** Where DKMS keeps the key that it signs with. */
function enrol({ distribution }: GpuHostFacts): string {
  const key = distribution.includes('ubuntu') ? '/var/lib/shim-signed/mok/MOK.der' : '/var/lib/dkms/mok.pub';
  return `Type "sudo mokutil --import ${key}", reboot, and confirm the key at the console ("Enroll MOK"); or switch Secure Boot off in the firmware.`;
}
