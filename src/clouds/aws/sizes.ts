/** What onejob knows of types of machines: list prices, and the quotas of EC2, which count vCPUs per family. */
import type { Price } from '../../ports/cloud.ts';

/** The day of the prices. */
const asOf = '2026-11-01';
const sizes = ['xlarge', '2xlarge', '4xlarge', '8xlarge', '12xlarge', '16xlarge', '24xlarge', '48xlarge'];

/** USD per hour, for estimates: Linux, on demand, in US regions. Other regions cost up to about a third more. By family, in the order of `sizes`. */
const families: Readonly<Record<string, readonly number[]>> = {
  g4dn: [0.526, 0.752, 1.204, 2.176, 3.912, 4.352],
  g5: [1.006, 1.212, 1.624, 2.448, 5.672, 4.096, 8.144, 16.288],
  g6: [0.805, 0.978, 1.323, 2.014, 4.602, 3.397, 6.675, 13.35],
  g6e: [1.861, 2.242, 3.004, 4.529, 10.493, 7.577, 15.066, 30.131],
};
/** The same of families with few sizes. */
const others: Readonly<Record<string, number>> = {
  'g4dn.metal': 7.824,
  'gr6.4xlarge': 1.539,
  'gr6.8xlarge': 2.446,
  'p4d.24xlarge': 21.957,
  'p4de.24xlarge': 27.447,
  'p5.4xlarge': 6.88,
  'p5.48xlarge': 55.04,
  'p5e.48xlarge': 63.296,
  'p5en.48xlarge': 63.296,
  'p6-b200.48xlarge': 113.933,
};

/** On demand; null: unknown. */
export function awsPrice(type: string): Price | null {
  const [family = '', size = ''] = type.split('.');
  const perHour = others[type] ?? families[family]?.[sizes.indexOf(size)];
  return perHour === undefined ? null : { perHour, asOf };
}

export interface Quota {
  readonly code: string;
  readonly name: string;
  /** Of one machine; null: unknown. */
  readonly vcpus: number | null;
}

type Pair = readonly [code: string, name: string];

const runningP: Pair = ['L-417A185B', 'Running On-Demand P instances'];

/** Codes as Service Quotas lists them for the service `ec2`; null: not known here. Those of spot are separate. */
const quotas: readonly (readonly [families: RegExp, onDemand: Pair, spot: Pair | null])[] = [
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
  const found = quotas.find(([family]) => family.test(type));
  const pair = found?.[spot ? 2 : 1] ?? null;
  return pair === null ? null : { code: pair[0], name: pair[1], vcpus: vcpusOf(type) };
}

/** By its size: every current family has 4 for each `xlarge`, and 2 for a `large`. Metal and bare ones differ. */
function vcpusOf(type: string): number | null {
  if (type === 'g4dn.metal') return 96;
  const times = /\.(\d*)xlarge$/.exec(type)?.[1];
  if (times !== undefined) return 4 * Number(times === '' ? 1 : times);
  return type.endsWith('.large') ? 2 : null;
}
