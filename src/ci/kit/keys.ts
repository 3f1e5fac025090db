/** Keys that services of several types have. */
import type * as Kinds from '../../config/kinds.ts';
import { pathProblem } from '../../config/volumes.ts';

/** Address of a server, without a slash at its end. Never shows what was found, which may contain a password. */
export const webAddress = (example: string) => (v: typeof Kinds) =>
  v.value((found) => {
    const what = `a web address such as "${example}"`;
    if (typeof found !== 'string') return v.no(`expected ${what}, found ${v.describeKind(found)}`);
    if (/^[a-z]+:\/\/[^/]*@/i.test(found)) return v.no(`contains a user or a password; expected ${what}`);
    const good = /^https?:\/\/[^\s/?#@]+(\/[^\s?#]*)?$/.test(found) && URL.canParse(found);
    return good ? v.yes(found.replace(/\/+$/, '')) : v.no(`expected ${what}`);
  });

/** Where the package of an agent is, which images get. */
export const packageFrom = (v: typeof Kinds) =>
  v.value((found) => {
    const what = 'an https address or an absolute path that ends in ".tar.gz"';
    if (typeof found !== 'string' || !found.endsWith('.tar.gz')) return v.no(`expected ${what}`);
    if (/^https:\/\/[^\s/?#@]+\/\S+$/.test(found)) return v.yes(found);
    return found.startsWith('/') && pathProblem(found) === null ? v.yes(found) : v.no(`${JSON.stringify(found)} is not ${what}`);
  });
