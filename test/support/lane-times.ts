/**
 * A reporter that says at the end how many files and tests each lane had, from its first to its last how long it took, and which
 * tests were skipped.
 */
import type { Reporter, TestModule, Vitest } from 'vitest/node';

interface Lane {
  files: number;
  tests: number;
  readonly from: number;
  to: number;
}

interface Skippable {
  readonly fullName: string;
  result(): { readonly state: string; readonly note?: string | undefined };
}

/** Names of a file's skipped tests that are shown. */
const namesShown = 4;

/** A line for each file with skipped tests. What their files need and this machine lacks was said at the start. */
export function skippedLines(files: readonly { readonly file: string; readonly tests: readonly Skippable[] }[]): string[] {
  return files.flatMap(({ file, tests }) => {
    const names = tests.flatMap((one) => {
      const { state, note } = one.result();
      return state === 'skipped' ? [note === undefined ? one.fullName : `${one.fullName} (${note})`] : [];
    });
    if (names.length === 0) return [];
    const more = names.length > namesShown ? [`${names.length - namesShown} more`] : [];
    return [`skipped    ${names.length} of ${file}: ${[...names.slice(0, namesShown), ...more].join('; ')}`];
  });
}

export default class LaneTimes implements Reporter {
  readonly #lanes = new Map<string, Lane>();
  #isFiltered = false;

  onInit(vitest: Vitest): void {
    this.#isFiltered = vitest.config.testNamePattern !== undefined;
  }

  onTestModuleStart({ project }: TestModule): void {
    if (!this.#lanes.has(project.name)) this.#lanes.set(project.name, { files: 0, tests: 0, from: performance.now(), to: 0 });
  }

  onTestModuleEnd(module: TestModule): void {
    const lane = this.#lanes.get(module.project.name);
    if (lane === undefined) return;
    lane.files++;
    lane.tests += [...module.children.allTests()].length;
    lane.to = performance.now();
  }

  onTestRunEnd(modules: readonly TestModule[]): void {
    const files = modules.map((one) => ({ file: one.relativeModuleId, tests: [...one.children.allTests()] }));
    // Those that a pattern leaves out count as skipped.
    if (!this.#isFiltered) for (const line of skippedLines(files)) console.log(line);
    for (const [name, { files, tests, from, to }] of this.#lanes)
      console.log(`${name.padEnd(10)} ${tests} tests in ${files} files, ${Math.round((to - from) / 1000)} s`);
  }
}
