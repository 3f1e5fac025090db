/** Paths to routes. The agent escapes dots in ids as %2E, so segments are decoded one by one. */
import type { Route } from './http.ts';

export interface Found {
  readonly route: Route;
  readonly params: Readonly<Record<string, string>>;
}

/** The route for a path below the origin; null when there is none. */
export function findRoute(routes: readonly Route[], method: string, path: string): Found | null {
  const [base, ...rest] = path.split('/').filter((part) => part !== '');
  if (base !== 'v3') return null;
  const parts = rest.map(decoded);
  for (const route of routes) {
    if (route.method !== method) continue;
    const params = fitted(partsOf(route.path), parts);
    if (params !== null) return { route, params };
  }
  return null;
}

/** Paths of routes are few, and asked for with every request. */
const split = new Map<string, readonly string[]>();

function partsOf(path: string): readonly string[] {
  const known = split.get(path);
  if (known !== undefined) return known;
  const parts = path.split('/');
  split.set(path, parts);
  return parts;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function fitted(pattern: readonly string[], parts: readonly string[]): Record<string, string> | null {
  if (parts.length !== pattern.length) return null;
  const params: Record<string, string> = {};
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i] ?? '';
    const want = pattern[i] ?? '';
    if (want.startsWith(':')) params[want.slice(1)] = part;
    else if (want !== part) return null;
  }
  return params;
}
