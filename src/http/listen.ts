/** Ports that onejob opens for others. */
import type http from 'node:http';
import type https from 'node:https';
import { codeOf, messageOf } from '../base/errors.ts';
import type { Listen } from './address.ts';

/** As config has it: `127.0.0.1:7717`, `[::1]:7717`. */
export function addressText({ host, port }: Listen): string {
  return `${host.includes(':') ? `[${host}]` : host}:${port}`;
}

/** Why nobody can listen there, and what to do: `key` of the config names the address. */
export function whyNoPort({ port }: Listen, key: string, error: unknown): { readonly why: string; readonly hint: string } {
  const why: Partial<Record<string, string>> = {
    EADDRINUSE: 'another program already does',
    EADDRNOTAVAIL: 'this host does not have that address',
    EACCES: 'only root may use that port',
  };
  const hint = `Change "${key}" in the config, or find the program with "ss -ltnp 'sport = :${port}'". onejob tries again every 10 s.`;
  return { why: why[codeOf(error)] ?? messageOf(error), hint };
}

/** ms until an address that could not be used is tried again, as the hint says. */
export const listenAgain = 10_000;

/** `now`: does not wait for answers that are under way. */
export function ended(server: http.Server | https.Server, now = true): Promise<void> {
  return new Promise((resolve) => {
    server.close(() => resolve());
    if (now) server.closeAllConnections();
  });
}
