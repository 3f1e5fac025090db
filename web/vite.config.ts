/** Builds the dashboard into dist/web: files that a strict Content-Security-Policy takes, and that stay small. */
import { createHash } from 'node:crypto';
import { existsSync, globSync, readFileSync, writeFileSync } from 'node:fs';
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
