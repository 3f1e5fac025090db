/** What strangers and forges find at the root: the files can be read, and say what is true. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';

const root = join(import.meta.dirname, '..');
const read = (file: string) => readFileSync(join(root, file), 'utf8');
const about = JSON.parse(read('package.json'));

interface Workflow {
  readonly jobs: Readonly<Record<string, { readonly steps: readonly { readonly run?: string }[] }>>;
}

describe('pipelines call .ci/run, and do nothing of their own', () => {
  test.each(['.github/workflows/ci.yml', '.gitea/workflows/ci.yml'])('%s', (file) => {
    const { jobs } = parse(read(file)) as Workflow;
    const runs = Object.values(jobs).flatMap(({ steps }) => steps.flatMap(({ run }) => run ?? []));
    expect(runs).toEqual([expect.stringMatching(/^git config /), '.ci/run']);
  });

  test('.gitlab-ci.yml', () => {
    expect(parse(read('.gitlab-ci.yml')).gate.script).toEqual([expect.stringMatching(/^git config /), '.ci/run']);
  });

  test('they use the Node of the project, as do editors and version managers', () => {
    const { node } = about.devDependencies;
    expect(read('.node-version')).toBe(`${node}\n`);
    const image = `node:${node.split('.')[0]}-bookworm`;
    for (const file of ['.github/workflows/ci.yml', '.gitea/workflows/ci.yml', '.gitlab-ci.yml', '.devcontainer/devcontainer.json'])
      expect(read(file)).toContain(image);
  });
});

describe('issues', () => {
  // https://docs.github.com/en/communities/using-templates-to-encourage-useful-issues-and-pull-requests/syntax-for-issue-forms
  test.each(['bug', 'idea'])('the form %s has what forges require', (name) => {
    const { body, ...form } = parse(read(`.github/ISSUE_TEMPLATE/${name}.yml`));
    expect(form).toEqual({ name: expect.any(String), description: expect.any(String), labels: [expect.any(String)] });
    const fields = body.filter(({ type }: { type: string }) => type !== 'markdown');
    const ids = fields.map(({ id }: { id: string }) => id);
    expect(new Set(ids).size).toBe(ids.length);
    for (const { type, attributes } of fields) expect([type, attributes.label]).toEqual(['textarea', expect.any(String)]);
  });

  test.each(['.github/ISSUE_TEMPLATE/bug.yml', '.gitlab/issue_templates/Bug.md', 'CONTRIBUTING.md', 'SECURITY.md'])(
    '%s asks for "onejob report"',
    (file) => expect(read(file)).toContain('onejob report'),
  );

  test('SECURITY.md invents no address', () => expect(read('SECURITY.md')).not.toMatch(/\S+@\S+|https?:/));
});

test.each(['renovate.json', '.devcontainer/devcontainer.json'])('%s is JSON', (file) => {
  expect(JSON.parse(read(file))).toBeInstanceOf(Object);
});

test('the files that CONTRIBUTING.md names are there', () => {
  const names = [...read('CONTRIBUTING.md').matchAll(/`((?:src|test|scripts|docs|web|\.\w+)\/[\w./-]+|[\w-]*\.gitlab-ci\.yml)`/g)];
  const missing = names.flatMap(([, name = '']) => (existsSync(join(root, name)) ? [] : [name]));
  expect(names.length).toBeGreaterThan(15);
  expect(missing).toEqual([]);
});
