import { expect, test } from 'vitest';
import { watchVersion } from './version.ts';

function tab() {
  const kept = new Map<string, string>();
  let reloads = 0;
  const open = () =>
    watchVersion({
      storage: { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => void kept.set(key, value) },
      reload: () => {
        reloads += 1;
      },
    });
  return { open, reloads: () => reloads };
}

test('a page is loaded again when another version of the daemon answers', () => {
  const one = tab();
  const saw = one.open();
  saw('1.0.0');
  saw('1.0.0');
  expect(one.reloads()).toBe(0);
  saw('1.1.0');
  saw('1.1.0');
  expect(one.reloads()).toBe(1);
});

test('two daemons behind one address do not keep a tab reloading', () => {
  const one = tab();
  for (let turn = 0; turn < 50; turn += 1) {
    const saw = one.open();
    saw(turn % 2 === 0 ? '1' : '2');
    saw(turn % 2 === 0 ? '2' : '1');
  }
  expect(one.reloads()).toBe(2);
});

test('where a browser keeps nothing, nothing is loaded again', () => {
  const refuse = () => {
    throw new DOMException('denied', 'SecurityError');
  };
  const saw = watchVersion({ storage: { getItem: refuse, setItem: refuse }, reload: () => expect.fail() });
  saw('1');
  saw('2');
});
