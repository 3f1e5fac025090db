import { describe, expect, test } from 'vitest';
import type { JobView } from '../contract/schema.ts';
import { missingCommand, resultWord, verdict } from './exit.ts';

const ended = (code: number, ...command: string[]) => ({ command, result: { kind: 'code', code } }) as unknown as JobView;
const shell = { stdout: '', lines: 1 };
const debian = { workspace: true, image: 'debian:stable-slim', script: null };

describe('a command that is not found', () => {
  test('names the image', () => {
    expect(missingCommand(ended(127, 'make', 'test'), shell, debian)).toBe(
      'exit code 127 means that a command was not found: it may be missing from the image debian:stable-slim; --image chooses another',
    );
    expect(missingCommand(ended(127, 'make'), { stdout: '', lines: 0 }, { ...debian, image: null })).toMatch(/installed where/);
  });

  test('is told where both streams of a job are one', () => {
    const joined = { stdout: '/bin/sh: make: not found\n', lines: 1 };
    expect(missingCommand(ended(127, 'make'), joined, debian)).toMatch(/^exit code 127 means that a command was not found/);
    const refused = { stdout: 'sh: 1: ./t.sh: Permission denied\n', lines: 1 };
    expect(missingCommand(ended(126, './t.sh'), refused, debian)).toMatch(/^exit code 126 means/);
  });

  test('explains --no-workspace for a script, and what else may be missing', () => {
    expect(missingCommand(ended(127, './probe.sh'), shell, { ...debian, workspace: false })).toMatch(
      /--no-workspace .* empty folder, so there is no \.\/probe\.sh$/,
    );
    expect(missingCommand(ended(127, 'ci/build.sh'), shell, debian)).toMatch(
      /check that ci\/build\.sh is among the files that were sent/,
    );
  });

  test('is not assumed if the job printed more than a shell would, or for another code', () => {
    expect(missingCommand(ended(127, 'make'), { stdout: 'building', lines: 1 }, debian)).toBeNull();
    expect(missingCommand(ended(127, 'make'), { stdout: 'building', lines: 0 }, debian)).toBeNull();
    expect(missingCommand(ended(127, 'make'), { stdout: '', lines: 2 }, debian)).toBeNull();
    expect(missingCommand(ended(127, 'make'), { stdout: 'building\nsh: 1: make: not found\n', lines: 2 }, debian)).toBeNull();
    expect(missingCommand(ended(125, 'make'), shell, debian)).toBeNull();
  });

  test('or cannot be executed says what its file lacks', () => {
    const here = (firstLine: string, isExecutable = true) => ({ ...debian, script: { firstLine, isExecutable } });
    for (const code of [126, 127])
      expect(missingCommand(ended(code, './t.sh'), shell, here('#!/bin/sh\r'))).toMatch(/first line of \.\/t\.sh ends with .*CRLF/);
    expect(missingCommand(ended(126, './t.sh'), shell, here('#!/bin/sh', false))).toMatch(
      /\.\/t\.sh is not executable: type "chmod \+x \.\/t\.sh", and in git "git update-index --chmod=\+x \.\/t\.sh"$/,
    );
    expect(missingCommand(ended(126, '/opt/x'), shell, debian)).toMatch(/executable .* noexec$/);
  });
});

describe('the end of a job', () => {
  test('names the time limit', () => {
    const late = { id: 'a1', result: { kind: 'timeout' } } as unknown as JobView;
    expect(verdict(late, 90_000)).toEqual({ code: 124, line: 'job a1 ran past its time limit of 1m30s (--timeout)' });
    expect(verdict(late, null).line).toBe("job a1 ran past its pool's time limit (timeout in the config)");
  });

  test('names the signal in a shell’s exit code', () => {
    expect(verdict(ended(139), null).line).toBe('exit code 139 means that signal 11 (SEGV) ended a command of the job');
    expect(resultWord(ended(139))).toBe('failed (exit 139, SEGV)');
    for (const code of [0, 1, 127, 128, 255]) expect(verdict(ended(code), null).line).toBeNull();
    expect(resultWord(ended(1))).toBe('failed (exit 1)');
  });
});

test('says when the infrastructure is to blame for an exit code', () => {
  const why = 'a device of the job failed: Xid 79, GPU has fallen off the bus, on GPU-1';
  const job = { id: 'a1', result: { kind: 'code', code: 1 }, verdict: { kind: 'infrastructure', why, evidence: [] } };
  expect(verdict(job as unknown as JobView, null)).toEqual({
    code: 1,
    line: `job a1 failed, but the infrastructure is to blame, not the job: ${why}`,
  });
  expect(verdict({ ...job, verdict: { ...job.verdict, kind: 'code' } } as unknown as JobView, null).line).toBe(null);
});

test('names the limit of a job that ran out of memory', () => {
  const why = 'the job used more memory than its limit of 64 MiB';
  const job = { id: 'a1', result: { kind: 'oom' }, verdict: { kind: 'code', why, evidence: [] } } as unknown as JobView;
  const line = 'job a1 was killed because it used more memory than its limit of 64 MiB';
  expect(verdict(job, null)).toEqual({ code: 137, line });
  expect(verdict({ ...job, verdict: null }, null).line).toContain('more memory than its agent is allowed to');
});
