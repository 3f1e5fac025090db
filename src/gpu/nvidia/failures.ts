/**
 * Error messages of nvidia-smi as findings with a stable code. It prints them to standard output, some with exit code 0 and half
 * an answer, so the text comes first, and the exit code counts where the text is unknown. Sources:
 * recordings (test/fixtures/gpu/nvidia-smi/errors) with their issues, and those in `errors.json`.
 */

import { clip, finding, ownWords } from '../finding.ts';
import type { GpuFinding } from '../inventory.ts';
import { normalPci } from '../pci.ts';
import type { Reply } from '../run.ts';
import errors from './errors.json' with { type: 'json' };

export const kernelLog = 'Search the kernel log (dmesg) for "NVRM" and "Xid".';
export const reboot = `Reboot the machine, or power-cycle it if the problem returns: until then no container can use this GPU. ${kernelLog}`;

export function resetHint(pciId: string | null): string {
  return `Reset it while nothing uses it (nvidia-smi --gpu-reset -i ${pciId ?? 'UUID'}), else reboot.`;
}

interface HostFailure {
  /** Default: an error. */
  readonly level?: 'warning';
  /** Made from the tool's own words and the version of the loaded kernel module, null where unknown. */
  readonly message: string | ((detail: string | null, module: string | null) => string);
  readonly hint?: string;
}

/** A part of a message; empty where `words` is null. */
const after = (before: string, words: string | null, behind = '') => (words === null ? '' : `${before}${words}${behind}`);

/** Findings about the whole host by code; any other code is `tool-failed`. */
const ofTheHost: Readonly<Record<string, HostFailure>> = {
  'driver-not-loaded': {
    message: "The NVIDIA driver's kernel module is not loaded.",
    hint: 'Type "modprobe nvidia". After a kernel upgrade, install its headers and build the module (dkms autoinstall), then reboot; nouveau must not be loaded.',
  },
  'library-mismatch': {
    message: (detail, module) =>
      `The NVIDIA libraries${after(' (', detail, ')')} do not match the loaded kernel module${after(' (', module, ')')}: running containers continue, new ones cannot use a GPU.`,
    hint: 'Reboot needed, or unload the nvidia modules while nothing uses them. Exclude the driver from unattended upgrades.',
  },
  'no-devices': {
    message: 'The NVIDIA driver is loaded, but it could not start any GPU, or no GPU was passed to this machine.',
    hint: kernelLog,
  },
  'insufficient-permissions': {
    message: 'nvidia-smi has no permission to open the GPUs.',
    hint: "Check the permissions of /dev/nvidia* (0666 is usual), and whether SELinux or the service's own device rules forbid access.",
  },
  'nvml-missing': {
    message: 'nvidia-smi is installed, but its library libnvidia-ml is missing or too old for it.',
    hint: "Install the driver's libraries of the same version (libnvidia-compute-… on Debian and Ubuntu), or run ldconfig.",
  },
  'nvml-unknown-error': {
    message:
      'NVML answers "Unknown Error": inside a container this means that the container lost its access to the devices, on a host that no GPU responds.',
    hint: 'Try nvidia-smi on the host: if it works there, restarting the container is enough (a daemon-reload removes its devices).',
  },
  'access-blocked': {
    message:
      'The operating system blocks access to the GPU. In WSL this means that the driver of Windows is missing, too old for this card, or was replaced by one installed in Linux.',
    hint: 'In WSL: install the newest NVIDIA driver in Windows, none in Linux, then type "wsl --update" and "wsl --shutdown" in Windows. Elsewhere, check whether a policy or another virtual machine holds the card.',
  },
  'nvml-failed': { message: (detail) => `NVML could not start${after(': ', detail)}.`, hint: kernelLog },
  'tool-missing': { message: 'nvidia-smi is not installed, or not on PATH.', hint: "Install the NVIDIA driver's tools." },
  'tool-failed': { message: (detail) => `nvidia-smi failed${after(': ', detail)}.`, hint: kernelLog },
  'invalid-argument': {
    level: 'warning',
    message: (detail) => `nvidia-smi did not understand its arguments${after(': ', detail)}.`,
  },
  'not-supported': { level: 'warning', message: 'nvidia-smi reports that this is not supported here.' },
  'power-cable': { message: 'A GPU has no power: its external cables are not attached properly.', hint: 'Check the power cables.' },
  'interrupt-problem': { message: "The kernel has a problem with a GPU's interrupt.", hint: kernelLog },
  'inforom-corrupt': {
    level: 'warning',
    message: 'The infoROM of a GPU is corrupt; the GPU may be used, but reports its state unreliably.',
    hint: 'Ask the vendor.',
  },
  'gpu-lost': { message: 'A GPU has fallen off the bus, but nvidia-smi does not report which one.', hint: reboot },
  'reset-required': {
    message: 'A GPU cannot be used before it is reset, but nvidia-smi does not report which one.',
    hint: resetHint(null),
  },
};

function hostFinding(code: string, module: string | null, detail: string | null = null): GpuFinding {
  const known = Object.hasOwn(ofTheHost, code) ? code : 'tool-failed';
  const { level = 'error', message = '', hint = null } = ofTheHost[known] ?? {};
  return finding(level, known, 'host', typeof message === 'string' ? message : message(detail, module), hint);
}

const codes = new Map<string, string>(Object.entries(errors.exitCodes));
const nvmlErrors = new Map<string, string>(Object.entries(errors.nvml));

