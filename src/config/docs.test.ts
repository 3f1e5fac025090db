import { afterAll, describe, expect, it } from 'vitest';
import { describe as about } from './docs.ts';
import { nestedKeys, poolFile, serviceFiles, topFile } from './schema.ts';
import { Folder } from './testing.ts';

const folder = new Folder();
afterAll(() => folder[Symbol.dispose]());

const sections = { top: topFile, pool: poolFile, ...nestedKeys, ...serviceFiles };
const inside: Record<string, (key: string) => string> = {
  top: (key) => key,
  pool: (key) => `services: { julia: { type: own-queue } }\npools: { x: {} }\ndefaults: { ${key} }`,
  disk: (key) => `disk: { ${key} }`,
  secrets: (key) => `secrets: { ${key} }`,
  buildkite: (key) =>
    `services: { a: { type: buildkite, token: { env: T }, ${key} } }`.replace('token: { env: T }, token', 'token'),
  'azure-pipelines': (key) =>
    `services: { a: { type: azure-pipelines, ${key.startsWith('url') ? 'token: { env: T }' : 'url: "https://a"'}, ${key} } }`,
};

describe.each(Object.entries(sections).filter(([, schema]) => Object.keys(schema.shape).length > 0))('%s', (section, schema) => {
  it.each(Object.keys(schema.shape))('%s has a meaning and an example that is right', async (key) => {
    const { description, example, kind } = about(schema.shape[key as keyof typeof schema.shape]);
    expect(description).toMatch(/\.$/);
    expect(kind).not.toBe('');
    const wrap = inside[section] ?? ((text: string) => `pools: { x: {} }\ndefaults: { ${section}: { ${text} } }`);
    const lines = await folder.check(wrap(`${key}: ${example}`));
    // An example shows one key: that another one belongs to it, or that a file must be there, is no mistake of its own.
    expect(lines.filter((line) => !/warning|does not exist|nothing to build on/.test(line))).toEqual([]);
  });
});
