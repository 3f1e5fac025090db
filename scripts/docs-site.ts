/**
 * Makes the documentation as a site of static files, which the daemon serves at /docs/: `npm run docs:site`.
 *
 *     npm run docs:site [-- --out DIR]
 */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { build } from 'vite';
import { credited } from '../web/credited.ts';
import type { Asset } from './site/page.ts';
import { renderSite, sealed } from './site/site.ts';

const root = join(import.meta.dirname, '..');

/** What every page loads: script and style, and whose work is in them. */
async function bundle(): Promise<Map<string, string | Buffer>> {
  const made = await build({
    configFile: false,
    root: join(root, 'web/docs'),
    publicDir: false,
    logLevel: 'warn',
    plugins: [credited()],
    build: {
      write: false,
      target: 'es2023',
      modulePreload: false,
      rolldownOptions: { input: ['site.ts', 'style.css'].map((name) => join(root, 'web/docs', name)) },
    },
  });
  if (!('output' in made)) throw new Error('Vite has made no files.');
  const files = made.output.map((file): [string, string | Buffer] => [
    file.fileName,
    file.type === 'chunk' ? file.code : Buffer.from(file.source),
  ]);
  return new Map(files);
}

function assetOf(files: ReadonlyMap<string, string | Buffer>, end: string): Asset {
  const found = [...files].filter(([path]) => path.endsWith(end));
  const [one] = found;
  if (one === undefined || found.length > 1) throw new Error(`Vite has made ${found.length} files ${end}, not one.`);
  const [path, bytes] = one;
  return sealed(path, bytes);
}

/** Writes the site into `out`, and answers how many pages it has. */
export async function makeSite(out: string): Promise<number> {
  const bundled = await bundle();
  const site = renderSite(root, { script: assetOf(bundled, '.js'), style: assetOf(bundled, '.css') });
  rmSync(out, { recursive: true, force: true });
  for (const [path, bytes] of [...bundled, ...site]) {
    mkdirSync(dirname(join(out, path)), { recursive: true });
    writeFileSync(join(out, path), bytes);
  }
  return [...site.keys()].filter((path) => path.endsWith('.html')).length;
}

if (import.meta.main) {
  const { values } = parseArgs({ options: { out: { type: 'string', default: join(root, 'dist/docs') } } });
  const pages = await makeSite(resolve(values.out));
  console.log(`Made ${pages} pages in ${values.out}`);
}
