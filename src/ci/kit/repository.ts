/**
 * Whether two addresses mean the same repository. What is unreadable or ambiguous counts as different, so that no fork is trusted
 * by mistake.
 */
import { glob } from '../../base/glob.ts';

const usualPorts: Readonly<Record<string, string>> = { https: '443', http: '80', ssh: '22', git: '9418' };
/** Hosts whose paths ignore case. */
const caseless: ReadonlySet<string> = new Set(['github.com', 'gitlab.com', 'bitbucket.org']);

/**
 * One form for addresses of `https`, `http`, `ssh` (also `user@host:path`) and `git`: `host/path`, with an unusual port; the path
 * of a folder of this host. It has no scheme, password, `.git` or slash at its end, and no user, except with SSH at an unknown host
 * when it is not `git`: there a path can depend on it. null: not understood.
 */
export function normalRepository(written: string): string | null {
  const text = written.trim();
  if (text === '' || text.length > 2048 || /[\s\p{Cc}\p{Cf}\\?#]/u.test(text)) return null;
  if (text.startsWith('/')) return local(text);
  const url = /^(?:git\+)?([a-z]+)(?:\+git)?:\/\/([^/]*)(\/.*)$/i.exec(text);
  if (url !== null) {
    const [, scheme = '', authority = '', path = ''] = url;
    if (scheme.toLowerCase() === 'file') return authority === '' || authority === 'localhost' ? local(path) : null;
    return remote(scheme.toLowerCase(), authority, path);
  }
  // The short form of SSH has no port, and no slash before its colon, which is how `git` tells it from a path.
  const short = /^([^/:[\]]+):(?!\/\/)(.+)$/.exec(text);
  return short === null ? null : remote('ssh', short[1] ?? '', short[2] ?? '');
}

export function isSameRepository(one: string | null, other: string | null): boolean {
  const normal = one === null ? null : normalRepository(one);
  return normal !== null && other !== null && normal === normalRepository(other);
}

/**
 * Whether a pattern (`host/path`, `user@host/path`, or the path of a folder of this host) matches the address. `host/*` is one
 * folder deep, `host/**` any. An unreadable address matches nothing.
 */
export function matchesRepository(patterns: readonly string[], written: string): boolean {
  const normal = normalRepository(written);
  if (normal === null) return false;
  // A `*` for hosts must not match a user, whose home may contain anything.
  const fitting = withUser.test(normal)
    ? patterns.filter((pattern) => withUser.test(pattern) || pattern.startsWith('**'))
    : patterns;
  return matches(fitting.map(asNormal), normal);
}

const withUser = /^[^/]*@/;

/** For people and for stored texts: without user and password. */
export function shownRepository(written: string): string {
  return written
    .replace(/[?#].*$/, '')
    .replace(/^([a-z+]+:\/\/)(?:[^/]*@|[^/@]*:(?!\d*\/)[^@]*@)/i, '$1')
    .replace(/^[^/@]*:[^/@]*@/, '');
}

function asNormal(pattern: string): string {
  const [, user = '', host = '', path = ''] = /^([^/]*@)?([^/]*)(.*)$/s.exec(pattern) ?? [];
  return caseless.has(lower(host)) ? lower(`${host}${path}`) : `${user}${lower(host)}${path}`;
}

function remote(scheme: string, authority: string, path: string): string | null {
  const usual = usualPorts[scheme];
  const found = /^(?:([^@]*)@)?([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::(\d{0,5}))?$/i.exec(authority);
  if (usual === undefined || found === null) return null;
  const [, userInfo = '', written = '', port = ''] = found;
  const host = written.toLowerCase();
  const isKnown = caseless.has(host);
  const [user = ''] = userInfo.split(':');
  const who = scheme !== 'ssh' || isKnown || user === '' || user === 'git' ? '' : `${user}@`;
  const at = port === '' || port === usual ? host : `${host}:${Number(port)}`;
  const tidied = tidy(isKnown ? lower(path) : path);
  return tidied === null ? null : `${who}${at}/${tidied}`;
}

function local(path: string): string | null {
  const tidied = tidy(path);
  return tidied === null ? null : `/${tidied}`;
}

/** Without slashes around it and `.git` at its end; null: it is empty, or contains `.` or `..`. */
function tidy(path: string): string | null {
  const plain = path
    .replace(/^\/+/, '')
    .replace(/\/+$/, '')
    .replace(/\.git$/, '')
    .replace(/\/+$/, '');
  const parts = plain.split('/');
  return parts.some((part) => part === '' || part === '.' || part === '..') ? null : plain;
}

/** ASCII only, because some other letters have ASCII lower-case forms. */
function lower(text: string): string {
  return text.replaceAll(/[A-Z]/g, (letter) => letter.toLowerCase());
}

/**
 * Whether a pattern of a trust rule matches the whole text. `*` and `?` stop at a slash, `**` does not; `{a,b}` and `[0-9]` work
 * too. Case counts. Config has refused patterns that begin with `!`.
 */
export function matches(patterns: readonly string[], text: string): boolean {
  return patterns.some((pattern) => glob(pattern)(text));
}

/** With a slash, a pattern is `organisation/pipeline`; without, only the pipeline. */
export function matchesPipeline(patterns: readonly string[], organisation: string, pipeline: string): boolean {
  const [withOrganisation, alone] = [patterns.filter((one) => one.includes('/')), patterns.filter((one) => !one.includes('/'))];
  return matches(alone, pipeline) || matches(withOrganisation, `${organisation}/${pipeline}`);
}
