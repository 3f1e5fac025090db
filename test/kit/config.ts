/** For the tests of this folder: config files in a folder that goes away, and what is found in them. */

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { types } from '../../src/cli/types.ts';
import { readEnvironment } from '../../src/config/environment.ts';
import { checkConfig, type LoadOptions } from '../../src/config/load.ts';
import { formatProblem } from '../../src/schema/problem.ts';

export const host = { name: 'box', cpus: 64, memory: 2 ** 40 };

/** An environment in which nothing is set: neither variables nor, by a home that is not there, a user's config. */
export function emptyEnvironment(variables: Record<string, string> = {}, uid = 1000) {
  return readEnvironment({ HOME: '/nowhere', ...variables }, uid);
}

export class Folder implements Disposable {
  readonly path = mkdtempSync(join(tmpdir(), 'onejob-config-'));

  /** Writes a file and returns its path. */
  write(name: string, content: string | Uint8Array, mode = 0o600): string {
    const file = join(this.path, name);
    writeFileSync(file, content, { mode });
    return file;
  }

  /** Problems and warnings as a person sees them, without this folder's path. */
  async check(content: string | Uint8Array, options: Partial<LoadOptions> = {}): Promise<string[]> {
    const checked = await this.load(content, options);
    return [...checked.errors, ...checked.warnings].map((problem) => formatProblem(problem).replaceAll(`${this.path}/`, ''));
  }

  load(content: string | Uint8Array, options: Partial<LoadOptions> = {}) {
    const config = this.write('config.yml', content);
    return checkConfig({ types, flags: { config }, env: emptyEnvironment(), host, look: null, gpus: false, ...options });
  }

  [Symbol.dispose](): void {
    rmSync(this.path, { recursive: true, force: true });
  }
}
