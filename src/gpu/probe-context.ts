/** What a probe gives the modules of the vendors to query a host, and the findings about a tool that did not answer. */
import { finding } from './finding.ts';
import type { Device, GpuFinding } from './inventory.ts';
import type { PciCard } from './pci.ts';
import type { ToolReply } from './run.ts';

export interface ProbeContext {
  /** Runs a tool within the look's time limit; never rejects. */
  run(tool: string, ...args: readonly string[]): Promise<ToolReply>;
  has(tool: string): Promise<boolean>;
  /** All GPUs on the bus; null where that is unknown. */
  readonly pci: readonly PciCard[] | null;
  readonly sys: string;
  readonly proc: string;
}

/** Why a reply is not a complete answer; null when it is one. */
export function failureOf(reply: ToolReply): GpuFinding | null {
  const call = [reply.tool, ...reply.args].join(' ');
  const failure = (code: string, message: string, hint = 'Run it and check what it prints.') =>
    finding('error', code, 'host', message, hint);
  if (reply.hung) return failure('tool-hung', `"${call}" timed out, so the state of the GPUs is unknown.`, hungHint(reply.tool));
  if (reply.cut) return failure('output-too-large', `"${call}" printed more than 16 MiB, so onejob ended it.`);
  if (reply.code === 0) return null;
  const last = reply.output.split('\n').findLast((line) => line.trim() !== '');
  const end = reply.code === null ? 'no exit code' : `exit code ${reply.code}`;
  return failure('tool-failed', `"${call}" ended with ${end}: ${(last?.trim() ?? 'nothing').slice(0, 200)}`);
}

export function hungHint(tool: string): string {
  return `Check with "ps -C ${tool} -o pid,stat,wchan" and "dmesg | tail": only a reboot ends a process in state D.`;
}

/** `device` with its render node where only the kernel reports it. */
export function withRenderNode(device: Device, cards: readonly PciCard[]): Device {
  const card = cards.find(({ pciId }) => pciId === device.pciId);
  return { ...device, minor: device.minor ?? card?.renderMinor ?? null };
}

/** Which other driver holds a card; null for a card of one of its `own` drivers. */
export function otherDriver({ pciId, driver }: PciCard, own: readonly string[]): GpuFinding | null {
  if (driver !== null && own.includes(driver)) return null;
  const warning = (code: string, message: string, hint: string | null) => finding('warning', code, pciId, message, hint);
  if (driver === 'nouveau') {
    const message = `The NVIDIA card at ${pciId} is held by nouveau, which cannot run compute jobs.`;
    return warning('nouveau-loaded', message, "Install NVIDIA's driver, which prevents nouveau from loading, and reboot.");
  }
  if (driver === null)
    return warning('no-driver', `The card at ${pciId} has no driver.`, `Type "modprobe ${own[0] ?? ''}", or search dmesg for it.`);
  const message = `The card at ${pciId} is held by ${driver}, like a card that is passed to a virtual machine.`;
  return warning('held-by-another-driver', message, null);
}

/** Findings about cards on the bus that no source lists. `why`: the end of the sentence. */
export function notListed(
  cards: readonly PciCard[],
  devices: readonly Device[],
  own: readonly string[],
  why: string,
): GpuFinding[] {
  const missing = cards.filter((card) => !devices.some(({ pciId }) => pciId === card.pciId));
  return missing.map((card) => {
    const name = card.vendor === 'amd' ? 'AMD' : 'Intel';
    const message = `The ${name} card at ${card.pciId} is on the bus, but ${why}.`;
    const hint = `Search dmesg for ${own.join(' or ')}.`;
    return otherDriver(card, own) ?? finding('warning', 'not-listed', card.pciId, message, hint);
  });
}
