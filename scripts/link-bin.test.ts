/** What "npm ci" makes of the Node that it fetched. */
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, lstatSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { scratch } from '../test/support/scratch.ts';

/** Runs the script in a checkout where `put` has put a Node, and tells whether that is still there. */
function install(put: (node: string) => void) {
  using here = scratch();
  const node = join(here.path, 'node_modules/node/bin/node');
  mkdirSync(join(here.path, 'node_modules/node/bin'), { recursive: true });
  mkdirSync(join(here.path, 'scripts'));
  for (const name of ['link-bin.cjs', 'node-sums.cjs']) cpSync(join(import.meta.dirname, name), join(here.path, 'scripts', name));
  put(node);
  const { status, stderr } = spawnSync(process.execPath, [join(here.path, 'scripts/link-bin.cjs')], { encoding: 'utf8' });
  const isLinked = lstatSync(join(here.path, 'node_modules/.bin/onejob'), { throwIfNoEntry: false })?.isSymbolicLink() === true;
  return { status, stderr, isLinked, isThere: existsSync(node) };
}

test('a Node with another checksum than the one that is written down is removed, and the installation fails', () => {
  const result = install((node) => writeFileSync(node, 'something else'));
  expect(result).toMatchObject({ status: 1, isLinked: false, isThere: false });
  expect(result.stderr).toMatch(
    /The Node that npm has fetched is not the one that belongs here: .* has sha256 [0-9a-f]{64}, expected was/,
  );
});

test('the Node that belongs here stays, and so does a checkout without one', () => {
  expect(install((node) => cpSync(process.execPath, node))).toMatchObject({ status: 0, stderr: '', isLinked: true, isThere: true });
  expect(install(() => {})).toMatchObject({ status: 0, isLinked: true });
});

test('the checksums are of the version that is installed, and npm runs the check under its own Node', () => {
  const { devDependencies, scripts } = JSON.parse(readFileSync(join(import.meta.dirname, '../package.json'), 'utf8'));
  expect(readFileSync(join(import.meta.dirname, 'node-sums.cjs'), 'utf8')).toContain(`version ${devDependencies.node},`);
  expect(scripts.prepare).toBe('"${npm_node_execpath:-node}" scripts/link-bin.cjs');
});
