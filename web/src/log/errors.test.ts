import { expect, test } from 'vitest';
import { looksLikeError } from './errors.ts';

test.each([
  'src/a.c:3:1: error: expected ";"',
  'Error: Cannot find module "x"',
  'ValueError: bad shape',
  'Traceback (most recent call last):',
  'java.lang.NullPointerException',
  '--- FAIL: TestThing (0.00s)',
  'FAILED tests/test_a.py::test_b',
  '3 failed, 12 passed',
  'make: *** [all] Error 2',
  'fatal: not a git repository',
  'panic: runtime error: index out of range',
  'thread main panicked at src/main.rs:2',
  'Segmentation fault (core dumped)',
  'bash: nvcc: command not found',
  'RuntimeError: CUDA error: out of memory',
  '✗ renders the page',
  'errors.c:12: error: x',
])('an error: %s', (line) => expect(looksLikeError(line)).toBe(true));

test.each([
  'compiling src/errors.c',
  '0 errors, 0 warnings',
  'no errors found',
  'gcc -Werror -Wno-error=foo main.c',
  'Tests: 12 passed, 0 failed',
  'npm install --no-fail-fast',
  'set -e',
  'continue-on-error: true',
  'downloading failover-1.2.tar.gz',
  'the terror of it',
])('no error: %s', (line) => expect(looksLikeError(line)).toBe(false));

// Expressions whose time grows with the square of a line take minutes for these.
test.each(['--'.repeat(50_000), 'w'.repeat(200_000), 'error '.repeat(50_000), '--x '.repeat(40_000)])(
  'of a hostile line only the beginning is looked at (%#)',
  (line) => {
    for (let n = 0; n < 1_000; n += 1) expect(looksLikeError(`fatal: ${line}`)).toBe(true);
    expect(looksLikeError(`${line.replaceAll('error', 'x')} fatal`)).toBe(false);
  },
);
