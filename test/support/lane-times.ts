/** A reporter that says at the end how many files and tests each lane had, and from its first to its last how long it took. */
import type { Reporter, TestModule } from 'vitest/node';

interface Lane {
  files: number;
  tests: number;
  readonly from: number;
  to: number;
}

export default class LaneTimes implements Reporter {
  readonly #lanes = new Map<string, Lane>();

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

  onTestRunEnd(): void {
    for (const [name, { files, tests, from, to }] of this.#lanes)
      console.log(`${name.padEnd(10)} ${tests} tests in ${files} files, ${Math.round((to - from) / 1000)} s`);
  }
}
