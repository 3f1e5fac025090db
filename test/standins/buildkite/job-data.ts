/** What a running job asks for by the agent's subcommands (facts: agent `api/*.go`): a job token reaches other jobs as well. */
import { z } from 'zod';
import { cancelJob } from './dispatch.ts';
import { bodyOf, type Exchange, ok, type Reply, type Route, ServiceFailure } from './http.ts';
import { jobIn } from './jobs.ts';
import type { Build } from './state.ts';

function buildIn(x: Exchange): Build {
  const build = x.world.builds.get(x.params.id ?? '');
  if (build === undefined) throw new ServiceFailure(404, 'No build found');
  return build;
}

const Item = z.object({ key: z.string().min(1), value: z.string() });
const Key = z.object({ key: z.string().min(1) });

/** The same below a job and below a build: a job's meta-data is that of its build. */
function metaData(scope: string, of: (x: Exchange) => Build): Route[] {
  const route = (name: string, answer: (x: Exchange) => Reply): Route => ({
    method: 'POST',
    path: `${scope}/:id/data/${name}`,
    allow: ['job'],
    answer,
  });
  return [
    route('set', (x) => {
      const { key, value } = bodyOf(x, Item);
      of(x).metaData.set(key, value);
      return ok();
    }),
    route('set-batch', (x) => {
      for (const { key, value } of bodyOf(x, z.object({ items: z.array(Item) })).items) of(x).metaData.set(key, value);
      return ok();
    }),
    route('get', (x) => {
      const { key } = bodyOf(x, Key);
      const value = of(x).metaData.get(key);
      if (value === undefined) throw new ServiceFailure(404, `No key "${key}" found`);
      return ok({ key, value });
    }),
    route('exists', (x) => ok({ exists: of(x).metaData.has(bodyOf(x, Key).key) })),
    route('keys', (x) => ok([...of(x).metaData.keys()])),
  ];
}

const Annotation = z.object({
  body: z.string().default(''),
  context: z.string().default('default'),
  style: z.string().default(''),
  append: z.boolean().default(false),
});

function annotate(x: Exchange): Reply {
  const said = bodyOf(x, Annotation);
  const { annotations } = jobIn(x);
  const before = annotations.get(said.context);
  const body = said.append ? `${before?.body ?? ''}${said.body}` : said.body;
  annotations.set(said.context, { context: said.context, style: said.style === '' ? (before?.style ?? '') : said.style, body });
  return ok();
}

function secret(x: Exchange): Reply {
  const key = x.query.get('key') ?? '';
  const { pipeline } = jobIn(x);
  const found = x.world.secrets.find((each) => each.key === key && (each.pipeline === null || each.pipeline === pipeline));
  if (found === undefined) throw new ServiceFailure(404, `No secret "${key}" found`);
  return ok({ key, value: found.value, uuid: found.id });
}

/** The pipeline is kept and no step of it is run. Answered later, as the real service does. */
function upload(x: Exchange): Reply {
  const { uuid, pipeline } = bodyOf(x, z.object({ uuid: z.string(), pipeline: z.unknown() }));
  const job = jobIn(x);
  job.uploads.set(uuid, pipeline);
  return { status: 202, json: {}, headers: { location: `/v3/jobs/${job.id}/pipelines/${uuid}`, 'retry-after': '0' } };
}

function uploaded(x: Exchange): Reply {
  if (!jobIn(x).uploads.has(x.params.uuid ?? '')) throw new ServiceFailure(404, 'No upload found');
  return ok({ state: 'applied', message: '' });
}

/** Shaped like a signed token; nobody signed it. */
function oidc(x: Exchange): Reply {
  const { audience } = bodyOf(x, z.object({ audience: z.string().nullish() }));
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');
  const claims = { iss: x.world.origin, aud: audience ?? x.world.origin, sub: `job:${jobIn(x).id}` };
  return ok({ token: `${part({ alg: 'none' })}.${part(claims)}.` });
}

function cancelBuild(x: Exchange): Reply {
  const build = buildIn(x);
  for (const job of x.world.jobs.values()) if (job.build === build) cancelJob(x.world, job);
  return ok({ uuid: build.id });
}

export const jobDataRoutes: readonly Route[] = [
  ...metaData('jobs', (x) => jobIn(x).build),
  ...metaData('builds', buildIn),
  { method: 'POST', path: 'jobs/:id/annotations', allow: ['job'], answer: annotate },
  {
    method: 'DELETE',
    path: 'jobs/:id/annotations/:context',
    allow: ['job'],
    answer: (x) => {
      if (!jobIn(x).annotations.delete(x.params.context ?? '')) throw new ServiceFailure(404, 'No annotation found');
      return ok();
    },
  },
  { method: 'GET', path: 'jobs/:id/secrets', allow: ['job'], answer: secret },
  { method: 'POST', path: 'jobs/:id/pipelines', allow: ['job'], answer: upload },
  { method: 'GET', path: 'jobs/:id/pipelines/:uuid', allow: ['job'], answer: uploaded },
  { method: 'POST', path: 'jobs/:id/oidc/tokens', allow: ['job'], answer: oidc },
  {
    method: 'POST',
    path: 'jobs/:id/repository_access_token',
    allow: ['job'],
    answer: (x) => ok({ token: `standin_${jobIn(x).id}` }),
  },
  { method: 'POST', path: 'builds/:id/cancel', allow: ['job'], answer: cancelBuild },
  { method: 'PUT', path: 'steps/:id', allow: ['job'], answer: () => ok() },
  { method: 'POST', path: 'steps/:id/export', allow: ['job'], answer: () => ok({ output: '' }) },
  { method: 'POST', path: 'steps/:id/cancel', allow: ['job'], answer: (x) => ok({ uuid: x.params.id }) },
];
