/** What `doctor` says of any service: the proxy on the way to it, its clock, and what went wrong. */

import { OnejobError, toFailure } from '../../base/errors.ts';
import { type Finding, fine, problem, warning } from '../../base/finding.ts';
import type { FindingCode } from '../../base/finding-codes.ts';
import { type Proxies, proxyFor } from '../../http/proxies.ts';
import type { AgentProgramState } from './agent-program.ts';

/** No line shows the proxy's password. `service`: its name in the config. */
export function proxyFindings(service: string, address: string, proxies: Proxies): Finding[] {
  const proxy = proxyFor(new URL(address), proxies);
  if (proxy === null) return [];
  const subject = `service ${service}`;
  if (proxy.server !== null) return [fine(subject, `${address} is reached through the proxy ${proxy.shown}.`)];
  const message = 'HTTPS_PROXY is not an http:// or https:// address, so onejob sends nothing: it never bypasses a proxy.';
  return [problem(subject, message, 'Write the whole address, such as HTTPS_PROXY=http://proxy.example:3128.')];
}

/** `limits`: ms from which `skew` is a warning, and an error. `loss`: what fails, as the end of a sentence. */
export function clockFindings(subject: string, skew: number | null, limits: readonly [number, number], loss: string): Finding[] {
  const off = Math.abs(skew ?? 0);
  if (skew === null || off < limits[0]) return [];
  const which = skew > 0 ? 'behind' : 'ahead of';
  const message = `This host's clock is ${Math.round(off / 1000)} s ${which} the service's clock; ${loss}.`;
  return [
    (off >= limits[1] ? problem : warning)(subject, message, 'Synchronise the clock with NTP, such as "timedatectl set-ntp true".'),
  ];
}

/** What `doctor` says of one service, as its adapter asks one thing after the other. */
export class ServiceReport {
  readonly found: Finding[] = [];
  readonly #service: string;
  readonly #signal: AbortSignal;

  /** `service`: its name in the config. */
  constructor(service: string, signal: AbortSignal) {
    this.#service = service;
    this.#signal = signal;
  }

  get subject(): string {
    return `service ${this.#service}`;
  }

  ok(message: string): void {
    this.found.push(fine(this.subject, message));
  }

  warn(message: string, hint: string, code?: FindingCode): void {
    this.found.push(warning(this.subject, message, hint, code));
  }

  problem(message: string, hint: string): void {
    this.found.push(problem(this.subject, message, hint));
  }

  add(findings: readonly Finding[]): void {
    this.found.push(...findings);
  }

  /**
   * Whether the question could be asked; what went wrong is a finding, too. `level`: how bad that is. `refused`: what to do about a
   * credential that was not accepted. @throws the reason of the signal
   */
  async ask(
    question: () => Promise<void>,
    { level = 'error', refused = null }: { readonly level?: Finding['level']; readonly refused?: string | null } = {},
  ): Promise<boolean> {
    try {
      await question();
      return true;
    } catch (error) {
      this.#signal.throwIfAborted();
      const { code, message, hint } = saidOf(error);
      const isRefused = code === 'E_CI_CREDENTIAL' || code === 'E_CI_DENIED';
      const how = (isRefused ? refused : null) ?? hint ?? 'Try again later.';
      this.found.push({ level, subject: this.subject, message, hint: how, code });
      return false;
    }
  }

  /** The program of this host that agents of the service are. `how`: what to do if it is missing. */
  runner(state: AgentProgramState, called = 'runner', how = 'Fix "agent" of the service; onejob tries again every 30 s.'): void {
    if (state.kind === 'ready') this.ok(`The ${called} is version ${state.version}, at ${state.path}.`);
    else if (state.kind === 'failed') this.problem(`${state.failure.message} (${state.failure.code})`, how);
    else if (state.kind !== 'image') this.warn(`onejob is downloading and checking the ${called}.`, 'Try again in a moment.');
  }

  /** Other runners that take jobs of our pools. `title`: where they are; `ours`: which labels they have. */
  rivals(title: string, ours: string, names: readonly string[]): void {
    if (names.length > 0)
      this.warn(
        `Other runners of ${title} have ${ours}: ${some(names)}. They take jobs that were meant for this host.`,
        'Give the pool labels of its own with "tags", unless these runners are other hosts with the same pool.',
      );
  }

  /** No pool uses the service. `left`: how many runners that onejob registered it still has. */
  unused(left: number): void {
    const message = `No pool of the config uses service ${this.#service}, which still has runners that onejob registered.`;
    if (left > 0) this.warn(message, 'onejob removes them when their agents are gone.');
  }
}

/** The first names of a list. */
export function some(names: readonly string[]): string {
  const more = names.length > 5 ? ` and ${names.length - 5} more` : '';
  return names.slice(0, 5).join(', ') + more;
}

/** What went wrong, and what to do about it. */
export function saidOf(error: unknown): { readonly code: string; readonly message: string; readonly hint: string | null } {
  return error instanceof OnejobError ? error : { ...toFailure(error), hint: null };
}
