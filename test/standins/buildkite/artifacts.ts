/** Artifacts at the Agent API: announced, told where to go, reported as done, found again (facts: agent `api/artifacts.go`). */
import { createHash, randomUUID } from 'node:crypto';
import picomatch from 'picomatch';
import { z } from 'zod';
import { bodyOf, type Exchange, ok, type Reply, type Route, ServiceFailure } from './http.ts';
import { jobIn } from './jobs.ts';
import type { Artifact, Job, World } from './state.ts';

const Batch = z.object({
  id: z.string(),
  upload_destination: z.string().nullish(),
  multipart_supported: z.boolean().nullish(),
  artifacts: z
    .array(
      z.object({
        path: z.string(),
        absolute_path: z.string().default(''),
        glob_path: z.string().default(''),
        file_size: z.number().default(0),
        sha1sum: z.string().default(''),
        sha256sum: z.string().default(''),
        content_type: z.string().default(''),
      }),
    )
    .max(1000),
});

/** Repeating a batch by its id changes nothing, so that the agent may retry. */
function create(x: Exchange): Reply {
  const { world } = x;
  const job = jobIn(x);
  const batch = bodyOf(x, Batch);
  const made =
    job.batches.get(batch.id) ??
    batch.artifacts.map(
      (each): Artifact => ({
        id: randomUUID(),
        path: each.path,
        absolutePath: each.absolute_path,
        globPath: each.glob_path,
        size: each.file_size,
        sha1: each.sha1sum,
        sha256: each.sha256sum,
        contentType: each.content_type,
        destination: batch.upload_destination ?? '',
        created: world.now(),
        state: 'new',
        received: null,
        parts: new Map(),
      }),
    );
  if (!job.batches.has(batch.id)) {
    job.batches.set(batch.id, made);
    job.artifacts.push(...made);
  }
  return ok({
    id: batch.id,
    artifact_ids: made.map(({ id }) => id),
    upload_instructions: {
      action: { url: world.artifactHost, method: 'POST', path: '/upload', file_input: 'file' },
      // The agent fills in the path; with the batch it says which artifact it is.
      data: { batch: batch.id, job: job.id, path: '${artifact:path}' },
    },
    ...(batch.multipart_supported === true ? { per_artifact_instructions: inParts(world, made) } : {}),
  });
}

/** Instructions for those that are larger than a part. */
function inParts(world: World, artifacts: readonly Artifact[]): Record<string, unknown> {
  const part = world.options.partBytes ?? Number.POSITIVE_INFINITY;
  return Object.fromEntries(
    artifacts
      .filter(({ size }) => size > part)
      .map(({ id, size }) => {
        const actions = Array.from({ length: Math.ceil(size / part) }, (_, i) => ({
          url: `${world.artifactHost}/parts/${id}/${i + 1}`,
          method: 'PUT',
          part_number: i + 1,
        }));
        return [id, { actions }];
      }),
  );
}

const States = z.object({
  artifacts: z.array(
    z.object({
      id: z.string(),
      state: z.enum(['finished', 'error']),
      multipart_etags: z.array(z.object({ part_number: z.number(), etag: z.string() })).nullish(),
    }),
  ),
});

function update(x: Exchange): Reply {
  const job = jobIn(x);
  for (const { id, state, multipart_etags } of bodyOf(x, States).artifacts) {
    const artifact = job.artifacts.find((each) => each.id === id);
    if (artifact === undefined) throw new ServiceFailure(404, `No artifact "${id}" found`);
    if (state === 'finished' && multipart_etags != null && multipart_etags.length > 0) join(artifact, multipart_etags);
    artifact.state = state;
  }
  return ok();
}

/** @throws ServiceFailure 422 when a part is not what arrived. */
function join(artifact: Artifact, etags: readonly { readonly part_number: number; readonly etag: string }[]): void {
  const parts = etags.map(({ part_number, etag }) => {
    const part = artifact.parts.get(part_number);
    if (part?.etag !== etag) throw new ServiceFailure(422, `Part ${part_number} has another ETag`);
    return part;
  });
  const whole = parts.every(({ content }) => content !== null);
  const content = whole ? Buffer.concat(parts.map((part) => part.content ?? Buffer.alloc(0))) : null;
  const size = parts.reduce((sum, part) => sum + part.size, 0);
  artifact.received = { size, sha1: content === null ? null : sha1(content), content };
}

const sha1 = (content: Buffer): string => createHash('sha1').update(content).digest('hex');

function search(x: Exchange): Reply {
  const build = x.params.id ?? '';
  const fits = picomatch(x.query.get('query') ?? '**', { dot: true });
  const scope = x.query.get('scope') ?? '';
  const state = x.query.get('state') ?? '';
  const jobs = [...x.world.jobs.values()].filter((job) => job.build.id === build && (scope === '' || named(job, scope)));
  if (!x.world.builds.has(build)) throw new ServiceFailure(404, 'No build found');
  const found = jobs.flatMap((job) =>
    job.artifacts
      .filter((artifact) => fits(artifact.path) && (state === '' || artifact.state === state))
      .map((artifact) => described(x.world, job, artifact)),
  );
  return ok(found);
}

const named = (job: Job, scope: string): boolean => job.id === scope || job.step === scope || job.env.BUILDKITE_STEP_KEY === scope;

function described(world: World, job: Job, artifact: Artifact): Record<string, unknown> {
  return {
    id: artifact.id,
    path: artifact.path,
    absolute_path: artifact.absolutePath,
    glob_path: artifact.globPath,
    file_size: artifact.size,
    sha1sum: artifact.sha1,
    sha256sum: artifact.sha256,
    job_id: job.id,
    created_at: new Date(artifact.created).toISOString(),
    url: `${world.artifactHost}/artifacts/${artifact.id}`,
    upload_destination: artifact.destination,
    content_type: artifact.contentType,
  };
}

export const artifactRoutes: readonly Route[] = [
  { method: 'POST', path: 'jobs/:id/artifacts', allow: ['job'], answer: create },
  { method: 'PUT', path: 'jobs/:id/artifacts', allow: ['job'], answer: update },
  { method: 'GET', path: 'builds/:id/artifacts/search', allow: ['job'], answer: search },
];
