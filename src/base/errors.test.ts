import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { errorCodes, OnejobError, toFailure } from './errors.ts';

const page = readFileSync(new URL('../../docs/errors.md', import.meta.url), 'utf8');
const sections = new Map(
  page
    .split(/^### /m)
    .slice(1)
    .map((text) => [text.slice(0, text.indexOf('\n')), text]),
);

describe('docs/errors.md', () => {
  it.each(Object.entries(errorCodes))('%s is explained as %s, with what to do', (code, kind) => {
    const section = sections.get(code);
    expect(section, `docs/errors.md has no heading "### ${code}"`).toBeDefined();
    expect(section).toMatch(new RegExp(`^${code}\\n\\*${kind}\\* · \\S.*\\n\\n?\\*\\*Do:\\*\\* \\S`));
  });

  it('explains no removed code', () => {
    expect([...sections.keys()].filter((code) => !Object.hasOwn(errorCodes, code))).toEqual([]);
  });
});

it('any thrown value becomes a failure that can be stored', () => {
  const error = new OnejobError('E_STATE_FULL', 'Cannot write.', { hint: 'Free space.', retry: true });
  expect(toFailure(error)).toEqual({ code: 'E_STATE_FULL', message: 'Cannot write. Free space.', retry: true });
  expect(toFailure(new TypeError('odd'))).toEqual({ code: 'E_BUG', message: 'odd', retry: true });
  expect(toFailure('text')).toEqual({ code: 'E_BUG', message: 'text', retry: true });
});
