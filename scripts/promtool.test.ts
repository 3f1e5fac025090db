/** Prometheus' own tool about what onejob serves and ships. */
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { MetricsWorld } from '../test/support/metrics-world.ts';
import { lacks } from '../test/support/require.ts';
import { scratch } from '../test/support/scratch.ts';

const folder = join(import.meta.dirname, '..', 'deploy', 'prometheus');

function promtool(args: readonly string[], input = '') {
  const { status, stdout, stderr } = spawnSync('promtool', args, { cwd: folder, input, encoding: 'utf8', timeout: 30_000 });
  return { status, said: stdout + stderr };
}

describe.skipIf(lacks('promtool'))('promtool', () => {
  test('accepts the alert rules', () => {
    expect(promtool(['check', 'rules', '--lint=all', '--lint-fatal', 'rules.yml'])).toMatchObject({ status: 0 });
  });

  test('sees each alert when it should, and only then', () => {
    expect(promtool(['test', 'rules', 'rules.test.yml'])).toMatchObject({ status: 0 });
  });

  test('understands every query of the dashboard and of docs/metrics.md', () => {
    using dir = scratch();
    const text = readFileSync(join(folder, '..', 'grafana', 'onejob.json'), 'utf8');
    const queries = [...text.matchAll(/"expr": ("(?:[^"\\]|\\.)*")/g)].map(([, json = '""']) => String(JSON.parse(json)));
    expect(queries.length).toBeGreaterThan(30);
    const page = readFileSync(join(folder, '../../docs/metrics.md'), 'utf8');
    const [, block = ''] = /```promql\n([^`]+)```/.exec(page) ?? [];
    queries.push(...block.split('\n\n'));
    const usual = (query: string) => query.replaceAll('$__rate_interval', '5m').replace(/\$\w+/g, 'x');
    const rules = queries.map((query, n) => ({ record: `query:${n}`, expr: usual(query) }));
    const file = join(dir.path, 'queries.yml');
    writeFileSync(file, JSON.stringify({ groups: [{ name: 'dashboard', rules }] }));
    expect(promtool(['check', 'rules', '--lint=none', file])).toMatchObject({ status: 0 });
  });

  test.each([
    ['usual names', ['lab']],
    ['hostile names', ['a"} 1\nb', 'back\\slash', '\u0000', '\ud800', '{}']],
  ])('finds nothing wrong with the metrics, with %s', async (_, pools) => {
    using world = new MetricsWorld({ pools, jobOf: (key) => `${key}"\n} 7` });
    await world.fill();
    expect(promtool(['check', 'metrics'], await world.text())).toEqual({ status: 0, said: '' });
  });
});
