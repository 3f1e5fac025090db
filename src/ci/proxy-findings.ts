/** What `doctor` says of the way to a service: whether a proxy is on it, and which. Its password is in no line. */
import { type Proxies, proxyFor } from '../config/proxies.ts';
import { type Finding, failure, fine } from '../finding.ts';

/** `service`: its name in the config. */
export function proxyFindings(service: string, address: string, proxies: Proxies): Finding[] {
  const proxy = proxyFor(new URL(address), proxies);
  if (proxy === null) return [];
  const subject = `service ${service}`;
  if (proxy.server !== null) return [fine(subject, `${address} is reached through the proxy ${proxy.shown}.`)];
  const message = 'HTTPS_PROXY is not an http:// or https:// address, so onejob sends nothing: it never bypasses a proxy.';
  return [failure(subject, message, 'Write the whole address, such as HTTPS_PROXY=http://proxy.example:3128.')];
}
