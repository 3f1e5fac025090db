/**
 * gVisor's runsc, unchanged, built once from the module proxy: an OCI runtime with a kernel of its own. Also a command:
 * `node test/support/runsc.ts` builds it where Go is there, in two minutes.
 */
import { copyFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { go, hasGo, inCache, madeOnce, moduleFolder } from './go-program.ts';

/** Of the branch `go`, which has the generated code. */
export const runscVersion = 'v0.0.0-20260905035102-160fafc42237';

export const runsc = inCache(`runsc-${runscVersion}`);

/** Why it is not there, as a sentence's end; null when it is. */
export function lacksRunsc(): string | null {
  if (existsSync(runsc)) return null;
  const how = hasGo() ? 'run "npx node test/support/runsc.ts" once' : '"go" is not installed to build it';
  return `nothing at ${runsc}; ${how}`;
}

/** Builds it if it is missing. @throws Error with what Go said */
export const buildRunsc = (): Promise<string> =>
  madeOnce(runsc, async (half) => {
    const source = await moduleFolder(`gvisor.dev/gvisor@${runscVersion}`);
    // Its go.sum lacks what the program needs, and the folder of a module cannot be written to.
    const folder = mkdtempSync(join(tmpdir(), 'onejob-runsc-'));
    try {
      for (const name of ['go.mod', 'go.sum']) copyFileSync(join(source, name), join(folder, name));
      const flags = [
        '-mod=mod',
        `-modfile=${folder}/go.mod`,
        '-trimpath',
        '-ldflags',
        `-s -w -X gvisor.dev/gvisor/runsc/version.version=${runscVersion}`,
      ];
      await go(['build', ...flags, '-o', half, './runsc'], source, { GOFLAGS: '-buildvcs=false' });
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

if (import.meta.main) {
  if (lacksRunsc() !== null && !hasGo()) console.log(`Tests with runsc are skipped: ${lacksRunsc()}.`);
  else console.log(await buildRunsc());
}
