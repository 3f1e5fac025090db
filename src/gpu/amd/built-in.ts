/** Graphics inside a processor. They draw the host's screen, have no memory of their own, and are no devices for jobs. */
import type { GpuFinding } from '../inventory.ts';
import type { AmdCard } from './reading.ts';

/** Targets of APUs: https://llvm.org/docs/AMDGPUUsage.html#processors */
const targets = /^gfx(902|909|90c|1013|1033|103[567]|1103|115\d)$/i;

/** MI300A is made with its processors too, but for computing, and has memory as a card has. */
const forComputing = /^gfx942$/i;

export function isBuiltIn({ gfx, withCpu }: AmdCard): boolean {
  if (gfx !== null && targets.test(gfx)) return true;
  return withCpu && !forComputing.test(gfx ?? '');
}

export function builtInFinding({ pciId, gfx, model }: AmdCard): GpuFinding {
  const name = `${model ?? 'AMD graphics'}${gfx === null ? '' : ` (${gfx})`}${pciId === null ? '' : ` at ${pciId}`}`;
  const message = `${name} is built into the processor, and is no device for jobs.`;
  return { level: 'warning', code: 'built-in', subject: pciId ?? 'host', message, hint: null };
}
