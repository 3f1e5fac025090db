/** Artifacts go to a host of their own, large ones without being kept. */
import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { type HandJob, handAgent } from './hand-agent.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

const Instructions = z.object({
  artifact_ids: z.array(z.string()),
  upload_instructions: z.object({
    action: z.object({ url: z.string(), path: z.string(), method: z.string(), file_input: z.string() }),
    data: z.record(z.string(), z.string()),
  }),
  per_artifact_instructions: z
    .record(z.string(), z.object({ actions: z.array(z.object({ url: z.string(), part_number: z.number() })) }))
    .optional(),
});

async function job(bk: BuildkiteStandin): Promise<HandJob> {
  return (await handAgent(bk, 'one')).accept(bk.queueJob());
}

async function announce(of: HandJob, path: string, content: Buffer, batch = 'batch-1') {
  const sha1sum = createHash('sha1').update(content).digest('hex');
  const { json } = await of.ask('POST', `jobs/${of.id}/artifacts`, {
    id: batch,
    multipart_supported: true,
    artifacts: [{ path, file_size: content.length, sha1sum }],
  });
  return Instructions.parse(json);
}

async function upload(to: z.infer<typeof Instructions>, path: string, content: Buffer): Promise<number> {
  const { action, data } = to.upload_instructions;
  const form = new FormData();
  for (const [name, value] of Object.entries(data)) form.append(name, value.replace('${artifact:path}', path));
  form.append(action.file_input, new Blob([new Uint8Array(content)]), path);
  return (await fetch(new URL(action.path, action.url), { method: action.method, body: form })).status;
}

test.each([0, 5, 1024 * 1024, 8 * 1024 * 1024 + 3])('a form with %i bytes arrives whole', async (size) => {
  await using bk = await startBuildkite();
  const of = await job(bk);
  const content = Buffer.alloc(size, 'some bytes\r\n--');
  const to = await announce(of, 'out/a file.bin', content);
  expect(await upload(to, 'out/a file.bin', content)).toBe(201);
  await of.ask('PUT', `jobs/${of.id}/artifacts`, { artifacts: [{ id: to.artifact_ids[0], state: 'finished' }] });
  const [artifact] = bk.job(of.id).artifacts;
  expect(artifact).toMatchObject({ path: 'out/a file.bin', size, state: 'finished', received: { size, sha1: artifact?.sha1 } });
  expect(artifact?.received?.content?.length ?? null).toBe(size > 1024 * 1024 ? null : size);
  expect(bk.requests.at(-2)).toMatchObject({ route: 'artifact-host/upload', token: 'none', status: 201 });
});

test('a batch that is announced again is the same, and an upload that nobody announced is refused', async () => {
  await using bk = await startBuildkite();
  const of = await job(bk);
  const content = Buffer.from('x');
  const first = await announce(of, 'a', content);
  expect((await announce(of, 'a', content)).artifact_ids).toEqual(first.artifact_ids);
  expect(bk.job(of.id).artifacts).toHaveLength(1);
  expect(await upload(first, 'b', content)).toBe(403);
});

test('large ones go up in parts, which are checked', async () => {
  await using bk = await startBuildkite({ partBytes: 4 });
  const of = await job(bk);
  const content = Buffer.from('0123456789');
  const to = await announce(of, 'a', content);
  const [id = ''] = to.artifact_ids;
  const parts = to.per_artifact_instructions?.[id]?.actions ?? [];
  expect(parts).toHaveLength(3);
  const multipart_etags = [];
  for (const { url, part_number } of parts.toReversed()) {
    const piece = content.subarray((part_number - 1) * 4, part_number * 4);
    const { headers } = await fetch(url, { method: 'PUT', body: new Uint8Array(piece) });
    multipart_etags.unshift({ part_number, etag: headers.get('etag') ?? '' });
  }
  const wrong = [{ id, state: 'finished', multipart_etags: [{ part_number: 1, etag: '"no"' }] }];
  expect((await of.ask('PUT', `jobs/${of.id}/artifacts`, { artifacts: wrong })).status).toBe(422);
  await of.ask('PUT', `jobs/${of.id}/artifacts`, { artifacts: [{ id, state: 'finished', multipart_etags }] });
  const [artifact] = bk.job(of.id).artifacts;
  expect(artifact?.received).toEqual({ size: 10, sha1: artifact?.sha1, content });
});

test('the artifact host has faults as well', async () => {
  await using bk = await startBuildkite();
  const of = await job(bk);
  const content = Buffer.from('x');
  const to = await announce(of, 'a', content);
  bk.faults.add({ kind: 'error', status: 503 }, { route: 'artifact-host/upload', times: 1 });
  expect(await upload(to, 'a', content)).toBe(503);
  bk.faults.add({ kind: 'reset' }, { route: 'artifact-host/upload', times: 1 });
  await expect(upload(to, 'a', content)).rejects.toThrow();
  bk.faults.add({ kind: 'dropped' }, { route: 'artifact-host/upload', times: 1 });
  expect(await upload(to, 'a', content)).toBe(201);
  expect(bk.job(of.id).artifacts).toMatchObject([{ received: null }]);
  bk.faults.add({ kind: 'lost' }, { route: 'artifact-host/upload', times: 1 });
  await expect(upload(to, 'a', content)).rejects.toThrow();
  await expect.poll(() => bk.job(of.id).artifacts[0]?.received?.size).toBe(1);
  expect(await upload(to, 'a', content)).toBe(201);
});
