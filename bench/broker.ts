/**
 * What the broker's gateway costs a job: time for a small call, and for an artifact throughput and memory. Service, gateway and
 * agent are processes of their own, and every figure has its floor, the same without the gateway, from the same minute.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { Agent, request } from 'node:http';
import { connect } from 'node:net';
import { join } from 'node:path';
import { z } from 'zod';
import { benchJob, benchToken, benchUpload } from '../src/ci/buildkite/broker/testing-gateway.ts';
import { inTurn, type Ratio, rounded, type Stats, stats } from './stats.ts';

export interface BrokerCalls {
  /** ms, a heartbeat-sized call and its answer. */
  readonly direct: Stats;
  readonly through: Stats;
  /** What a call through the gateway took more than the one without right before it, ms. */
  readonly added: Stats;
}

/** `rounds` calls each, taking turns, so that both see the same machine. */
export async function brokerCalls(rounds: number): Promise<BrokerCalls> {
  await using processes = await start();
  const { sink, gateway } = processes;
  const agent = new Agent({ keepAlive: true });
  const path = `/v3/jobs/${benchJob}/data/get`;
  const call = async (port: number): Promise<number> => {
    const began = performance.now();
    const headers = { authorization: `Token ${benchToken}`, 'content-type': 'application/json' };
    const out = request({ host: '127.0.0.1', port, method: 'POST', path, headers, agent });
    out.end('{"key":"release"}');
    const [answer] = await once(out, 'response');
    answer.resume();
    await once(answer, 'end');
    if (answer.statusCode !== 200) throw new Error(`a call through the gateway answered ${answer.statusCode}`);
    return performance.now() - began;
  };
  const times = { direct: [] as number[], through: [] as number[] };
  for (let round = -50; round < rounds; round++) {
    const [one, other] = [await call(sink.port), await call(gateway.port)];
    if (round < 0) continue;
    times.direct.push(one);
    times.through.push(other);
  }
  agent.destroy();
  const added = stats(times.through.map((each, at) => each - (times.direct[at] ?? Number.NaN)));
  return { direct: stats(times.direct), through: stats(times.through), added };
}

export interface BrokerUpload {
  /** MiB/s. */
  readonly through: Stats;
  /** Of what goes without the gateway. */
  readonly share: Ratio;
  /** Of the gateway's process: highest while uploading less what it was before, MiB. */
  readonly extraRss: number;
}

/** Uploads `mib` MiB each way, `pairs` times in turn. */
export async function brokerUpload(mib: number, pairs: number): Promise<BrokerUpload> {
  await using processes = await start();
  const { sink, gateway } = processes;
  const path = benchUpload(`http://127.0.0.1:${sink.port}`);
  // The first upload makes everything there is to make, once and for all uploads.
  await upload(gateway.port, path, 64);
  const before = await gateway.rss();
  let highest = before;
  const ended = new AbortController();
  const watching = (async () => {
    while (!ended.signal.aborted) {
      highest = Math.max(highest, await gateway.rss());
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  })();
  const share = await inTurn(
    pairs,
    () => upload(sink.port, '/bucket', mib),
    () => upload(gateway.port, path, mib),
  );
  ended.abort();
  await watching;
  return { through: stats(share.measured.map(([, each]) => each)), share, extraRss: rounded((highest - before) / 1024 / 1024) };
}

/** MiB/s of one `PUT`. */
async function upload(port: number, path: string, mib: number): Promise<number> {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  await once(socket, 'connect');
  const piece = Buffer.alloc(256 * 1024, 'x');
  const began = performance.now();
  const answered = once(socket, 'data');
  socket.write(`PUT ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: ${mib * 1024 * 1024}\r\n\r\n`);
  for (let sent = 0; sent < mib * 4; sent++) if (!socket.write(piece)) await once(socket, 'drain');
  const [answer] = await answered;
  if (!String(answer).startsWith('HTTP/1.1 200')) throw new Error(`an upload answered ${String(answer).slice(0, 40)}`);
  const seconds = (performance.now() - began) / 1000;
  socket.destroy();
  return Math.round(mib / seconds);
}

interface Side {
  readonly port: number;
  /** Bytes. */
  rss(): Promise<number>;
}

async function start(): Promise<AsyncDisposable & { readonly sink: Side; readonly gateway: Side }> {
  const children: ChildProcess[] = [];
  const side = async (...args: string[]): Promise<Side> => {
    const child = fork(join(import.meta.dirname, 'broker-child.ts'), args, { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] });
    children.push(child);
    const [{ port }] = z.tuple([z.object({ port: z.number() })]).parse((await once(child, 'message')).slice(0, 1));
    return {
      port,
      async rss() {
        child.send('rss');
        return z.tuple([z.object({ rss: z.number() })]).parse((await once(child, 'message')).slice(0, 1))[0].rss;
      },
    };
  };
  const sink = await side('sink');
  const gateway = await side('gateway', String(sink.port));
  return {
    sink,
    gateway,
    async [Symbol.asyncDispose]() {
      for (const child of children) {
        const exit = once(child, 'exit');
        child.disconnect();
        await exit;
      }
    },
  };
}
