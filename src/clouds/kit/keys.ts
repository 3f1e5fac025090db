/** Keys of the config that several types of clouds have. */

import { clearTextHost } from '../../http/address.ts';
import { type Keys, key } from '../../schema/key.ts';
import type { Kinds } from '../../schema/strict.ts';

/** Without a slash at its end. Credentials go there. */
export const address = (example: string) => (v: Kinds) =>
  v.value((found) => {
    const good = typeof found === 'string' && /^https?:\/\/[^\s/?#@]+\/?$/.test(found) && URL.canParse(found);
    if (!good) return v.no(`expected an address such as "${example}"`);
    if (clearTextHost(found) !== null) return v.no('must begin with https: credentials would leave this host in clear text');
    return v.yes(found.replace(/\/$/, ''));
  });

export const deathDate = (description: string) =>
  key((v) => v.oneOf(['cloud', 'manager-only']), 'cloud', { description, example: 'manager-only' });

/** Signs in as the machine that onejob runs on. */
export const metadata = (description: string) => key((v) => v.yesNo, undefined, { description, example: 'true', shown: '`false`' });

/**
 * A map with exactly one of `ways` to sign in. `also`: other keys that choose a way. `problemOf`: what is wrong with what was chosen;
 * null: nothing.
 */
export const credentials =
  <K extends Keys>(
    keys: K,
    ways: readonly string[],
    problemOf: (way: string, has: (key: string) => boolean) => string | null = () => null,
    also: Readonly<Record<string, string>> = {},
  ) =>
  (v: Kinds) =>
    v.strict(keys).transform((found, context) => {
      const written = new Set(Object.entries(found).flatMap(([name, one]) => (one === undefined || one === false ? [] : [name])));
      const chosen = ways.filter((way) => written.has(way) || [...written].some((one) => also[one] === way));
      const both = chosen.length > 1 ? `, not both ${chosen.slice(0, 2).join(' and ')}` : '';
      const [way = ''] = chosen;
      const why = chosen.length === 1 ? problemOf(way, (one) => written.has(one)) : `write one of ${ways.join(', ')}${both}`;
      if (why === null) return found;
      context.addIssue({ code: 'custom', message: why });
      return v.z.NEVER;
    });
