/** Addresses at which the daemon answers others, whatever answers there. */
import type { Listen } from './check-api.ts';
import type { Config } from './config.ts';

export function listensOf({ api, join, services }: Pick<Config, 'api' | 'join' | 'services'>): Listen[] {
  const webhooks = services.map((service) => ('webhook' in service ? service.webhook?.listen : undefined));
  return [api?.listen, join?.listen, ...webhooks].filter((listen) => listen != null);
}
