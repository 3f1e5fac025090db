/** Addresses at which the daemon answers others, whatever answers there. */
import type { Listen } from '../http/address.ts';
import type { Config, ServiceConfig } from './config.ts';

export function listensOf({ api, join, services }: Pick<Config, 'api' | 'join' | 'services'>): Listen[] {
  const webhooks = services.map(
    ({ webhook }: ServiceConfig & { readonly webhook?: { readonly listen: Listen } | null }) => webhook?.listen,
  );
  return [api?.listen, join?.listen, ...webhooks].filter((listen) => listen != null);
}
