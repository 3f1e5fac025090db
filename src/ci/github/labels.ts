/** Labels that devices give an agent: `gpu`, its model (`gpu-a100`, `gpu-rtx4090`), its slice (`gpu-1g.5gb`), and `cuda-12`. */
import type { AgentContext } from '../../ports/ci-service.ts';

/** In lower case, as GitHub compares them. None without devices. */
export function deviceLabels({ devices, cuda }: Pick<AgentContext, 'devices' | 'cuda'>): string[] {
  const [first] = devices;
  if (first === undefined) return [];
  const model = modelOf(first.model);
  const slice = first.mig !== null && 'profile' in first.mig ? first.mig.profile : null;
  const major = first.vendor === 'nvidia' ? /^\d+/.exec(cuda ?? '')?.[0] : undefined;
  return [
    'gpu',
    ...(model === null ? [] : [`gpu-${model}`]),
    ...(slice === null ? [] : [`gpu-${slice}`]),
    ...(major === undefined ? [] : [`cuda-${major}`]),
  ].map((label) => label.toLowerCase());
}

/** Whether devices may give an agent this label: what a pool leases is not known before. */
export function isDeviceLabel(label: string): boolean {
  return /^(gpu(-.+)?|cuda-\d+)$/i.test(label);
}

/** `a100` of `NVIDIA A100-SXM4-40GB`; null when the name has no such word. */
function modelOf(name: string): string | null {
  const found = /\b(?:(RTX|GTX)\s+)?(PRO\s+)?([A-Z]{0,3}\d+[A-Z]{0,2})(?:\s+(Ti|SUPER))?\b/i.exec(name);
  if (found === null) return null;
  const [, series = '', professional = '', model = '', more = ''] = found;
  return `${/^\d/.test(model) ? series : ''}${professional.trim()}${model}${more}`;
}
