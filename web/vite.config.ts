/** Builds the dashboard into dist/web: files that a strict Content-Security-Policy takes, and that stay small. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { defineConfig, type Plugin } from 'vite';

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

export default defineConfig({
  root: import.meta.dirname,
  plugins: [weighed()],
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
