/**
 * The files of the dashboard. A request only chooses among the files that are there: its path never becomes a path of the disk. A
 * path that names no file is a page of the dashboard itself.
 */
import { readdir, readFile } from 'node:fs/promises';
import type { ServerResponse } from 'node:http';
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
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');

/** In a clone and in a package. */
export const webFolder = join(import.meta.dirname, '..', '..', 'dist', 'web');

const notBuilt = `The dashboard is not built.

In a clone of onejob, type:

    npm run build:web
`;

/** Answers a GET of `path` from `folder`. */
export async function serveFile(response: ServerResponse, path: string, folder: string): Promise<void> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => []);
  const files = new Map(entries.filter((one) => one.isFile()).map((one) => [urlOf(one, folder), join(one.parentPath, one.name)]));
  const isHashed = path.startsWith('/assets/');
  const file = files.get(path) ?? (isHashed ? undefined : files.get('/index.html'));
  if (file === undefined) {
    response.writeHead(404, { 'content-type': 'text/plain; charset=utf-8', 'cache-control': 'no-store' });
    response.end(isHashed ? 'Not found.\n' : notBuilt);
    return;
  }
  const bytes = await readFile(file);
  response.writeHead(200, {
    'content-type': types[extname(file)] ?? 'application/octet-stream',
    'content-length': bytes.length,
    'content-security-policy': policy,
    'cache-control': isHashed ? 'public, max-age=31536000, immutable' : 'no-cache',
  });
  response.end(bytes);
}

function urlOf({ parentPath, name }: { readonly parentPath: string; readonly name: string }, folder: string): string {
  return `${parentPath.slice(folder.length)}/${name}`;
}
