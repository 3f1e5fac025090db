/**
 * Writes every generated part of the docs from the code it tells about. With `--check` nothing is written; it says which
 * pages are behind, and ends with 1 when one is.
 *
 *     npm run docs [-- --check]
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { openApi } from '../src/api/openapi.ts';
import { calls } from '../src/contract/calls.ts';
import { awsPolicy, awsSchedulerPolicy, awsSchedulerTrust, azureRole, gcpRole } from './cloud-policies.ts';
import { referencePages, withEverydayKeys } from './docs-configuration.ts';
import { withRooms } from './docs-house.ts';
import { withMetricTable } from './docs-metrics.ts';
import { withSlotTables } from './docs-slots.ts';
import { withTried } from './docs-tried.ts';

const root = join(import.meta.dirname, '..');

/** Each page, and what it should be, given what it is: some are written by hand but for a block. */
const pages: Readonly<Record<string, (page: string) => string>> = {
  'deploy/cloud/aws-policy.json': awsPolicy,
  'deploy/cloud/aws-scheduler-policy.json': awsSchedulerPolicy,
  'deploy/cloud/aws-scheduler-trust.json': awsSchedulerTrust,
  'deploy/cloud/gcp-role.yaml': () => gcpRole(),
  'deploy/cloud/azure-role.json': () => azureRole(),
  'docs/architecture.md': withRooms,
  'docs/configuration.md': withEverydayKeys,
  ...referencePages,
  'docs/metrics.md': withMetricTable,
  'docs/openapi.json': () => `${JSON.stringify(openApi(calls), null, 1)}\n`,
  'docs/slot-lifecycle.md': withSlotTables,
  'docs/tried-with.md': withTried,
};

/** Pages that are not what the code says. */
export function pagesBehind(): string[] {
  return Object.entries(pages).flatMap(([path, render]) => {
    const page = readFileSync(join(root, path), 'utf8');
    return render(page) === page ? [] : [path];
  });
}

if (import.meta.main) {
  const behind = pagesBehind();
  if (process.argv.includes('--check')) {
    for (const path of behind) console.error(`${path} is not what the code says: run "npm run docs".`);
    process.exitCode = behind.length === 0 ? 0 : 1;
  } else
    for (const path of behind) {
      const file = join(root, path);
      writeFileSync(file, pages[path]?.(readFileSync(file, 'utf8')) ?? '');
      console.log(`${path} written`);
    }
}
