/** What `bin/onejob` makes of the process before it becomes Node. */
import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../test/support/scratch.ts';

/** Runs a copy of it whose Node is `script`. */
function launched(script: string, before: string): string {
  using here = scratch();
  const node = join(here.path, 'node_modules/node/bin');
  mkdirSync(node, { recursive: true });
  mkdirSync(join(here.path, 'bin'));
  cpSync(join(import.meta.dirname, '../bin/onejob'), join(here.path, 'bin/onejob'));
  writeFileSync(join(node, 'node'), `#!/bin/sh\n${script}\n`);
  chmodSync(join(node, 'node'), 0o755);
  return execFileSync('sh', ['-c', `${before}; exec "$0" up`, join(here.path, 'bin/onejob')], { encoding: 'utf8' });
}

test('no core of the daemon or its helpers is written, whatever limit they are started with', () => {
  expect(launched('ulimit -S -c', 'ulimit -S -c "$(ulimit -H -c)"')).toBe('0\n');
});

test('Node is told which signals the caller ignores, because it sets them back', () => {
  const said = 'echo "<${ONEJOB_IGNORED-none}>"';
  expect(launched(said, ':')).toBe('<none>\n');
  expect(launched(said, 'export ONEJOB_IGNORED=SIGTERM')).toBe('<none>\n');
  expect(launched(said, "trap '' HUP")).toBe('<SIGHUP>\n');
  expect(launched(said, "trap '' INT TERM QUIT PIPE")).toBe('< SIGINT SIGTERM SIGPIPE>\n');
});

test('what changes how Node runs is kept for jobs under another name', () => {
  const said = 'echo "<${NODE_OPTIONS-none}> <${ONEJOB_CALLER_NODE_OPTIONS-none}> <${NODE_EXTRA_CA_CERTS-none}>"';
  const before = 'export NODE_OPTIONS="--a \'b c\'" NODE_EXTRA_CA_CERTS=/ca';
  expect(launched(said, before)).toBe("<none> <--a 'b c'> </ca>\n");
});
