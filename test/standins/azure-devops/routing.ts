/** Paths to routes. The service looks at neither case nor slashes at the end. */
import type { Route } from './http.ts';

/** The route for a path below the organisation or collection, or below the origin for routes that begin with a slash. */
export function findRoute(
  routes: readonly Route[],
  base: string,
  method: string,
  path: string,
): { readonly route: Route; readonly params: Readonly<Record<string, string>> } | null {
  const whole = segments(path);
  const prefix = segments(base);
  const below = prefix.every((part, i) => whole[i]?.toLowerCase() === part.toLowerCase()) ? whole.slice(prefix.length) : null;
  for (const route of routes) {
    if (route.method !== method) continue;
    const place = route.path.startsWith('/') ? whole : below;
    const params = place === null ? null : fitted(patternOf(route), place);
    if (params !== null) return { route, params };
  }
  return null;
}

const patterns = new WeakMap<Route, readonly string[]>();

function patternOf(route: Route): readonly string[] {
  const known = patterns.get(route) ?? segments(route.path);
  patterns.set(route, known);
  return known;
}

function segments(path: string): string[] {
  return path
    .split('/')
    .filter((part) => part !== '')
    .map(decoded);
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** `{name}` takes one segment, `{name?}` at the end takes one or none. */
function fitted(pattern: readonly string[], path: readonly string[]): Record<string, string> | null {
  const optional = pattern.at(-1)?.endsWith('?}') === true;
  if (path.length !== pattern.length && !(optional && path.length === pattern.length - 1)) return null;
  const params: Record<string, string> = {};
  for (const [i, part] of path.entries()) {
    const name = /^\{(\w+)\??\}$/.exec(pattern[i] ?? '')?.[1];
    if (name !== undefined) params[name] = part;
    else if (pattern[i]?.toLowerCase() !== part.toLowerCase()) return null;
  }
  return params;
}
