import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Plugin } from 'vite';

/** Writes down whose work is in the files, with the licences that have to come along; the release lists it among its materials. */
export function credited(): Plugin {
  return {
    name: 'credited',
    apply: 'build',
    generateBundle() {
      const found = [...this.getModuleIds()].flatMap((id) => /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(id)?.[0] ?? []);
      const packages = [...new Set(found)].sort().map((folder) => {
        const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Record<string, string>;
        const [file] = globSync('LICENSE{,.txt,.md}', { cwd: folder });
        if (file === undefined) throw new Error(`${name} has no file LICENSE, which would have to come along.`);
        return { name, version, license, text: readFileSync(join(folder, file), 'utf8') };
      });
      this.emitFile({ type: 'asset', fileName: 'bundled.json', source: `${JSON.stringify(packages, null, 2)}\n` });
    },
  };
}
