/** How addresses and programs are written in the keys of services. */
import type * as Kinds from '../../config/kinds.ts';
import { pathProblem } from '../../config/volumes.ts';

/** Without a slash at its end. Never shows what was found, which may contain a password. */
export const webAddress = (example: string) => (v: typeof Kinds) =>
  v.value((found) => {
    const what = `a web address such as "${example}"`;
    if (typeof found !== 'string') return v.no(`expected ${what}, found ${v.describeKind(found)}`);
    if (/^[a-z]+:\/\/[^/]*@/i.test(found)) return v.no(`contains a user or a password; expected ${what}`);
    return isWebAddress(found) ? v.yes(found.replace(/\/+$/, '')) : v.no(`expected ${what}`);
  });

export const isWebAddress = (text: string): boolean => /^https?:\/\/[^\s/?#@]+(\/[^\s?#]*)?$/.test(text) && URL.canParse(text);

export const programFrom = (v: typeof Kinds) =>
  v.value((found) => {
    const what = 'an https address or an absolute path of the program';
    if (typeof found !== 'string') return v.no(`expected ${what}, found ${v.describeKind(found)}`);
    if (/^https:\/\/[^\s/?#@]+\/\S+$/.test(found)) return v.yes(found);
    if (!found.startsWith('/')) return v.no(`${JSON.stringify(found)} is not ${what}`);
    const why = pathProblem(found);
    return why === null ? v.yes(found) : v.no(why);
  });
