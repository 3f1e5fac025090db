/**
 * The files of the dashboard and, below /docs/, of the documentation. A request only chooses among the files that are there: its path
 * never becomes a path of the disk. A path that names no file is a page of the dashboard itself.
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
  '.yml': 'text/plain; charset=utf-8',
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

const noDocs = `The documentation is not built.

In a clone of onejob, type:

    npm run docs:site
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

type Files = ReadonlyMap<string, File>;

/** Reads `folder` at the first call only: requests need no login, and shall cost next to nothing. */
function reader(folder: string): () => Promise<Files> {
  let files: Promise<Files> | null = null;

  async function read(): Promise<Files> {
    const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
    const found = entries
      .filter((one) => one.isFile())
      .map(async (one): Promise<[string, File]> => {
        const bytes = await readFile(join(one.parentPath, one.name));
        return [urlOf(one, folder), { type: types[extname(one.name)] ?? 'application/octet-stream', bytes }];
      });
    return new Map(await Promise.all(found));
  }

  return async () => {
    files ??= read();
    const known = await files.catch(() => new Map<string, File>());
    // It may be built yet.
    if (!known.has('/index.html')) files = null;
    return known;
  };
}

/** Answers GETs from `folder`, and those below /docs/ from `docs`. */
export function createWebFiles(folder: string, docs = join(folder, '..', 'docs')): WebFiles {
  const readPages = reader(folder);
  const readDocs = reader(docs);

  const isBuilt = (): boolean => existsSync(join(folder, 'index.html'));
  const serve = async (response: ServerResponse, path: string, forgets = false): Promise<void> => {
    // Links of its pages are relative.
    if (path === '/docs') return void response.writeHead(308, { location: '/docs/' }).end();
    const isDocs = path.startsWith('/docs/');
    const files = await (isDocs ? readDocs() : readPages());
    const name = isDocs ? path.slice('/docs'.length).replace(/\/$/, '/index.html') : path;
    const isHashed = name.startsWith('/assets/');
    const file = files.get(name) ?? (isDocs || isHashed ? undefined : files.get('/index.html'));
    if (file === undefined) {
      response.writeHead(404, { 'content-type': 'text/plain; charset=utf-8', 'cache-control': 'no-store' });
      response.end(isDocs && files.size === 0 ? noDocs : isDocs || isHashed ? 'Not found.\n' : notBuilt);
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
