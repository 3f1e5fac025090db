/**
 * BuildKit, unchanged, built once from the module proxy: what its image has, which buildx starts for a builder of its own. Also a
 * command: `node test/support/buildkit-programs.ts` builds it where Go is there.
 */
import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { go, hasGo, inCache, madeOnce, moduleFolder } from './go-program.ts';

export const buildkitVersion = '0.33.0';

/** A folder with `buildkitd` and `buildctl`. */
export const buildkit = inCache(`buildkit-${buildkitVersion}`);

/** Why it is not there, as a sentence's end; null when it is. */
export function lacksBuildkit(): string | null {
  if (existsSync(buildkit)) return null;
  const how = hasGo() ? 'run "npx node test/support/buildkit-programs.ts" once' : '"go" is not installed to build it';
  return `nothing at ${buildkit}; ${how}`;
}

/** Builds it if it is missing. @throws Error with what Go said */
export const buildBuildkit = (): Promise<string> =>
  madeOnce(buildkit, async (half) => {
    const module = 'github.com/moby/buildkit';
    const source = await moduleFolder(`${module}@v${buildkitVersion}`);
    await mkdir(half);
    const flags = ['-trimpath', '-tags', 'osusergo netgo', '-ldflags', `-s -w -X ${module}/version.Version=v${buildkitVersion}`];
    await go(['build', ...flags, '-o', `${half}/`, './cmd/buildkitd', './cmd/buildctl'], source);
  });

if (import.meta.main) {
  if (lacksBuildkit() !== null && !hasGo()) console.log(`Tests with BuildKit are skipped: ${lacksBuildkit()}.`);
  else console.log(await buildBuildkit());
}
