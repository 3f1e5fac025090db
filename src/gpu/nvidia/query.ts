/** Queries a host for its NVIDIA cards, with few calls: each may have to wake every card (1 to 3 s each without persistence). */
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { asWarning, withFindings } from '../finding.ts';
import { type Inventory, noGpus } from '../inventory.ts';
import { readText } from '../pci.ts';
import { failureOf, otherDriver, type ProbeContext } from '../probe-context.ts';
import type { ToolReply } from '../run.ts';
import { nvidiaInventory } from './nvidia.ts';

const tool = 'nvidia-smi';

/** Exit codes about the whole host: a query for each card fails the same way (NVML: 9 no driver, 12 no library, 18 mismatch). */
const ofTheHost = [4, 9, 12, 13, 18, 127];

export async function queryNvidia(context: ProbeContext): Promise<Inventory> {
  const cards = context.pci?.filter((card) => card.vendor === 'nvidia') ?? null;
  const there = await context.has(tool);
  const procVersion = await readText(join(context.proc, 'driver/nvidia/version'));
  if (!there && procVersion === null && (cards === null || cards.length === 0)) return noGpus;
  const others = (cards ?? []).flatMap((card) => (card.driver === null ? [] : (otherDriver(card, ['nvidia']) ?? [])));
  const pciIds = cards?.filter((card) => card.driver === null || card.driver === 'nvidia').map((card) => card.pciId) ?? null;
  // All of them belong to virtual machines or nouveau, so the tool could only fail.
  if (cards !== null && cards.length > 0 && pciIds?.length === 0) return withFindings(noGpus, others);

  const xml = await context.run(tool, '-q', '-x');
  // The tool has exited with 0 after an error, and in the middle of a card.
  const whole = xml.code === 0 && xml.output.includes('</nvidia_smi_log>');
  const each = whole || xml.hung ? [] : await queryEach(context, xml, pciIds ?? []);
  const replies = [xml, ...each];
  const hasInstances = replies.some(({ output }) => /<mig_device>|<current_mig>\s*Enabled/i.test(output));
  const wanted = hasInstances || (!whole && each.length === 0 && !isOfTheHost(xml));
  const list = !wanted || replies.some((reply) => reply.hung) ? null : await context.run(tool, '-L');
  const procGpus = await readInformation(join(context.proc, 'driver/nvidia/gpus'));
  const host = nvidiaInventory({ xml: replies, list, procVersion, procGpus, pciIds });
  // Packages may remain after the last card was removed.
  if (pciIds?.length === 0 && host.devices.length === 0 && !xml.hung) return { ...noGpus, findings: host.findings.map(asWarning) };
  const tooLarge = replies.find((reply) => reply.cut);
  const failure = tooLarge === undefined ? null : failureOf(tooLarge);
  return withFindings(host, failure === null ? others : [...others, failure]);
}

/** One card off the bus makes the whole list fail; a query for each of the others still succeeds. */
async function queryEach(context: ProbeContext, first: ToolReply, pciIds: readonly string[]): Promise<ToolReply[]> {
  if (isOfTheHost(first)) return [];
  const replies: ToolReply[] = [];
  for (const pciId of pciIds) {
    const reply = await context.run(tool, '-q', '-x', '-i', pciId);
    replies.push(reply);
    if (reply.hung) break;
  }
  return replies;
}

function isOfTheHost({ code }: ToolReply): boolean {
  return code !== null && ofTheHost.includes(code);
}

async function readInformation(folder: string): Promise<readonly string[]> {
  const names = await readdir(folder).catch((): string[] => []);
  const texts = await Promise.all(names.map((name) => readText(join(folder, name, 'information'))));
  return texts.filter((text) => text !== null);
}
