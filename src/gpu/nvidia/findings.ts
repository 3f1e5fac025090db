/** Findings about NVIDIA GPUs: stable codes, and sentences that say what it means and what helps. */
import type { GpuFinding } from '../inventory.ts';

/** What a host's own files add to the tool's words. */
export interface HostFacts {
  /** Version of the kernel module that is loaded; null where it is not known. */
  readonly module: string | null;
}

/** Foreign text may be a part of any of it, and must not move a terminal's cursor. */
export function finding(
  level: GpuFinding['level'],
  code: string,
  subject: string,
  message: string,
  hint: string | null = null,
): GpuFinding {
  return { level, code, subject: plain(subject), message: plain(message), hint: hint === null ? null : plain(hint) };
}

export const kernelLog = 'Look for "NVRM" and "Xid" in the kernel log (dmesg).';
export const reboot = `Reboot the machine, cold if it comes back: no container can use this GPU before. ${kernelLog}`;

const host: Readonly<Record<string, (said: HostFacts & { readonly detail: string | null }) => GpuFinding>> = {
  'driver-not-loaded': () =>
    finding(
      'error',
      'driver-not-loaded',
      'host',
      "The NVIDIA driver's kernel module is not loaded.",
      'Type "modprobe nvidia". After an upgrade of the kernel install its headers and build the module (dkms autoinstall), then reboot; nouveau must not be loaded.',
    ),
  'library-mismatch': ({ module, detail }) =>
    finding(
      'error',
      'library-mismatch',
      'host',
      `The NVIDIA libraries${detail === null ? '' : ` (${detail})`} do not belong to the kernel module that is loaded${module === null ? '' : ` (${module})`}: running containers go on, new ones cannot use a GPU.`,
      'Reboot needed, or unload the nvidia modules while nothing uses them. Keep the driver out of unattended upgrades.',
    ),
  'no-devices': () =>
    finding(
      'error',
      'no-devices',
      'host',
      'The NVIDIA driver is loaded, but could start no GPU, or none was passed to this machine.',
      kernelLog,
    ),
  'insufficient-permissions': () =>
    finding(
      'error',
      'insufficient-permissions',
      'host',
      'nvidia-smi may not open the GPUs.',
      "Look at the rights of /dev/nvidia* (0666 is usual) and whether SELinux or the service's own device rules forbid them.",
    ),
  'nvml-missing': () =>
    finding(
      'error',
      'nvml-missing',
      'host',
      'nvidia-smi is there, but its library libnvidia-ml is not, or is too old for it.',
      "Install the driver's libraries of the same version (libnvidia-compute-… on Debian and Ubuntu), or run ldconfig.",
    ),
  'nvml-unknown-error': () =>
    finding(
      'error',
      'nvml-unknown-error',
      'host',
      'NVML answers "Unknown Error": inside a container this means that it lost its right to the devices, on a host that no GPU answers.',
      'Try on the host: if nvidia-smi works there, the container only has to be started anew (a daemon-reload takes devices away).',
    ),
  'nvml-failed': ({ detail }) =>
    finding('error', 'nvml-failed', 'host', `NVML could not start${detail === null ? '' : `: ${detail}`}.`, kernelLog),
  'tool-missing': () =>
    finding(
      'error',
      'tool-missing',
      'host',
      'nvidia-smi is not installed, or not on the path.',
      "Install the NVIDIA driver's tools.",
    ),
  'invalid-field': ({ detail }) =>
    finding(
      'warning',
      'invalid-field',
      'host',
      `This driver does not know the field${detail === null ? '' : ` "${detail}"`} and answered nothing at all.`,
      'Record without it; "nvidia-smi --help-query-gpu" lists what there is.',
    ),
  'invalid-argument': ({ detail }) =>
    finding(
      'warning',
      'invalid-argument',
      'host',
      `nvidia-smi did not understand what it was asked${detail === null ? '' : `: ${detail}`}.`,
    ),
  'not-supported': () => finding('warning', 'not-supported', 'host', 'nvidia-smi says that this is not supported here.'),
  'power-cable': () =>
    finding(
      'error',
      'power-cable',
      'host',
      'A GPU has no power: its external cables are not attached properly.',
      'Check the power cables.',
    ),
  'interrupt-problem': () =>
    finding('error', 'interrupt-problem', 'host', "The kernel has a problem with a GPU's interrupt.", kernelLog),
  'inforom-corrupt': () =>
    finding(
      'warning',
      'inforom-corrupt',
      'host',
      'The infoROM of a GPU is corrupt; it may be used, but reports itself unreliably.',
      'Ask the vendor.',
    ),
  'gpu-lost': () =>
    finding('error', 'gpu-lost', 'host', 'A GPU has fallen off the bus, and nvidia-smi does not say which.', reboot),
  'reset-required': () =>
    finding(
      'error',
      'reset-required',
      'host',
      'A GPU cannot be used before it is reset, and nvidia-smi does not say which.',
      'Reset it while nothing uses it (nvidia-smi --gpu-reset -i UUID), else reboot.',
    ),
};

/** A finding about the whole host by its code; those of `codes` and of the texts below. */
export function hostFinding(code: string, facts: HostFacts, detail: string | null = null): GpuFinding {
  const make = host[code];
  return make === undefined
    ? finding('error', 'tool-failed', 'host', `nvidia-smi failed${detail === null ? '' : `: ${detail}`}.`, kernelLog)
    : make({ ...facts, detail });
}

/** At most 120 letters, so that a finding stays one sentence whatever a tool printed. */
export function clip(text: string): string {
  const short = plain(text);
  return short.length <= 120 ? short : `${short.slice(0, 119)}…`;
}

/** What a tool printed instead of an answer, in its own words: its first three lines; null when it printed nothing. */
export function ownWords(text: string): string | null {
  const lines = text.split('\n').flatMap((line) => (line.trim() === '' ? [] : [clip(line.trim())]));
  return lines.length === 0 ? null : `${lines.slice(0, 3).join(' / ')}${lines.length > 3 ? ' / …' : ''}`;
}

/** Without what moves a cursor or begins a line. Whoever runs a process chooses its name, and a tool prints it as it is. */
export function plain(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is taken out
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g, ' ');
}

/** What to do with a GPU that has to be reset. */
export function resetHint(pciId: string | null): string {
  return `Reset it while nothing uses it (nvidia-smi --gpu-reset -i ${pciId ?? 'UUID'}), else reboot.`;
}
