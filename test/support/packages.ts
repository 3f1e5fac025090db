/** What is installed in a `node_modules`, as its own package files say. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { z } from 'zod';

export interface InstalledPackage {
  readonly name: string;
  readonly version: string;
  /** Scripts that npm runs when it installs the package. */
  readonly installScripts: readonly string[];
}

const manifest = z.object({ name: z.string(), version: z.string(), scripts: z.record(z.string(), z.string()).default({}) });
const whenInstalled = ['preinstall', 'install', 'postinstall'];

/** Every package in `folder`, also those that others brought for themselves, without folders that are named `except`. */
export function installedUnder(folder: string, except: readonly string[] = []): InstalledPackage[] {
  const names = readdirSync(folder).filter((name) => !name.startsWith('.') && !except.includes(name));
  const paths = names.flatMap((name) =>
    name.startsWith('@') ? readdirSync(join(folder, name)).map((below) => join(folder, name, below)) : [join(folder, name)],
  );
  return paths.flatMap((path) => {
    const { name, version, scripts } = manifest.parse(JSON.parse(readFileSync(join(path, 'package.json'), 'utf8')));
    // npm builds what has such a file, whether or not a script says so.
    const builds = existsSync(join(path, 'binding.gyp')) ? ['install'] : [];
    const installScripts = [...new Set([...builds, ...whenInstalled.filter((one) => scripts[one] !== undefined)])];
    const nested = join(path, 'node_modules');
    return [{ name, version, installScripts }, ...(existsSync(nested) ? installedUnder(nested) : [])];
  });
}
