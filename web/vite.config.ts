/** Builds the dashboard into dist/web: files that a strict Content-Security-Policy takes, and that stay small. */
import { existsSync, globSync, readFileSync } from 'node:fs';
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

/** Writes down whose work is in the files, with the licences that have to come along; the release lists it among its materials. */
function credited(): Plugin {
  return {
    name: 'credited',
    apply: 'build',
    generateBundle() {
      const found = [...this.getModuleIds()].flatMap((id) => /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(id)?.[0] ?? []);
      const packages = [...new Set(found)].sort().map((folder) => {
        const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Record<string, string>;
        const file = join(folder, 'LICENSE');
        if (!existsSync(file)) throw new Error(`${name} has no file LICENSE, which the dashboard would have to contain.`);
        return { name, version, license, text: readFileSync(file, 'utf8') };
      });
      this.emitFile({ type: 'asset', fileName: 'bundled.json', source: `${JSON.stringify(packages, null, 2)}\n` });
    },
  };
}

export default defineConfig({
  root: import.meta.dirname,
  plugins: [credited(), weighed()],
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
