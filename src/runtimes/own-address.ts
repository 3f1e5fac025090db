/** At which address an engine's nodes reach this host. */
import { networkInterfaces } from 'node:os';
import { OnejobError } from '../base/errors.ts';

/** `written`: of the config. `who`: in words, such as `nodes`. @throws OnejobError E_NO_DOOR if it cannot be told */
export function ownAddress(runtime: string, written: string | null, who: string): string {
  const found = written === null ? ownAddresses() : [written];
  const [only] = found;
  if (only !== undefined && found.length === 1) return only;
  const why = only === undefined ? 'it has no address in a network' : `it has several: ${found.join(', ')}`;
  const message = `Cannot tell at which address ${who} of runtime ${runtime} reach this host: ${why}.`;
  throw new OnejobError('E_NO_DOOR', message, { hint: `Write "address" into runtime ${runtime}.` });
}

/** IPv4 addresses of this host in networks. */
function ownAddresses(): string[] {
  const all = Object.values(networkInterfaces()).flatMap((some) => some ?? []);
  return all.filter(({ internal, family }) => !internal && family === 'IPv4').map(({ address }) => address);
}
