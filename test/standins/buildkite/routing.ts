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
    const params = fitted(route.path.split('/'), parts);
    if (params !== null) return { route, params };
  }
  return null;
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
  for (const [i, part] of parts.entries()) {
    const want = pattern[i] ?? '';
    if (want.startsWith(':')) params[want.slice(1)] = part;
    else if (want !== part) return null;
  }
  return params;
}
