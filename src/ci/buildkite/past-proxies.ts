/**
 * Lines for a shell that keep calls to the broker from proxies that an image or a pool names: none of them leads to this host's own
 * bridges, and the agent uses them for whatever is not the loopback.
 *
 * @param endpoint of the broker, as `http://172.18.0.1:7070/v3`
 */
export function pastProxies(endpoint: string): readonly string[] {
  const host = URL.parse(endpoint)?.hostname.replace(/^\[(.*)\]$/, '$1') ?? '';
  // It stands in a shell's words as it is.
  if (!/^[\w.:-]+$/.test(host)) return [];
  return [
    'NO_PROXY=${NO_PROXY:-${no_proxy:-}}',
    `NO_PROXY="\${NO_PROXY:+$NO_PROXY,}${host}"`,
    'no_proxy=$NO_PROXY',
    'export NO_PROXY no_proxy',
  ];
}
