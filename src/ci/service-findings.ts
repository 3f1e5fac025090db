/** What `doctor` says of any service: the proxy on the way to it, its clock, and what went wrong. */

import { OnejobError, toFailure } from '../base/errors.ts';
import { type Finding, fine, problem, warning } from '../base/finding.ts';
import { type Proxies, proxyFor } from '../http/proxies.ts';

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

/** What went wrong, and what to do about it. */
export function saidOf(error: unknown): { readonly code: string; readonly message: string; readonly hint: string | null } {
  return error instanceof OnejobError ? error : { ...toFailure(error), hint: null };
}
