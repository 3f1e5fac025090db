/**
 * The files of the dashboard. A request only chooses among the files that are there: its path never becomes a path of the disk. A
 * path that names no file is a page of the dashboard itself.
 */
import { existsSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { extname, join } from 'node:path';

const types: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.json': 'application/json',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.ico': 'image/x-icon',
  '.woff2': 'font/woff2',
  '.txt': 'text/plain; charset=utf-8',
  '.webmanifest': 'application/manifest+json',
};

const policy = [
  "default-src 'self'",
  "img-src 'self' data:",
  "object-src 'none'",
  "worker-src 'none'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

/** `clear-site-data`: a browser forgets all that it has of this origin. */
export const forgetAll = '"cache", "storage"';

/**
 * The answer to a browser that asks for the script of a service worker. The dashboard has none: it is one that another program left
 * in the browser while it had the port, and it would outlive that. This one takes its place, and ends.
 */
const noWorker = `addEventListener('install', () => skipWaiting());
addEventListener('activate', (event) => event.waitUntil(registration.unregister()
  .then(() => clients.matchAll({ type: 'window' }))
  .then((pages) => Promise.all(pages.map((page) => page.navigate(page.url))))));
`;

export function isWorkerScript({ headers }: IncomingMessage): boolean {
  return headers['service-worker'] !== undefined;
}

export function serveNoWorker(response: ServerResponse): void {
  response.writeHead(200, { 'content-type': 'text/javascript; charset=utf-8', 'content-length': noWorker.length });
  response.end(noWorker);
}

/** In a clone and in a package. */
export const webFolder = join(import.meta.dirname, '..', '..', 'dist', 'web');

const notBuilt = `The dashboard is not built.

In a clone of onejob, type:

    npm run build:web
`;

interface File {
  readonly type: string;
  readonly bytes: Buffer;
}

export interface WebFiles {
  /** Whether there is a page. */
  isBuilt(): boolean;
  /** `forgets`: the browser is to forget what it has. */
  serve(response: ServerResponse, path: string, forgets?: boolean): Promise<void>;
}

/** Answers GETs from `folder`, which is read once: requests need no login, and shall cost next to nothing. */
export function createWebFiles(folder: string): WebFiles {
  let files: Promise<ReadonlyMap<string, File>> | null = null;

  async function read(): Promise<ReadonlyMap<string, File>> {
    const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
    const found = entries
      .filter((one) => one.isFile())
      .map(async (one): Promise<[string, File]> => {
        const bytes = await readFile(join(one.parentPath, one.name));
        return [urlOf(one, folder), { type: types[extname(one.name)] ?? 'application/octet-stream', bytes }];
      });
    return new Map(await Promise.all(found));
  }

  const isBuilt = (): boolean => existsSync(join(folder, 'index.html'));
  const serve = async (response: ServerResponse, path: string, forgets = false): Promise<void> => {
    files ??= read();
    const known = await files.catch(() => new Map<string, File>());
    // It may be built yet.
    if (!known.has('/index.html')) files = null;
    const isHashed = path.startsWith('/assets/');
    const file = known.get(path) ?? (isHashed ? undefined : known.get('/index.html'));
    if (file === undefined) {
      response.writeHead(404, { 'content-type': 'text/plain; charset=utf-8', 'cache-control': 'no-store' });
      response.end(isHashed ? 'Not found.\n' : notBuilt);
      return;
    }
    response.writeHead(200, {
      'content-type': file.type,
      'content-length': file.bytes.length,
      'content-security-policy': policy,
      'cache-control': isHashed ? 'public, max-age=31536000, immutable' : 'no-cache',
      ...(forgets && { 'clear-site-data': forgetAll }),
    });
    response.end(file.bytes);
  };
  return { isBuilt, serve };
}

function urlOf({ parentPath, name }: { readonly parentPath: string; readonly name: string }, folder: string): string {
  return `${parentPath.slice(folder.length)}/${name}`;
}
