/** A folder of each test's own, for all tests of the file or group that calls this; gone after every hook that was set up later. */
import { afterEach, beforeEach } from 'vitest';
import { type Scratch, scratch } from './scratch.ts';

export function eachScratch(): { readonly path: string } {
  let dir: Scratch | undefined;
  beforeEach(() => {
    dir = scratch();
  });
  afterEach(() => dir?.[Symbol.dispose]());
  return {
    get path() {
      if (dir === undefined) throw new Error('there is no folder outside of a test');
      return dir.path;
    },
  };
}
