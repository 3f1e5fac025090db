/**
 * Which quota a type of machine counts against. Quotas of EC2 count vCPUs per family; those of spot are separate. Codes as Service
 * Quotas lists them for the service `ec2`.
 */
import { onDemand } from './prices.ts';

export interface Quota {
  readonly code: string;
  readonly name: string;
  /** Of one machine; null: unknown. */
  readonly vcpus: number | null;
}

type Pair = readonly [code: string, name: string];

const runningP: Pair = ['L-417A185B', 'Running On-Demand P instances'];

/** null: its code is not known here. */
const families: readonly (readonly [families: RegExp, onDemand: Pair, spot: Pair | null])[] = [
  [/^(g|gr|vt)\d/, ['L-DB2E81BA', 'Running On-Demand G and VT instances'], ['L-3819A6DF', 'All G and VT Spot Instance Requests']],
  [/^p5/, runningP, ['L-C4BD4855', 'All P5 Spot Instance Requests']],
  [/^p[2-4]/, runningP, ['L-7212CCBC', 'All P4, P3 and P2 Spot Instance Requests']],
  [/^p\d/, runningP, null],
  [
    /^[acdhimrtz]\d/,
    ['L-1216C47A', 'Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances'],
    ['L-34B43A08', 'All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests'],
  ],
];

/** null: onejob does not know it. */
export function quotaOf(type: string, spot: boolean): Quota | null {
  const found = families.find(([family]) => family.test(type));
  const pair = found?.[spot ? 2 : 1] ?? null;
  if (pair === null) return null;
  const [code, name] = pair;
  return { code, name, vcpus: vcpusOf(type) };
}

/** By its size: every current family has 4 for each `xlarge`, and 2 for a `large`. Metal and bare ones differ. */
function vcpusOf(type: string): number | null {
  const listed = onDemand[type]?.[0];
  if (listed !== undefined) return listed;
  const times = /\.(\d*)xlarge$/.exec(type)?.[1];
  if (times !== undefined) return 4 * Number(times === '' ? 1 : times);
  return type.endsWith('.large') ? 2 : null;
}
