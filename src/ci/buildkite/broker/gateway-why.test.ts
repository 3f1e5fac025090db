import { gunzipSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { gatewayBench, jobId } from './testing-gateway.ts';

describe('a job that onejob ends', () => {
  const why = 'onejob ended this job: pool gpu lets a job run for 2h at most.';
  const stopped = { exit_status: '-1', signal: 'SIGTERM', signal_reason: 'agent_stop' };
  const finish = `/v3/jobs/${jobId}/finish`;

  /** A service that keeps the log of the job, and has no answer to calls that `lost` matches. */
  async function keeping(lost: RegExp | null = null) {
    const seen: string[] = [];
    let log = '';
    const bench = await gatewayBench(async (request, response) => {
      const { method = '', url = '' } = request;
      const parts: Buffer[] = [];
      for await (const part of request) parts.push(part as Buffer);
      seen.push(`${method} ${url}`);
      if (lost?.test(url) === true) return void response.destroy();
      if (request.headers['content-encoding'] === 'gzip') log += String(gunzipSync(Buffer.concat(parts)));
      response.end('{}');
    });
    bench.held('a', { shown: { phase: 'running' }, log: { sequence: 4, offset: 10 }, why });
    return { ...bench, seen, log: () => log, said: bench.log, [Symbol.asyncDispose]: bench[Symbol.asyncDispose] };
  }

  it('has the reason as the last line of its log, once, before its own agent says that it has ended', async () => {
    await using here = await keeping();
    const job = here.token('job', 'a');
    expect((await here.call('PUT', finish, job, stopped)).status).toBe(200);
    await here.call('PUT', finish, job, stopped);
    const size = Buffer.byteLength(`\r\n${why}\r\n`);
    expect(here.seen).toEqual([`POST /v3/jobs/${jobId}/chunks?sequence=5&offset=10&size=${size}`, `PUT ${finish}`]);
    expect(here.log()).toBe(`\r\n${why}\r\n`);
  });

  it('has it nowhere when it ended by itself at the last moment', async () => {
    await using here = await keeping();
    await here.call('PUT', finish, here.token('job', 'a'), { exit_status: '0', signal: '', signal_reason: '' });
    expect(here.seen).toEqual([`PUT ${finish}`]);
  });

  it('has its result all the same when the reason cannot be written', async () => {
    await using here = await keeping(/chunks/);
    expect((await here.call('PUT', finish, here.token('job', 'a'), stopped)).status).toBe(200);
    expect(here.seen.at(-1)).toBe(`PUT ${finish}`);
    expect(here.said.join('')).toContain('why a job was ended is not in its log');
  });
});
