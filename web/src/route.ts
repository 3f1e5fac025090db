/** Which page is shown, kept in the address behind `#`. */
import { useSyncExternalStore } from 'react';

export type Route =
  | { readonly page: 'now' | 'health' }
  | { readonly page: 'history'; readonly query: Readonly<Record<string, string>> }
  | { readonly page: 'job'; readonly id: string };

export function parseRoute(hash: string): Route {
  const [path = '', search = ''] = hash.replace(/^#\/?/, '').split(/\?(.*)/s);
  const [page, id = ''] = path.split('/');
  if (page === 'jobs' && id !== '') return { page: 'job', id: decoded(id) };
  if (page === 'history') return { page, query: Object.fromEntries(new URLSearchParams(search)) };
  return { page: page === 'health' ? page : 'now' };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function jobHref(id: string): string {
  return `#/jobs/${encodeURIComponent(id)}`;
}

export function historyHref(query: Readonly<Record<string, string>>): string {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== '')).toString();
  return text === '' ? '#/history' : `#/history?${text}`;
}

export function useHash(): string {
  return useSyncExternalStore(
    (call) => {
      window.addEventListener('hashchange', call);
      return () => window.removeEventListener('hashchange', call);
    },
    () => window.location.hash,
  );
}
