/** Builds the dashboard into dist/web: files that a strict Content-Security-Policy takes, and that stay small. */
import { createHash } from 'node:crypto';
import { globSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { defineConfig, type Plugin } from 'vite';
import { credited } from './credited.ts';

/** Bytes of all files together, each compressed by itself. */
const most = 300_000;
const output = join(import.meta.dirname, '..', 'dist', 'web');

/** Fails a build that has grown too large. */
function weighed(): Plugin {
  return {
    name: 'weighed',
    apply: 'build',
    closeBundle() {
      const files = globSync('**/*.*', { cwd: output });
      const bytes = files.reduce((sum, file) => sum + gzipSync(readFileSync(join(output, file))).length, 0);
      const said = `The dashboard has ${Math.round(bytes / 1000)} kB (gzip) in ${files.length} files`;
      if (bytes > most) throw new Error(`${said}, and may have ${most / 1000} kB.`);
      this.info(`${said}.`);
    },
  };
}

/**
 * Writes down what the page loads, so that a browser refuses anything else: a script that another program of the host has left in
 * its cache while it had the port of the dashboard.
 */
function sealed(): Plugin {
  const page = join(output, 'index.html');
  return {
    name: 'sealed',
    apply: 'build',
    writeBundle() {
      const text = readFileSync(page, 'utf8').replaceAll(/(src|href)="(\/assets\/[^"]+)"/g, (attribute, _, file: string) => {
        const sum = createHash('sha384')
          .update(readFileSync(join(output, file)))
          .digest('base64');
        return `${attribute} integrity="sha384-${sum}"`;
      });
      writeFileSync(page, text);
    },
  };
}

export default defineConfig({
  root: import.meta.dirname,
  plugins: [credited(), sealed(), weighed()],
  build: {
    outDir: output,
    emptyOutDir: true,
    target: 'es2023',
    // A data: URL is not from 'self', and the polyfill would be an inline script in some setups.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
});
