/** docs/tutorials/gpu-host.md as a new user follows it: every command of the page, in its order, on two cards that are played. */
import { existsSync, symlinkSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { describe, test } from 'vitest';
import { startChild } from '../support/child.ts';
import { card } from '../support/gpu-cards.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { endSession, followTutorial } from '../support/tutorial.ts';

const page = 'docs/tutorials/gpu-host.md';
const root = join(import.meta.dirname, '../..');

const variables: readonly (readonly [RegExp, string])[] = [
  // Which of two free slots a job gets is no promise.
  [/\bGPU-5eed[\w-]+/g, 'UUID'],
  [/^nvidia\d$/gm, 'NODE'],
  [/(?<=gpu\/\d +)[0-9a-f]{10}\b/g, 'AGENT'],
  [/\b20\d\d-\d\d-\d\dT[\d:.]+Z/g, 'STAMP'],
  [/http:\/\/[\d.]+:\d+\b/g, 'URL'],
  [/\b[0-9a-f]{12}\b/g, 'ID'],
  [/\b20\d\d-\d\d-\d\d \d\d:\d\d\b|\b\d\d:\d\d(?::\d\d)?\b/g, 'CLOCK'],
  [/\b\d+(?:\.\d+)?(?:ms|[smh])\b(?: \d+[smh]\b)*/g, 'TIME'],
];

/** The page shows what doctor says where there is none. */
const hasToolkit = (process.env.PATH ?? '').split(delimiter).some((dir) => existsSync(join(dir, 'nvidia-container-cli')));

describe.skipIf(hasToolkit || lacks('docker', 'image', 'bubblewrap', 'root', 'gitlabRunner', 'gitea'))(page, () => {
  test('every command prints what the page says', { timeout: 300_000 }, async () => {
    await using here = await onejob();
    const home = join(here.dir, 'home');
    symlinkSync(root, join(home, 'onejob'));
    const { PATH, VITEST_POOL_ID } = process.env;
    const env = { PATH, VITEST_POOL_ID, LANG: 'C.UTF-8', HOME: home, USER: 'root', TERM: 'xterm' };
    // A session of its own, by which everything that was started can be found.
    const shell = startChild('setsid', ['bash', '--norc'], { cwd: home, env });
    try {
      await followTutorial({
        page,
        shell,
        home,
        configFile: 'gpu/onejob.yml',
        // The first: where the census looks for what is left.
        places: [
          ['~/gpu/state', here.stateDir],
          ['/home/ada', home],
          // Each process of tests has cards of its own.
          ['GPU-5eed0000-0000-4000-8000-000000000000', card(0).uuid],
        ],
        variables,
        inBackground: /^onejob up$|standin:git/,
        looks: /^onejob (?:status|jobs|logs|doctor|proofs)\b/,
        inAnyOrder: /^onejob (?:jobs|cancel)\b/,
        exitCodes: { 'onejob doctor': 1 },
      });
    } finally {
      await endSession(shell);
    }
  });
});
