/** How addresses and programs are written in the keys of services. */
import { key, sha256 } from './key.ts';
import type { Kinds } from './strict.ts';
import { pathProblem } from './volumes.ts';

/** Without a slash at its end. Never shows what was found, which may contain a password. */
export const webAddress = (example: string) => (v: Kinds) =>
  v.value((found) => {
    const what = `a web address such as "${example}"`;
    if (typeof found !== 'string') return v.no(`expected ${what}, found ${v.describeKind(found)}`);
    if (/^[a-z]+:\/\/[^/]*@/i.test(found)) return v.no(`contains a user or a password; expected ${what}`);
    return isWebAddress(found) ? v.yes(found.replace(/\/+$/, '')) : v.no(`expected ${what}`);
  });

export const isWebAddress = (text: string): boolean => /^https?:\/\/[^\s/?#@]+(\/[^\s?#]*)?$/.test(text) && URL.canParse(text);

const programFrom = (v: Kinds) =>
  v.value((found) => {
    const what = 'an https address or an absolute path of the program';
    if (typeof found !== 'string') return v.no(`expected ${what}, found ${v.describeKind(found)}`);
    if (/^https:\/\/[^\s/?#@]+\/\S+$/.test(found)) return v.yes(found);
    if (!found.startsWith('/')) return v.no(`${JSON.stringify(found)} is not ${what}`);
    const why = pathProblem(found);
    return why === null ? v.yes(found) : v.no(why);
  });

/** Keys of the map of a runner's program. `title`: of the project; `pinned`: the version that onejob uses. */
export const runnerKeysOf = (title: string, program: string, pinned: string) => ({
  version: key((v) => v.text(`a version such as "${pinned}"`, /^\d{1,4}\.\d{1,5}\.\d{1,5}$/), undefined, 'version', {
    description: 'Version of the runner; onejob refuses any other.',
    example: pinned,
    shown: `\`${pinned}\`, or what the file at \`from\` reports`,
  }),
  from: key(programFrom, undefined, 'address or path', {
    description: 'Where onejob gets the runner from. It mounts the program read-only into the sandboxes.',
    example: `/usr/local/bin/${program}`,
    shown: `${title}'s release of that version`,
  }),
  sha256: sha256('Checksum that the file named by `from` must have.', `${title}'s own for its releases`),
});

/** Where the package of an agent is, which images get. */
export const packageFrom = (v: Kinds) =>
  v.value((found) => {
    const what = 'an https address or an absolute path that ends in ".tar.gz"';
    if (typeof found !== 'string' || !found.endsWith('.tar.gz')) return v.no(`expected ${what}`);
    if (/^https:\/\/[^\s/?#@]+\/\S+$/.test(found)) return v.yes(found);
    return found.startsWith('/') && pathProblem(found) === null ? v.yes(found) : v.no(`${JSON.stringify(found)} is not ${what}`);
  });