const texts: readonly (readonly [RegExp, string])[] = [
  [/^NVIDIA-SMI has failed because it couldn'?t communicate with the NVIDIA driver/i, 'driver-not-loaded'],
  [/^No devices were found/i, 'no-devices'],
  [/^NVIDIA-SMI couldn'?t find (?:the )?(?:libnvidia-ml|nvml)/i, 'nvml-missing'],
  [/^(?:Invalid combination of input arguments|Option \S{1,60} is not recogni[sz]ed|ERROR: Option)/i, 'invalid-argument'],
  [/^(?:\S{1,80}: (?:(?:line )?\d{1,6}: )?)?nvidia-smi: (?:command )?not found/i, 'tool-missing'],
  [/^(?:\S{1,80}: )?\S{0,80}nvidia-smi: No such file or directory/i, 'tool-missing'],
  [/^(?:NVIDIA-SMI has failed|.{0,40}(?:Segmentation fault|core dumped)|cannot start \S{1,200}:)/i, 'tool-failed'],
];

/** Errors in a text that is not an answer, each once. `module`: version of the kernel module, null where unknown. */
export function failuresIn(text: string, module: string | null = null): readonly GpuFinding[] {
  const all = text.split('\n').flatMap((line) => failureIn(line.trim(), text, module));
  return all.filter((each, at) => all.findIndex((other) => other.code === each.code && other.subject === each.subject) === at);
}

function failureIn(line: string, text: string, module: string | null): readonly GpuFinding[] {
  if (line === '' || line.length > 600) return [];
  const handle = /^Unable to determine the device handle for (.{1,200})$/i.exec(line)?.[1];
  if (handle !== undefined) return [handleFinding(handle)];
  const nvml = /^Failed to initialize NVML: ?(.{1,200})$/i.exec(line)?.[1]?.trim();
  if (nvml !== undefined) {
    const library = /NVML library version: ?(\d[\d.]{1,20})/.exec(text)?.[1] ?? null;
    const code = nvmlErrors.get(nvml.toLowerCase().replace(/\.$/, '')) ?? 'nvml-failed';
    return [hostFinding(code, module, code === 'library-mismatch' ? library : nvml.replace(/\.$/, ''))];
  }
  const corrupt = /infoROM is corrupted at gpu (\S{7,20})/i.exec(line)?.[1];
  if (corrupt !== undefined) return [{ ...hostFinding('inforom-corrupt', module), subject: normalPci(corrupt) ?? 'host' }];
  if (/^warning: /i.test(line)) return [warningFinding(line)];
  const code = texts.find(([pattern]) => pattern.test(line))?.[1];
  return code === undefined ? [] : [hostFinding(code, module, line.replace(/\.$/, ''))];
}

/** What it says next to an answer may be why no program can use a card. */
function warningFinding(line: string): GpuFinding {
  const address = /\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b/i.exec(line)?.[0];
  const subject = (address === undefined ? null : normalPci(address)) ?? 'host';
  const hint = 'Check it before jobs use the card: the rest of the output may look fine.';
  return finding('warning', 'tool-warning', subject, `nvidia-smi warns: "${clip(line.replace(/^warning: /i, ''))}".`, hint);
}

/** `GPU 0000:0B:00.0: Unknown Error`, `GPU0000:07:00.0: …`, `GPU1: 0000:44:00.0: …`, `GPU2: …`, depending on the branch. */
function handleFinding(text: string): GpuFinding {
  const address = /[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]/i.exec(text)?.[0] ?? null;
  const pciId = address === null ? null : normalPci(address);
  const number = /^GPU ?(\d{1,3})\b(?!:[0-9a-f]{2}:)/i.exec(text)?.[1];
  const name = pciId ?? (number === undefined ? 'A GPU' : `GPU ${number}`);
  const subject = pciId ?? 'host';
  const rest = text.slice(address === null ? 0 : text.indexOf(address) + address.length);
  const reason = rest.replace(/^[^:]{0,10}: ?/, '').trim();
  if (/GPU is lost/i.test(reason))
    return finding('error', 'gpu-lost', subject, `${name} is lost: it has fallen off the bus.`, reboot);
  if (/requires? reset/i.test(reason))
    return finding('error', 'reset-required', subject, `${name} cannot be used before it is reset.`, resetHint(pciId));
  const message = `${name} does not respond${reason === '' ? '' : ` (${clip(reason)})`}: it is off the bus, or its part of the driver is stuck. nvidia-smi may not show the healthy GPUs either.`;
  return finding('error', 'device-handle', subject, message, reboot);
}

/** Why a call failed. `rest`: its output apart from an answer. */
export function failuresOf(reply: Reply, rest: string, module: string | null = null): readonly GpuFinding[] {
  const printed = failuresIn(rest, module);
  if (reply.hung) {
    const asked = clip([reply.tool, ...reply.args].join(' '));
    const message = `"${asked}" timed out: a GPU or its driver is stuck. onejob does not know which devices work.`;
    const hint = `${kernelLog} If "nvidia-smi" hangs for you too, only a reboot helps.`;
    return [...printed, finding('error', 'tool-hung', 'host', message, hint)];
  }
  if (printed.length > 0 || reply.code === null || reply.code === 0) return printed;
  const code = codes.get(String(reply.code));
  const words = ownWords(rest);
  if (code === undefined)
    return [hostFinding('tool-failed', module, `exit code ${reply.code}${words === null ? '' : `, ${words.replace(/\.$/, '')}`}`)];
  const known = hostFinding(code, module);
  // The meaning of the code is from the manual; the output may be more precise.
  return [words === null ? known : { ...known, message: `${known.message} It printed: "${words}".` }];
}
