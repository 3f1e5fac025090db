/** What `deploy/` asks for is what a daemon serves. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import { definitions } from '../src/manager/metrics/definitions.ts';
import { MetricsWorld } from '../test/support/metrics-world.ts';

const root = join(import.meta.dirname, '..');
const read = (file: string) => readFileSync(join(root, 'deploy', file), 'utf8');

interface Target {
  readonly expr: string;
}
interface Panel {
  readonly id: number;
  readonly title: string;
  readonly type: string;
  readonly targets?: readonly Target[];
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number };
}
interface Rule extends Target {
  readonly alert: string;
}

const dashboard = JSON.parse(read('grafana/onejob.json')) as {
  readonly panels: readonly Panel[];
  readonly templating: { readonly list: readonly { readonly name: string; readonly definition?: string }[] };
};
const rules = (parse(read('prometheus/rules.yml')) as { groups: { rules: Rule[] }[] }).groups.flatMap((group) => group.rules);
const asked: [string, string][] = [
  ...dashboard.panels.flatMap(({ title, targets = [] }) => targets.map(({ expr }): [string, string] => [title, expr])),
  ...dashboard.templating.list.flatMap(({ name, definition }): [string, string][] =>
    definition === undefined ? [] : [[`variable ${name}`, definition]],
  ),
  ...rules.map(({ alert, expr }): [string, string] => [alert, expr]),
];

/** Labels by the name of each series. Prometheus itself adds `job` and `instance`, and makes `up`. */
const served = new Map<string, Set<string>>([['up', new Set(['job', 'instance'])]]);
let world: MetricsWorld;
beforeAll(async () => {
  world = new MetricsWorld();
  await world.fill();
  for (const [, name = '', labels = ''] of (await world.text()).matchAll(/^([a-z]\w*)(\{.*\})? /gm)) {
    const of = served.get(name) ?? new Set(['job', 'instance']);
    for (const [, label = ''] of labels.matchAll(/(\w+)="/g)) of.add(label);
    served.set(name, of);
  }
});
afterAll(() => world[Symbol.dispose]());

/** What of a query is not a name: texts, variables, numbers, functions and operators. */
const words = /\b(?:sum|count|max|min|by|on|and|or|vector|time|rate|increase|histogram_quantile|label_values|group_left)\b/g;

describe.each(asked)('%s', (_, query) => {
  test('asks for series that a daemon serves, by labels that they have', () => {
    const bare = query.replace(/"[^"]*"/g, '""').replace(/\[[^\]]*\]/g, '');
    const names = [...bare.matchAll(/\b((?:onejob|process|nodejs)_\w+|up)\b/g)].map(([, name = '']) => name);
    expect(names.length).toBeGreaterThan(0);
    expect(names.filter((name) => !served.has(name))).toEqual([]);
    for (const [, name = '', selector = ''] of bare.matchAll(/\b(\w+)\{([^}]*)\}/g)) {
      const labels = [...selector.matchAll(/(\w+)\s*(?:=~|!=|!~|=)/g)].map(([, label = '']) => label);
      expect(labels.filter((label) => !served.get(name)?.has(label))).toEqual([]);
    }
    const all = new Set(names.flatMap((name) => [...(served.get(name) ?? [])]));
    const grouped = [...bare.matchAll(/\b(?:by|on|group_left)\s*\(([^)]*)\)/g)].flatMap(([, list = '']) => list.split(/\s*,\s*/));
    expect(grouped.filter((label) => !all.has(label))).toEqual([]);
    const rest = bare
      .replace(/\{[^}]*\}/g, '')
      .replace(/\b(?:by|on|group_left)\s*\([^)]*\)/g, '')
      .replace(words, '');
    const unknown = [...rest.matchAll(/[a-z_]\w*/gi)].map(([word]) => word);
    expect(unknown.filter((word) => !served.has(word) && !all.has(word))).toEqual([]);
  });
});

test('every metric about jobs, pools and devices is on the dashboard', () => {
  const names = [...served.keys()].map((name) => name.replace(/_(?:bucket|sum|count)$/, ''));
  const queries = asked.map(([, query]) => query).join('\n');
  expect([...new Set(names)].filter((name) => !new RegExp(`\\b${name}(?:_bucket|_count)?\\b`).test(queries))).toEqual([
    'process_open_fds',
  ]);
});

test('no metric has a label that Prometheus gives every series', () => {
  expect(Object.values(definitions).filter(({ labels }) => labels.some((label) => /^(?:job|instance)$/.test(label)))).toEqual([]);
});

test('panels of the dashboard have their own ids, and do not overlap', () => {
  const { panels } = dashboard;
  expect(new Set(panels.map(({ id }) => id)).size).toBe(panels.length);
  const places = panels.flatMap(({ gridPos: { x, y, w, h } }) =>
    Array.from({ length: w * h }, (_, n) => `${x + (n % w)} ${y + Math.floor(n / w)}`),
  );
  expect(new Set(places).size).toBe(places.length);
  expect(panels.every(({ gridPos: { x, w } }) => x + w <= 24)).toBe(true);
});

test('every alert has a test, a severity, and says what to do', () => {
  const tests = parse(read('prometheus/rules.test.yml')) as {
    tests: { alert_rule_test: { alertname: string; exp_alerts?: unknown[] }[] }[];
  };
  const fired = tests.tests.flatMap((one) => one.alert_rule_test).filter(({ exp_alerts: alerts = [] }) => alerts.length > 0);
  expect(new Set(fired.map(({ alertname }) => alertname))).toEqual(new Set(rules.map(({ alert }) => alert)));
  for (const rule of rules)
    expect(rule).toMatchObject({
      labels: { severity: expect.stringMatching(/^(?:info|warning|critical)$/) },
      annotations: { summary: expect.stringContaining('{{ $labels.instance }}'), description: expect.stringContaining('"') },
    });
});
