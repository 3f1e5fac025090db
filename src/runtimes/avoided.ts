/** Nodes on which something was wrong with what the engine granted: they are not asked for, for a time. Known until onejob ends. */
import { type Finding, warning } from '../base/finding.ts';
import type { Clock } from '../core/clock.ts';

/** What was granted on a node is not fit for a job. */
export interface Unfit {
  readonly node: string;
  readonly why: string;
}

/** ms */
const avoidedFor = 15 * 60_000;

export class AvoidedNodes {
  readonly #clock: Pick<Clock, 'now'>;
  readonly #nodes = new Map<string, Unfit & { readonly until: number }>();

  constructor(clock: Pick<Clock, 'now'>) {
    this.#clock = clock;
  }

  /** Counts from the first time that this was seen. */
  add(unfit: Unfit): void {
    const known = this.#nodes.get(unfit.node);
    if (known !== undefined && known.until > this.#clock.now()) return;
    this.#nodes.set(unfit.node, { ...unfit, until: this.#clock.now() + avoidedFor });
  }

  /** Those that are avoided now, with ms until they are not. */
  get now(): readonly (Unfit & { readonly left: number })[] {
    const now = this.#clock.now();
    return [...this.#nodes.values()].flatMap(({ until, ...unfit }) => (until > now ? [{ ...unfit, left: until - now }] : []));
  }
}

/** Which nodes are avoided, and why, for people. */
export function avoidedText(nodes: readonly Unfit[]): string {
  return `avoids ${nodes.map(({ node, why }) => `node ${node} (${why})`).join(' and ')}`;
}

/** The same, of `doctor`. `keeps`: a command that keeps everybody from a node. */
export function avoidedFindings(subject: string, nodes: AvoidedNodes['now'], keeps: (node: string) => string): Finding[] {
  return nodes.map(({ node, why, left }) => {
    const message = `Node ${node} is avoided for ${Math.ceil(left / 60_000)} more minutes: ${why}.`;
    return warning(subject, message, `Look at the node; "${keeps(node)}" keeps everybody from it.`);
  });
}
