/**
 * `${NAME}` in a Compose file, as Compose fills it in from a file `.env` beside it. https://docs.docker.com/reference/compose-file/interpolation/
 * What the shell would have given nobody knows. Of names that sound like a secret no value is ever taken, nor one that looks like one.
 */
import { masked } from '../ci/kit/masked.ts';
import { isMap } from './plain.ts';

const name = '[A-Za-z_][A-Za-z0-9_]*';
const pattern = new RegExp(String.raw`\$(?:(\$)|(${name})|\{(${name})(?:(:?[-?+])((?:[^{}]|\$\{[^{}]*\})*))?\})`, 'g');

/** Whether a variable of this name, or a flag, may hold what must not be copied into a config. */
export function soundsSecret(variable: string): boolean {
  return /(^|[_-])(TOKEN|SECRETS?|PASSWORD|PASSWD|PASS|(?<=[_-])PWD|PASSPHRASE|CREDENTIALS?|PAT|(API|ACCESS|PRIVATE|SECRET|SIGNING|DEPLOY)[_-]?KEY)([_-]|$)/i.test(
    variable,
  );
}

/** Whether it looks like a password, a token or a private key, whatever its variable is called. */
export function looksSecret(value: string): boolean {
  return masked(value) !== value || /-----BEGIN [A-Z ]*PRIVATE KEY-----/.test(value);
}

export interface Filled {
  readonly value: unknown;
  /** Variables that nobody gave a value, with where they stand. */
  readonly missing: readonly { readonly variable: string; readonly path: readonly (string | number)[] }[];
}

/** Fills in the variables of all texts in a value. `known`: of the file `.env`, without secrets. */
export function interpolate(value: unknown, known: ReadonlyMap<string, string>): Filled {
  const missing: { variable: string; path: readonly (string | number)[] }[] = [];
  const fill = (text: string, path: readonly (string | number)[]): string =>
    text.replaceAll(pattern, (_, dollar?: string, plain?: string, braced?: string, how?: string, other = '') => {
      if (dollar !== undefined) return '$';
      const variable = plain ?? braced ?? '';
      const found = known.get(variable);
      const isThere = found !== undefined && (found !== '' || !how?.startsWith(':'));
      if (how?.endsWith('+')) return isThere ? fill(other, path) : '';
      if (isThere) return found;
      if (how?.endsWith('-')) return fill(other, path);
      missing.push({ variable, path });
      return '';
    });
  const walk = (found: unknown, path: readonly (string | number)[]): unknown => {
    if (typeof found === 'string') return fill(found, path);
    if (Array.isArray(found)) return found.map((item, at) => walk(item, [...path, at]));
    if (isMap(found)) return Object.fromEntries(Object.entries(found).map(([key, item]) => [key, walk(item, [...path, key])]));
    return found;
  };
  return { value: walk(value, []), missing };
}

/** What a file `.env` says, secrets left out. */
export function readDotEnv(text: string): ReadonlyMap<string, string> {
  const found = new Map<string, string>();
  for (const line of text.split(/\r?\n/)) {
    const [, variable, rest] = new RegExp(`^\\s*(?:export\\s+)?(${name})\\s*=\\s*(.*?)\\s*$`).exec(line) ?? [];
    if (variable === undefined || rest === undefined || soundsSecret(variable) || looksSecret(rest)) continue;
    const quoted = /^(["'])(.*)\1/.exec(rest);
    found.set(variable, quoted?.[2] ?? rest.replace(/\s+#.*$/, ''));
  }
  return found;
}
