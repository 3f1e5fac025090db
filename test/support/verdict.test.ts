import { describe, expect, test } from 'vitest';
import { type Books, type FileRun, type Flake, isRed, judge, type Quarantined, quarantineLimit } from './verdict.ts';

const today = '2026-03-10';
const circumstances = { lane: 'acceptance', date: today, commit: 'abc1234', seed: '7', load: 1.5 };
const noBooks: Books = { flakes: [], quarantine: [] };
const isDeterministic = (file: string): boolean => file.startsWith('unit/');

function run(file: string, results: Record<string, 'passed' | string>): FileRun {
  const entries = Object.entries(results);
  return {
    file,
    passed: entries.filter(([, result]) => result === 'passed').map(([name]) => name),
    failed: new Map(entries.filter(([, result]) => result !== 'passed')),
  };
}

function flake(file: string, name: string): Flake {
  return { ...circumstances, file, test: name, red: '1 of 2', said: 'once' };
}

function entry(file: string, name: string, until = '2026-03-20'): Quarantined {
  return { file, test: name, since: '2026-03-01', until };
}

const accept = (runs: FileRun[][], books: Books = noBooks) =>
  judge(runs, books, circumstances, { isDeterministic, honoursQuarantine: true });
const gate = (runs: FileRun[][], books: Books = noBooks) =>
  judge(runs, books, { ...circumstances, lane: 'gate' }, { isDeterministic, honoursQuarantine: false });

const red = run('long/a', { one: 'timed out', two: 'passed' });
const green = run('long/a', { one: 'passed', two: 'passed' });

describe('a red file', () => {
  test('that is red in every run alone is a regression, and no flake', () => {
    const verdict = accept([[red, red, red, red]]);
    expect(verdict.red).toEqual([{ file: 'long/a', test: 'one', said: 'timed out' }]);
    expect(verdict).toMatchObject({ flakes: [], passed: 1 });
  });

  test('that turns green is a flake, with where and when it was red', () => {
    const verdict = accept([[red, red, green]]);
    expect(verdict).toMatchObject({ red: [], problems: [], passed: 2, quarantine: [] });
    expect(verdict.flakes).toEqual([{ ...circumstances, file: 'long/a', test: 'one', red: '2 of 3', said: 'timed out' }]);
  });

  test('whose red test is another one each time stays red', () => {
    const other = run('long/a', { one: 'passed', two: 'lost' });
    const verdict = accept([[red, other, red, other]]);
    expect(verdict.red).toEqual([{ file: 'long/a', test: 'two', said: 'lost' }]);
    expect(verdict.flakes).toMatchObject([{ test: 'one', red: '2 of 4' }]);
  });

  test('that failed before its tests goes by its own name, and counts as no test when it turns green', () => {
    const broken = run('long/a', { '': 'cannot be loaded' });
    expect(accept([[broken, broken, broken, broken]]).red).toEqual([{ file: 'long/a', test: '', said: 'cannot be loaded' }]);
    expect(accept([[broken, green]])).toMatchObject({ red: [], passed: 2, flakes: [{ test: '', red: '1 of 2' }] });
  });

  test('of the deterministic part is red at once, whatever the books say', () => {
    const bug = run('unit/b', { one: 'expected 1' });
    const books = { flakes: [], quarantine: [entry('unit/b', 'one')] };
    const verdict = accept([[bug]], books);
    expect(verdict.red).toHaveLength(1);
    expect(verdict.flakes).toEqual([]);
    expect(verdict.problems).toEqual(['unit/b: one is of the deterministic part, which knows no quarantine.']);
  });
});

describe('quarantine', () => {
  test('is where the second flake of a test puts it, for two weeks', () => {
    const verdict = accept([[red, green]], { flakes: [flake('long/a', 'one')], quarantine: [] });
    expect(verdict.quarantine).toEqual([{ file: 'long/a', test: 'one', since: today, until: '2026-03-24' }]);
    expect(verdict.red).toEqual([]);
  });

  test('takes in what the gate wrote down twice', () => {
    const books = { flakes: [flake('long/a', 'one'), flake('long/a', 'one')], quarantine: [] };
    expect(accept([[green]], books).quarantine).toHaveLength(1);
    expect(gate([[green]], books).quarantine).toBe(books.quarantine);
  });

  test('is not for tests of which each failed once', () => {
    const books = { flakes: [flake('long/a', 'two'), flake('long/b', 'one')], quarantine: [] };
    expect(accept([[red, green]], books).quarantine).toEqual([]);
  });

  test('keeps a test from counting, but not from being written down', () => {
    const books = { flakes: [], quarantine: [entry('long/a', 'one')] };
    expect(isRed(red, books.quarantine)).toBe(false);
    const verdict = accept([[red]], books);
    expect(verdict).toMatchObject({ red: [], passed: 1, notCounted: 1, quarantine: books.quarantine });
    expect(verdict.flakes).toMatchObject([{ test: 'one', red: '1 of 1' }]);
    expect(accept([[green]], books)).toMatchObject({ passed: 1, notCounted: 1, flakes: [] });
  });

  test('excuses nothing else of its file', () => {
    const both = run('long/a', { one: 'timed out', two: 'lost' });
    const books = { flakes: [], quarantine: [entry('long/a', 'one')] };
    expect(isRed(both, books.quarantine)).toBe(true);
    expect(accept([[both, both, both, both]], books).red).toEqual([{ file: 'long/a', test: 'two', said: 'lost' }]);
  });

  test('excuses nothing at the gate, and its dates decide nothing there', () => {
    const books = { flakes: [], quarantine: [entry('long/a', 'one', '2026-03-09')] };
    expect(isRed(red, [])).toBe(true);
    expect(gate([[red, red]], books)).toMatchObject({ red: [{ test: 'one' }], problems: [] });
    expect(gate([[red, green]], books)).toMatchObject({ red: [], problems: [], flakes: [{ lane: 'gate', red: '1 of 2' }] });
  });

  test('holds on its last day, and is red on the day after', () => {
    expect(accept([], { flakes: [], quarantine: [entry('long/a', 'one', today)] }).problems).toEqual([]);
    expect(accept([], { flakes: [], quarantine: [entry('long/a', 'one', '2026-03-09')] }).problems).toEqual([
      'long/a: one has been in quarantine since 2026-03-01: its time ended on 2026-03-09.',
    ]);
  });

  test(`of more than ${quarantineLimit} tests is red, also by the one that this run adds`, () => {
    const quarantine = Array.from({ length: quarantineLimit }, (_, at) => entry('long/b', `case ${at}`));
    expect(accept([], { flakes: [], quarantine }).problems).toEqual([]);
    const verdict = accept([[red, green]], { flakes: [flake('long/a', 'one')], quarantine });
    expect(verdict.problems).toEqual(['11 tests are in quarantine, and 10 is the most.']);
  });
});
