/** The host that a credential would travel to without encryption; null when it does not, or does not leave this host. */
export function clearTextHost(url: string): string | null {
  const { protocol, hostname } = new URL(url);
  if (protocol !== 'http:') return null;
  return hostname === 'localhost' || hostname === '[::1]' || /^127(\.\d+){3}$/.test(hostname) ? null : hostname;
}
