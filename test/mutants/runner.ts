/** Runs test files with vitest, once to see which mutants each reaches, then with one mutant at a time. */
import { mkdirSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join, relative } from 'node:path';
import { createVitest, type TestRunResult, type TestSpecification, type Vitest } from 'vitest/node';
import base from '../../vitest.config.ts';
import { type Numbered, withSwitches } from './mutate.ts';
import type { Note } from './worker.ts';

const root = join(import.meta.dirname, '../..');

export interface RunnerOptions {
  readonly mutations: readonly Numbered[];
  /** Names of projects of `vitest.config.ts`. */
  readonly projects: readonly string[];
  /** Processor time that a test file may use, and the time a test may take, ms. */
  readonly limit: number;
  /** A folder that is the runner's own. */
  readonly notes: string;
}

/** What came of one run. */
export interface Came {
  /** Files with a red test, from the root, sorted; those that used up their time are among them. */
  readonly red: readonly string[];
  /** Mutants that the tests of each file reached, when none was on. */
  readonly reached: ReadonlyMap<string, readonly number[]>;
  /** Those that ran when a module was loaded, for whichever file. */
  readonly loaded: ReadonlySet<number>;
}

/** vitest with all mutants in the source. Starting it takes a second, so one serves all runs; each run has a new worker. */
export class Runner implements AsyncDisposable {
  readonly #vitest: Vitest;
  readonly #options: RunnerOptions;
  #specifications: Map<string, TestSpecification> | null = null;

  private constructor(vitest: Vitest, options: RunnerOptions) {
    this.#vitest = vitest;
    this.#options = options;
  }

  static async open(options: RunnerOptions): Promise<Runner> {
    const byFile = Map.groupBy(options.mutations, ({ file }) => join(root, file));
    const plugin = {
      name: 'onejob-mutants',
      enforce: 'pre' as const,
      transform: (code: string, id: string) => {
        const mutations = byFile.get(id);
        return mutations === undefined ? undefined : { code: withSwitches(code, mutations), map: null };
      },
    };
    const projects = (base.test?.projects ?? []).flatMap((project) => {
      if (typeof project !== 'object' || !('test' in project)) return [];
      const { test } = project;
      if (test === undefined || typeof test.name !== 'string' || !options.projects.includes(test.name)) return [];
      const setupFiles = [test.setupFiles ?? [], join(import.meta.dirname, 'worker.ts')].flat();
      const { limit } = options;
      // What an earlier run has transformed has other mutants in it.
      const own = { setupFiles, isolate: false, testTimeout: limit, hookTimeout: limit, fsModuleCache: false };
      return [{ plugins: [plugin], test: { ...test, ...own } }];
    });
    const silent = { onInit: () => undefined };
    const vitest = await createVitest('test', {
      config: false,
      root,
      watch: false,
      maxWorkers: 1,
      fsModuleCache: false,
      reporters: [silent],
      projects,
    });
    return new Runner(vitest, options);
  }

  /** Runs the files, with a mutant on or with none. */
  async run(files: readonly string[], active: number | null): Promise<Came> {
    const { notes, limit, mutations } = this.#options;
    rmSync(notes, { recursive: true, force: true });
    mkdirSync(notes, { recursive: true });
    this.#vitest.provide('mutants', { active, count: mutations.length, limit, notes });
    const all = await this.#all();
    const chosen = files.flatMap((file) => all.get(file) ?? []);
    // What came of a file in an earlier run is no news of a worker that ends before it.
    this.#vitest.state.filesMap.clear();
    const result = await this.#vitest.runTestSpecifications(chosen);
    return this.#read(result);
  }

  async #all(): Promise<Map<string, TestSpecification>> {
    this.#specifications ??= new Map(
      (await this.#vitest.globTestSpecifications()).map((one) => [relative(root, one.moduleId), one]),
    );
    return this.#specifications;
  }

  #read({ testModules, unhandledErrors }: TestRunResult): Came {
    const notes = readdirSync(this.#options.notes).map(
      (name) => JSON.parse(readFileSync(join(this.#options.notes, name), 'utf8')) as Note,
    );
    const stray = unhandledErrors.map((error) => (error as { VITEST_TEST_PATH?: string }).VITEST_TEST_PATH ?? null);
    const ended = notes.filter(({ reached }) => reached === null).map(({ file }) => file);
    const failed = testModules.filter((one) => one.state() === 'failed' || one.errors().length > 0).map(({ moduleId }) => moduleId);
    const red = [...failed, ...ended, ...stray.filter((path) => path !== null)];
    return {
      red: [...new Set(red.map((path) => relative(root, path)))].sort(),
      loaded: new Set(notes.flatMap(({ loaded }) => loaded)),
      reached: new Map(notes.flatMap(({ file, reached }) => (reached === null ? [] : [[relative(root, file), reached] as const]))),
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#vitest.close();
  }
}
