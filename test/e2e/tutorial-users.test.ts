/** docs/tutorials/users.md as a new user follows it: every command of the page, in its order, on a host where a daemon runs. */
import { mkdirSync, symlinkSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { startChild } from '../support/child.ts';
import { onejob } from '../support/onejob.ts';
import { lacks } from '../support/require.ts';
import { followTutorial } from '../support/tutorial.ts';

const page = 'docs/tutorials/users.md';
const program = join(import.meta.dirname, '../../bin/onejob');

const variables: readonly (readonly [RegExp, string])[] = [
  [/\b[0-9a-f]{12}\b/g, 'ID'],
  [/(?<=^ID +work +)\S+/gm, 'USER'],
  [/\b\d+(?:ms|[smh])\b(?: \d+[smh]\b)*/g, 'TIME'],
];

describe.skipIf(lacks('bubblewrap'))(page, () => {
  test('every command prints what the page says', async () => {
    await using here = await onejob({ config: 'pools: { work: { runtime: process, agents: 2, timeout: 30m } }' });
    await here.up();
    const bin = join(here.dir, 'bin');
    mkdirSync(bin);
    symlinkSync(program, join(bin, 'onejob'));
    const env = { ...here.env, PATH: `${bin}${delimiter}${process.env.PATH}` };
    const shell = startChild('bash', ['--norc'], { cwd: here.cwd, env });
    try {
      await followTutorial({
        page,
        shell,
        home: here.cwd,
        places: [],
        variables,
        looks: /^onejob (?:status|jobs|logs)\b/,
        inAnyOrder: /^onejob jobs\b/,
        exitCodes: { 'onejob wait "$NIGHT"': 130 },
      });
    } finally {
      await shell.kill();
    }
    expect((await here.api.jobs({ all: false, pool: null })).length).toBe(0);
  });
});
