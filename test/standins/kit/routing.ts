/** Paths to routes. Ids may have escaped dots and slashes, so segments are decoded one by one. */

export interface Found<Route> {
  readonly route: Route;
  readonly params: Readonly<Record<string, string>>;
}

export interface RouterOptions {
  /** What comes before every path that does not begin with a slash. */
  readonly base: string;
  /** Whether the service looks at the case of fixed segments. */
  readonly isCaseSensitive: boolean;
}

/** `{name}` and `:name` take one segment, `{name?}` at the end takes one or none. A path that begins with a slash is below the origin. */
export function createRouter<Route extends { readonly method: string; readonly path: string }>(
  routes: readonly Route[],
  { base, isCaseSensitive }: RouterOptions,
): (method: string, path: string) => Found<Route> | null {
  const same = (one = '', other = ''): boolean => one === other || (!isCaseSensitive && one.toLowerCase() === other.toLowerCase());
  const prefix = segments(base);
  const known = routes.map((route) => ({ route, isWhole: route.path.startsWith('/'), pattern: segments(route.path).map(partOf) }));
  return (method, path) => {
    const whole = segments(path);
    const below = prefix.every((part, at) => same(part, whole[at])) ? whole.slice(prefix.length) : null;
    for (const { route, isWhole, pattern } of known) {
      const place = isWhole ? whole : below;
      const params = route.method !== method || place === null ? null : fitted(pattern, place, same);
      if (params !== null) return { route, params };
    }
    return null;
  };
}

/** A fixed segment, or a named one. */
interface Part {
  readonly text: string;
  readonly isName: boolean;
  readonly isOptional: boolean;
}

function partOf(segment: string): Part {
  const name = /^(?:\{(\w+)\??\}|:(\w+))$/.exec(segment);
  return { text: name?.[1] ?? name?.[2] ?? segment, isName: name !== null, isOptional: segment.endsWith('?}') };
}

function fitted(
  pattern: readonly Part[],
  path: readonly string[],
  same: (one: string, other: string) => boolean,
): Record<string, string> | null {
  if (path.length !== pattern.length && !(pattern.at(-1)?.isOptional === true && path.length === pattern.length - 1)) return null;
  const params: Record<string, string> = {};
  for (const [at, segment] of path.entries()) {
    const part = pattern[at];
    if (part?.isName === true) params[part.text] = segment;
    else if (part === undefined || !same(part.text, segment)) return null;
  }
  return params;
}

function segments(path: string): string[] {
  return path
    .split('/')
    .filter((part) => part !== '')
    .map(decoded);
}

/** What is not escaped as it should be stays as it is. */
export function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
