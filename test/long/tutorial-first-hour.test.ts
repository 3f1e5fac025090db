/** docs/tutorials/first-hour.md as a new user follows it: every command of the page, in its order, with the stand-ins and real clients. */
import { mkdirSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'vitest';
import { buildDashboard } from '../../web/test/browser.ts';
import { startChild } from '../support/child.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { endSession, followTutorial } from '../support/tutorial.ts';

const page = 'docs/tutorials/first-hour.md';
const root = join(import.meta.dirname, '../..');

/** Commands that are not run, each with the reason. */
const notRun: Readonly<Record<string, string>> = {
  'npm ci': 'the packages of this clone are there; .ci/run begins with the same command',
  'npm run build:web': 'other tests load these files meanwhile, so this test builds them as those do',
};

const variables: readonly (readonly [RegExp, string])[] = [
  [/\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/g, 'ID'],
  [/http:\/\/[\d.]+:\d+(?=\/v3)/g, 'URL'],
  [/\b[0-9a-f]{8}\b(?= is queued| \|)/g, 'ID'],
  [/\b[0-9a-f]{12}\b/g, 'ID'],
  [/(?<=^ID +work +)\S+/gm, 'USER'],
  [/http:\/\/127\.0\.0\.1:\d+\/login\/\S+/g, 'LINK'],
  [/\b\d\d:\d\d:\d\d\b/g, 'CLOCK'],
  [/\b\d+(?:\.\d+)?(?:ms|[smh])\b(?: \d+[smh]\b)*/g, 'TIME'],
];

describe.skipIf(lacks('docker', 'image', 'gitlabRunner', 'buildkiteAgent'))(page, () => {
  test('every command prints what the page says', { timeout: 300_000 }, async () => {
    await using here = await onejob();
    const home = join(here.dir, 'home');
    await buildDashboard();
    symlinkSync(root, join(home, 'onejob'));
    mkdirSync(join(home, 'first'));
    const env = { PATH: process.env.PATH, LANG: 'C.UTF-8', HOME: home, USER: 'ada', TERM: 'xterm' };
    // A session of its own, by which everything that was started can be found.
    const shell = startChild('setsid', ['bash', '--norc'], { cwd: home, env });
    try {
      await followTutorial({
        page,
        shell,
        home,
        configFile: 'first/onejob.yml',
        places: [
          // Where the census looks for what is left.
          ['~/first/state', here.stateDir],
          ['/home/ada', home],
          // Somebody else of this host may have the usual port.
          ['standin:buildkite --', 'standin:buildkite -- --port 0'],
        ],
        variables,
        looks: /^onejob (?:status|jobs|logs|doctor)\b/,
        inAnyOrder: /^onejob (?:jobs|doctor|status)\b/,
        inBackground: /^onejob up$|standin:/,
        notRun,
        exitCodes: { 'onejob doctor': 1 },
      });
    } finally {
      await endSession(shell);
    }
  });
});
