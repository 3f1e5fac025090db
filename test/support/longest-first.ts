/**
 * The order in which files run. vitest begins with what took longest, which it knows from earlier runs; in a new clone it goes by
 * size, and the longest files of all are small: they name a contract and no more. Begun last, one of them alone kept a machine
 * waiting for half a minute.
 */
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** The longest of their lanes, each lane's longest first. */
export const longest = [
  'test/properties/promises.test.ts',
  'test/e2e/config-change.test.ts',
  'test/e2e/jobs.test.ts',
  'src/runtimes/docker/docker.contract.test.ts',
  'src/cli/cli.test.ts',
  'src/runtimes/docker/docker.test.ts',
  'src/runtimes/gate.test.ts',
  'src/runtimes/process/process.test.ts',
];

export default class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const place = ({ moduleId }: TestSpecification): number => {
      const at = longest.findIndex((file) => moduleId.endsWith(`/${file}`));
      return at === -1 ? longest.length : at;
    };
    const lanes = Map.groupBy(sorted, ({ project }) => project.name);
    return [...lanes.values()].flatMap((lane) => lane.toSorted((a, b) => place(a) - place(b)));
  }
}
