/** A log as it arrives: in chunks, in any order. */
import { gzipSync } from 'node:zlib';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { handAgent } from './hand-agent.ts';
import { type BuildkiteStandin, startBuildkite } from './standin.ts';

let bk: BuildkiteStandin;
beforeEach(async () => {
  bk = await startBuildkite();
});
afterEach(() => bk[Symbol.asyncDispose]());

test('a chunk that is not what it says is refused', async () => {
  const agent = await handAgent(bk, 'one');
  const job = await agent.accept(bk.queueJob());
  const send = (query: string, body: Buffer) => job.ask('POST', `jobs/${job.id}/chunks?${query}`, body);
  expect((await send('sequence=1&offset=0&size=9', gzipSync('abc'))).status).toBe(400);
  expect((await send('sequence=1&size=3', gzipSync('abc'))).status).toBe(400);
  expect((await send('sequence=1&offset=0&size=3', Buffer.from('abc'))).status).toBe(400);
  expect(bk.job(job.id).chunks).toEqual({ received: 0, repeated: 0 });
});

test('chunks are put together by offset, whatever their order', async () => {
  const agent = await handAgent(bk, 'one');
  const job = await agent.accept(bk.queueJob());
  await job.log('three\r\n', { sequence: 3, offset: 20 });
  expect(bk.job(job.id)).toMatchObject({ logMissing: 20 });
  await job.log('\x1b_bk;t=17\x07one\r\n', { sequence: 1, offset: 0 });
  await job.log('\x1b_bk;t=17\x07one\r\n', { sequence: 1, offset: 0 });
  await job.log('two\r\n', { sequence: 2, offset: 15 });
  expect(bk.job(job.id)).toMatchObject({ log: 'one\ntwo\nthree\n', logMissing: 0, chunks: { received: 4, repeated: 1 } });
});
