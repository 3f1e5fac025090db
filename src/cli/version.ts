import { readFileSync } from 'node:fs';

/** Version of this onejob, as in package.json. */
export function readVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8');
  const found = /"version":\s*"([^"]+)"/.exec(text);
  return found?.[1] ?? 'unknown';
}
