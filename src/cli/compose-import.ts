/**
 * What `onejob import compose` is from here: tools/import-compose, a package of its own, which people need once or never. A clone has
 * its sources and a release archive its build. What `npm pack` makes has neither.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { OnejobError } from '../base/errors.ts';
import type { Environment } from '../config/environment.ts';
import { interpret } from '../config/interpret.ts';
import { checkConfig } from '../config/load.ts';
import { parseSource } from '../config/source.ts';
import { isMap } from '../schema/kinds.ts';
import { type Problem, place } from '../schema/problem.ts';
import type { Session } from './session.ts';
import { types } from './types.ts';

/** Agents whose folder, own name or host name matches the glob are of this host. */
export interface HostRule {
  readonly name: string;
  readonly glob: string;
}

export interface ImportFlags {
  readonly host?: readonly HostRule[];
  readonly out?: string;
  readonly force?: boolean;
}

/** What the tool takes from the onejob that runs: its rules, and the errors that its command line shows. */
export interface ComposeOnejob {
  /** What is wrong with the text of a config, as `config check` says it. */
  errorsIn(config: string): Promise<readonly Problem[]>;
  failure(message: string, options: { readonly hint: string; readonly cause?: unknown }): OnejobError;
}

/** What the tool offers. */
export interface ComposeImport {
  /**
   * Prints or writes one config per host. False when something could not be read; the rest is imported then.
   * @throws OnejobError E_IMPORT when there is nothing to read, or a file would be overwritten
   */
  importComposeFolder(session: Session, dir: string, flags: ImportFlags, onejob: ComposeOnejob): Promise<boolean>;
}

export function composeOnejob(env: Environment): ComposeOnejob {
  return {
    async errorsIn(config) {
      const source = parseSource('config', config);
      const value = isMap(source.value) ? source.value : {};
      const { written, problems } = interpret({ value, locate: () => place('config') }, types);
      const { errors } = await checkConfig({ types, env, look: null, instead: { name: 'config', written } });
      return [...source.problems, ...problems, ...errors].filter(({ level }) => level === 'error');
    },
    failure: (message, options) => new OnejobError('E_IMPORT', message, options),
  };
}

/** `root`: the folder of this onejob. @throws OnejobError E_IMPORT when the tool is not there, with where it is */
export async function loadComposeImport(root: string): Promise<ComposeImport> {
  const folder = join(root, 'tools', 'import-compose');
  // The compiler must not take the tool for a part of onejob, so it does not see the name.
  const entry = ['index.ts', 'dist/index.js'].map((name) => join(folder, name)).find((path) => existsSync(path));
  if (entry !== undefined) return await import(pathToFileURL(entry).href);
  throw new OnejobError('E_IMPORT', `This onejob has no tool that reads Compose files: there is no ${folder}.`, {
    hint: 'Every release archive and every clone of onejob contains it. Type the same command in one of them, on any machine: it needs no daemon.',
  });
}
