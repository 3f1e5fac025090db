/** The interface through which this host reaches others, from the kernel's tables. */
import { readOr } from './process-identity.ts';

type Read = (path: string) => string;

/** Interface of the IPv4 default route with the lowest metric, and whether that names a gateway; null without such a route. */
export function defaultRoute(table: string): { readonly name: string; readonly gateway: boolean } | null {
  const routes = table
    .split('\n')
    .map((line) => line.split('\t'))
    .filter(([, target, , flags, , , , mask]) => target === '00000000' && mask === '00000000' && (Number(`0x${flags}`) & 1) === 1)
    .sort((a, b) => Number(a[6]) - Number(b[6]));
  const [name, , gateway] = routes[0] ?? [];
  return name === undefined ? null : { name, gateway: gateway !== '00000000' };
}

/** null where no default route leads out, or its interface has no MTU. */
export function uplinkMtu(read: Read = (path) => readOr(path, '')): { readonly name: string; readonly mtu: number } | null {
  const route = defaultRoute(read('/proc/net/route'));
  const mtu = route === null ? 0 : Number(read(`/sys/class/net/${route.name}/mtu`));
  return route === null || !(mtu > 0) ? null : { name: route.name, mtu };
}
