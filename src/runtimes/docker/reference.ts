/** Image references as Docker reads them (distribution/reference): what to pull, and from whom. */

export interface Reference {
  /** As Docker's `fromImage` wants it. */
  readonly name: string;
  /** Tag or digest; Docker would pull every tag when there is none. */
  readonly tag: string;
  readonly registry: string;
}

/** Host with port, lower-case path, then tag and digest; upper case is for registries and tags only. */
const grammar =
  /^(?:[A-Za-z0-9.-]+(?::\d+)?\/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[a-f0-9]{64})?$/;

/** Whether Docker would take it; an image id counts. */
export function isReference(written: string): boolean {
  return grammar.test(written);
}

/** `debian` is `debian:latest` from `docker.io`; `ghcr.io/x/y@sha256:…` names its registry and content. */
export function parseReference(written: string): Reference {
  const at = written.indexOf('@');
  const beforeDigest = at === -1 ? written : written.slice(0, at);
  const colon = beforeDigest.indexOf(':', beforeDigest.lastIndexOf('/') + 1);
  const name = colon === -1 ? beforeDigest : beforeDigest.slice(0, colon);
  const tag = at !== -1 ? written.slice(at + 1) : colon === -1 ? 'latest' : beforeDigest.slice(colon + 1);
  const first = name.split('/')[0] ?? '';
  const hasRegistry = name.includes('/') && (/[.:]/.test(first) || first === 'localhost');
  return { name, tag, registry: hasRegistry && first !== 'index.docker.io' ? first : 'docker.io' };
}
