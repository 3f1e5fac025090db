/** What those who ask a vendor's tools share: the means to ask, and the words for a tool that did not answer. */
import type { GpuFinding, Inventory } from './inventory.ts';
import type { PciCard } from './pci.ts';
import type { ToolReply } from './run.ts';

/** One look at a host. */
export interface Asking {
  /** Runs a tool within the look's time limit; never rejects. */
  run(tool: string, ...args: readonly string[]): Promise<ToolReply>;
  /** Whether there is such a tool. */
  has(tool: string): Promise<boolean>;
  /** All GPUs on the bus; null where nobody knows. */
  readonly pci: readonly PciCard[] | null;
  /** `/sys` and `/proc`. */
  readonly sys: string;
  readonly proc: string;
}

/** Why a reply is no whole answer; null when it is one. */
export function failureOf(reply: ToolReply): GpuFinding | null {
  const finding = (code: string, message: string, hint: string): GpuFinding => ({
    level: 'error',
    code,
    subject: 'host',
    message,
    hint,
  });
  const call = [reply.tool, ...reply.args].join(' ');
  if (reply.hung) return finding('tool-hung', `"${call}" did not end in its time, so the GPUs are unknown.`, hungHint(reply.tool));
  if (reply.cut)
    return finding('output-too-large', `"${call}" printed more than 16 MiB and was ended.`, 'Type it and look at what it prints.');
  if (reply.code === 0) return null;
  const said =
    reply.output
      .split('\n')
      .findLast((line) => line.trim() !== '')
      ?.trim() ?? 'nothing';
  return finding(
    'tool-failed',
    `"${call}" ended with ${reply.code ?? 'no code'}: ${said.slice(0, 200)}`,
    'Type it and look at what it prints.',
  );
}

/** What helps against a tool that hangs. */
export function hungHint(tool: string): string {
  return `Look with "ps -C ${tool} -o pid,stat,wchan" and "dmesg | tail": a process in state D can only be ended by a reboot.`;
}

/** The same, where another source saw all there is: worth knowing, but nothing is unknown for it. */
export function asWarning(finding: GpuFinding): GpuFinding {
  return { ...finding, level: 'warning' };
}

/** What holds a card that its own driver does not have. */
export function elsewhere(card: PciCard, own: readonly string[]): GpuFinding | null {
  if (card.driver !== null && own.includes(card.driver)) return null;
  const about = { level: 'warning', subject: card.pciId } as const;
  if (card.driver === 'nouveau') {
    const message = `The NVIDIA card at ${card.pciId} is held by nouveau, with which nothing can be computed.`;
    return {
      ...about,
      code: 'nouveau-loaded',
      message,
      hint: "Install NVIDIA's driver, which keeps nouveau from loading, and reboot.",
    };
  }
  if (card.driver === null) {
    const message = `The card at ${card.pciId} has no driver.`;
    return { ...about, code: 'no-driver', message, hint: `Type "modprobe ${own[0] ?? ''}", or look for it in dmesg.` };
  }
  const message = `The card at ${card.pciId} is held by ${card.driver}, as one that is given to a virtual machine.`;
  return { ...about, code: 'held-by-another-driver', message, hint: null };
}

/** `inventory` and what else was found; not whole when it is said to be so. */
export function withFindings(inventory: Inventory, findings: readonly GpuFinding[], complete = true): Inventory {
  return { ...inventory, complete: inventory.complete && complete, findings: [...inventory.findings, ...findings] };
}
