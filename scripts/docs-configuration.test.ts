/** The configs that the pages show are read by the real parser: a reader who copies one has a daemon that starts. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { parseDocument } from 'yaml';
import { topFile } from '../src/config/interpret.ts';
import { formatProblem } from '../src/schema/problem.ts';
import { Folder } from '../test/kit/config.ts';

const root = join(import.meta.dirname, '..');
const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

/** Without a look at this host, so that its secrets and folders need not be here. */
const read = (text: string) => folder.load(text, { now: Date.UTC(2026, 0, 1) });

function configsOf(page: string): string[] {
  const keys = new Set(Object.keys(topFile.shape));
  const blocks = [...readFileSync(join(root, page), 'utf8').matchAll(/^ *```ya?ml\n(.*?)^ *```$/gms)].map(([, text = '']) => text);
  return blocks.filter((text) => {
    // Parts of a file, and the list of hosts of a client.
    if (/…|ssh:/.test(text)) return false;
    const value: unknown = parseDocument(text).toJS();
    const found = value !== null && typeof value === 'object' && !Array.isArray(value) ? Object.keys(value) : [];
    return found.length > 0 && found.every((key) => keys.has(key));
  });
}

test('the examples of docs/configuration.md are whole files without a warning', async () => {
  const examples = configsOf('docs/configuration.md');
  expect(examples).toHaveLength(3);
  const pools = [];
  for (const text of examples) {
    const { config, errors, warnings } = await read(text);
    expect([...errors, ...warnings].map(formatProblem)).toEqual([]);
    pools.push(config.pools.map((pool) => [pool.name, pool.service, pool.agents, pool.devices.count]));
  }
  expect(pools).toEqual([
    [
      ['build', 'own', 4, 0],
      ['check', 'own', 2, 0],
    ],
    [['gpu', 'own', 'per-device', 1]],
    [
      ['ci', 'github', 4, 0],
      ['ci-gpu', 'github', 2, 1],
      ['people', 'own', 1, 1],
    ],
  ]);
});

const pages = ['README.md', ...globSync('docs/**/*.md', { cwd: root })].flatMap((page) => {
  const configs = configsOf(page);
  return configs.length > 0 ? [[page, configs] as const] : [];
});

/** What a page may leave out that shows a part of a config. */
const elsewhere = /"(?:services|runtimes|clouds)" has no |needs "join"|^\S+ include\S*: .* does not exist$/;

test.each(pages)('the configs in %s are valid', async (_, configs) => {
  for (const text of configs) {
    const errors = (await read(text)).errors.map(formatProblem);
    expect(
      errors.filter((error) => !elsewhere.test(error)),
      text,
    ).toEqual([]);
  }
});
