/**
 * Cuts what the GitHub stand-in answers out of GitHub's own OpenAPI descriptions, into `test/fixtures/github/openapi.json`. Run by hand:
 *
 *     npx node test/support/github-schemas.ts
 *
 * It downloads the npm package `@octokit/openapi` (MIT, 29 MB) to a temporary folder. Schemas keep what a validator needs, and no prose.
 */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const version = '23.0.2';

/** By file of the package; the enterprise calls are only described for GitHub Enterprise Cloud. */
const wanted: Readonly<Record<string, readonly string[]>> = {
  'api.github.com': [
    ...['/orgs/{org}', '/repos/{owner}/{repo}'].flatMap((scope) => [
      `GET ${scope}/actions/runners`,
      `POST ${scope}/actions/runners/generate-jitconfig`,
      `POST ${scope}/actions/runners/registration-token`,
      `GET ${scope}/actions/runners/{runner_id}`,
      `GET ${scope}/actions/runners/downloads`,
      `DELETE ${scope}/actions/runners/{runner_id}`,
      `GET ${scope}/actions/permissions/fork-pr-contributor-approval`,
      `GET ${scope}/installation`,
    ]),
    'POST /app/installations/{installation_id}/access_tokens',
    'GET /installation/repositories',
    'GET /orgs/{org}/repos',
    'GET /orgs/{org}/actions/runner-groups',
    'GET /orgs/{org}/actions/runner-groups/{runner_group_id}',
    'GET /repos/{owner}/{repo}',
    'GET /repos/{owner}/{repo}/actions/runs',
    'GET /repos/{owner}/{repo}/actions/runs/{run_id}',
    'GET /repos/{owner}/{repo}/actions/runs/{run_id}/jobs',
    'GET /repos/{owner}/{repo}/actions/jobs/{job_id}',
    'GET /rate_limit',
    'GET /meta',
  ],
  ghec: [
    'GET /enterprises/{enterprise}/actions/runners',
    'POST /enterprises/{enterprise}/actions/runners/generate-jitconfig',
    'POST /enterprises/{enterprise}/actions/runners/registration-token',
    'GET /enterprises/{enterprise}/actions/runners/{runner_id}',
    'GET /enterprises/{enterprise}/actions/runners/downloads',
    'DELETE /enterprises/{enterprise}/actions/runners/{runner_id}',
    'GET /enterprises/{enterprise}/actions/runner-groups',
    'GET /enterprises/{enterprise}/actions/runner-groups/{runner_group_id}',
  ],
};

/** Webhooks about jobs. */
const events = ['queued', 'waiting', 'in-progress', 'completed'].map((action) => `webhook-workflow-job-${action}`);

type Json = Readonly<Record<string, unknown>>;

/** Keys that say something about a value; the others are for readers. */
const kept = new Set(
  'type format enum nullable required properties items additionalProperties oneOf anyOf allOf minItems maxItems'.split(' '),
);

const operations: Record<string, Record<string, unknown>> = {};
const schemas: Record<string, unknown> = {};

/** `schema` without prose. What it refers to is added to `schemas`, under `prefix` and its name. */
function cut(schema: unknown, document: Json, prefix: string): unknown {
  if (Array.isArray(schema)) return schema.map((one) => cut(one, document, prefix));
  if (typeof schema !== 'object' || schema === null) return schema;
  const reference = (schema as Json).$ref;
  if (typeof reference === 'string') {
    const name = `${prefix}${reference.split('/').at(-1)}`;
    if (!(name in schemas)) {
      schemas[name] = true;
      schemas[name] = cut(at(document, reference), document, prefix);
    }
    return { $ref: name };
  }
  return Object.fromEntries(
    Object.entries(schema)
      .filter(([key]) => kept.has(key))
      .map(([key, value]) => {
        if (key === 'required' || key === 'enum') return [key, value];
        if (key !== 'properties') return [key, cut(value, document, prefix)];
        return [key, Object.fromEntries(Object.entries(value as Json).map(([name, one]) => [name, cut(one, document, prefix)]))];
      }),
  );
}

function at(document: Json, reference: string): Json {
  let found: unknown = document;
  for (const key of reference.slice(2).split('/')) found = (found as Json)[key];
  return found as Json;
}

const folder = mkdtempSync(join(tmpdir(), 'openapi-'));
try {
  execFileSync('npm', ['pack', '--silent', `@octokit/openapi@${version}`], { cwd: folder });
  execFileSync('tar', ['xzf', `octokit-openapi-${version}.tgz`], { cwd: folder });
  for (const [file, calls] of Object.entries(wanted)) {
    const document = JSON.parse(readFileSync(join(folder, 'package', 'generated', `${file}.json`), 'utf8')) as Json;
    const prefix = file === 'ghec' ? 'ghec-' : '';
    if (prefix === '') for (const event of events) cut({ $ref: `#/components/schemas/${event}` }, document, prefix);
    for (const call of calls) {
      const [method = '', path = ''] = call.split(' ');
      const { responses } = (document.paths as Record<string, Record<string, Json>>)[path]?.[method.toLowerCase()] ?? {};
      if (responses === undefined) throw new Error(`The package does not describe ${call}.`);
      operations[call] = Object.fromEntries(
        Object.entries(responses as Json).map(([status, response]) => {
          const { $ref: reference } = response as { readonly $ref?: string };
          const { content } = (reference === undefined ? response : at(document, reference)) as { readonly content?: Json };
          const { schema } = (content?.['application/json'] ?? {}) as { readonly schema?: unknown };
          return [status, schema === undefined ? null : cut(schema, document, prefix)];
        }),
      );
    }
  }
  const source = `Cut by test/support/github-schemas.ts from the npm package @octokit/openapi ${version}`;
  const text = JSON.stringify({ source, license: 'MIT, Copyright (c) 2020 Octokit contributors', operations, schemas });
  writeFileSync(join(import.meta.dirname, '..', 'fixtures', 'github', 'openapi.json'), `${text}\n`);
  console.log(`${Object.keys(operations).length} calls, ${Object.keys(schemas).length} schemas, ${text.length} bytes`);
} finally {
  rmSync(folder, { recursive: true, force: true });
}
