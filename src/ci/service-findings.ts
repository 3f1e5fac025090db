/** What `doctor` says of any service: the proxy on the way to it, its clock, and what went wrong. */

import { OnejobError, toFailure } from '../base/errors.ts';
import { type Finding, fine, problem, warning } from '../base/finding.ts';
import { type Proxies, proxyFor } from '../http/proxies.ts';
import type { AgentProgramState } from './kit/agent-program.ts';

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

  warn(message: string, hint: string): void {
    this.found.push(warning(this.subject, message, hint));
  }

  problem(message: string, hint: string): void {
    this.found.push(problem(this.subject, message, hint));
  }

  add(findings: readonly Finding[]): void {
    this.found.push(...findings);
  }

  /** Whether the question could be asked; what went wrong is a finding, too. @throws the reason of the signal */
  async ask(question: () => Promise<void>): Promise<boolean> {
    try {
      await question();
      return true;
    } catch (error) {
      this.#signal.throwIfAborted();
      const { message, hint } = saidOf(error);
      this.problem(message, hint ?? 'Try again later.');
      return false;
    }
  }

  /** The program of this host that agents of the service are. */
  runner(state: AgentProgramState): void {
    if (state.kind === 'ready') this.ok(`The runner is version ${state.version}, at ${state.path}.`);
    if (state.kind === 'failed') this.problem(state.failure.message, 'Fix "agent" of the service; onejob tries again every 30 s.');
  }

  /** No pool uses the service. `left`: how many runners that onejob registered it still has. */
  unused(left: number): void {
    const message = `No pool of the config uses service ${this.#service}, which still has runners that onejob registered.`;
    if (left > 0) this.warn(message, 'onejob removes them when their agents are gone.');
  }
}

/** What went wrong, and what to do about it. */
export function saidOf(error: unknown): { readonly code: string; readonly message: string; readonly hint: string | null } {
  return error instanceof OnejobError ? error : { ...toFailure(error), hint: null };
}
