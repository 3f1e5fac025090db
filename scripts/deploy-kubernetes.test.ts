/** What `deploy/kubernetes` installs is what onejob needs, and no more. test/engines/kubernetes-deploy.test.ts installs it. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { networkRights, rights } from '../src/runtimes/kubernetes/check.ts';

const root = join(import.meta.dirname, '..');
const read = (file: string) => readFileSync(join(root, file), 'utf8');
const { version } = JSON.parse(read('package.json')) as { version: string };

interface Rule {
  readonly apiGroups: readonly string[];
  readonly resources: readonly string[];
  readonly verbs: readonly string[];
}

/** The rules of the Role in a file, one line each. The chart is not YAML before Helm has filled it in; its rules are. */
function grantedIn(file: string): string[] {
  const [, block = ''] = /^kind: Role\n[\s\S]*?^rules:\n((?: {2}(?:-|#) .*\n)+)/m.exec(read(file)) ?? [];
  return lines((parse(block) as Rule[] | null) ?? []);
}

function lines(rules: readonly Rule[]): string[] {
  const all = rules.flatMap(({ apiGroups, resources, verbs }) =>
    apiGroups.flatMap((group) => resources.map((resource) => `${group}/${resource}: ${verbs.toSorted().join(' ')}`)),
  );
  return all.sort();
}

test.each(['docs/runtimes/kubernetes.md', 'deploy/kubernetes/base/access.yaml', 'deploy/kubernetes/chart/templates/onejob.yaml'])(
  '%s gives the rights that onejob uses',
  (file) => {
    const used = [...rights, ...networkRights].map(({ group, resource, verbs }) => ({
      apiGroups: [group],
      resources: [resource],
      verbs: [...verbs],
    }));
    expect(grantedIn(file)).toEqual(lines(used));
  },
);

const files = globSync(['deploy/kubernetes/{base,metrics,monitor}/*.yaml', 'deploy/kubernetes/chart/{Chart,values}.yaml'], {
  cwd: root,
});

test.each(files)('%s is YAML', (file) => {
  const documents = parseAllDocuments(read(file));
  expect(documents.length).toBeGreaterThan(0);
  for (const document of documents) expect([...(document as { errors: unknown[] }).errors]).toEqual([]);
});

test('each file of a folder is in its kustomization', () => {
  for (const folder of ['base', 'metrics', 'monitor']) {
    const own = `deploy/kubernetes/${folder}`;
    const { resources = [] } = parse(read(`${own}/kustomization.yaml`)) as { resources?: string[] };
    const there = globSync('*.yaml', { cwd: join(root, own) }).filter((name) => name !== 'kustomization.yaml');
    expect(resources.toSorted()).toEqual(there.sort());
  }
});

test('both ways have the same config', () => {
  const { config } = parse(read('deploy/kubernetes/chart/values.yaml')) as { config: string };
  expect(parse(config)).toEqual(parse(read('deploy/kubernetes/base/config.yml')));
});

test('images and chart have the version of this release', () => {
  const chart = parse(read('deploy/kubernetes/chart/Chart.yaml')) as Record<string, unknown>;
  const { image } = parse(read('deploy/kubernetes/chart/values.yaml')) as { image: { tag: string } };
  expect([chart.version, chart.appVersion, image.tag]).toEqual([version, version, version]);
  expect(read('deploy/kubernetes/base/deployment.yaml')).toContain(`image: onejob:${version}\n`);
});
