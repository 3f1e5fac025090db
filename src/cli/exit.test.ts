import { describe, expect, test } from 'vitest';
import type { JobView } from '../api/schema.ts';
import { missingCommand } from './exit.ts';

const ended = (code: number, ...command: string[]) => ({ command, result: { kind: 'code', code } }) as unknown as JobView;
const shell = { stdout: 0, stderr: 1 };
const debian = { workspace: true, image: 'debian:stable-slim' };

describe('a command that is not found', () => {
  test('names the image', () => {
    expect(missingCommand(ended(127, 'make', 'test'), shell, debian)).toBe(
      'exit code 127 says that a command was not found: it may be missing from the image debian:stable-slim; --image chooses another',
    );
    expect(missingCommand(ended(127, 'make'), { stdout: 0, stderr: 0 }, { ...debian, image: null })).toMatch(/installed where/);
  });

  test('says what --no-workspace means for a script, and what else may lack', () => {
    expect(missingCommand(ended(127, './probe.sh'), shell, { ...debian, workspace: false })).toMatch(
      /--no-workspace .* empty folder, so there is no \.\/probe\.sh$/,
    );
    expect(missingCommand(ended(127, 'ci/build.sh'), shell, debian)).toMatch(/is ci\/build\.sh among the files that were sent/);
  });

  test('is not guessed at once the job has said more than a shell says of it, nor for another code', () => {
    expect(missingCommand(ended(127, 'make'), { stdout: 1, stderr: 0 }, debian)).toBeNull();
    expect(missingCommand(ended(127, 'make'), { stdout: 0, stderr: 2 }, debian)).toBeNull();
    expect(missingCommand(ended(126, 'make'), shell, debian)).toBeNull();
  });
});
