/** Programs next to a container, on bad days. */
import { randomBytes } from 'node:crypto';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { expect, test } from 'vitest';
import { type Call, channel, podOf, success } from '../../../test/kit/fake-kubernetes.ts';
import { fakedCluster } from '../../../test/kit/faked-cluster.ts';

const agent = 'a1b2c3';
const never = new AbortController().signal;
const exit = (code: number) =>
  channel(3, { status: 'Failure', reason: 'NonZeroExitCode', details: { causes: [{ reason: 'ExitCode', message: `${code}` }] } });

async function running(way: (call: Call) => unknown) {
  const here = await fakedCluster();
  here.api.put(podOf(agent));
  here.api.always('exec', (call) => void way(call));
  return here;
}

test('what comes with the opening itself is not lost', async () => {
  await using here = await running(async ({ open }) => {
    const socket = await open();
    socket.send(channel(1, 'all of it'));
    socket.send(success);
    socket.close();
  });
  for (let n = 0; n < 20; n += 1) expect(`${await buffer(await here.runtime.getFiles(agent, never))}`).toBe('all of it');
});

test('files that come while nobody reads are held up, and come whole', async () => {
  const sent = randomBytes(8 * 1024 * 1024);
  await using here = await running(async ({ open }) => {
    const socket = await open();
    for (let at = 0; at < sent.length; at += 32_768) socket.send(Buffer.concat([Buffer.of(1), sent.subarray(at, at + 32_768)]));
    socket.send(success, () => socket.close());
  });
  const files = await here.runtime.getFiles(agent, never);
  await new Promise((done) => files.once('readable', done));
  expect((await buffer(files)).equals(sent)).toBe(true);
});

test.each<[string, (call: Call) => Promise<void>, string]>([
  [
    'that is cut before it ended',
    async ({ open, cut }) => void (await open()).send(channel(1, 'half'), cut),
    'Cannot run a program next to agent a1b2c3: the connection ended early.',
  ],
  [
    'that the node cannot start',
    async ({ open }) => {
      const socket = await open();
      socket.send(channel(3, { status: 'Failure', reason: 'InternalError', message: 'container not found ("job")' }));
      socket.close();
    },
    'Cannot run a program next to agent a1b2c3: container not found ("job").',
  ],
  [
    'that fails',
    async ({ open }) => {
      const socket = await open();
      socket.send(channel(2, 'sh: tar: not found'));
      socket.send(exit(1));
      socket.close();
    },
    'Cannot read files from the workspace of agent a1b2c3: tar ended with exit code 1.',
  ],
])('a program %s', async (_, way, words) => {
  await using here = await running(way);
  const read = async () => buffer(await here.runtime.getFiles(agent, never));
  await expect(read()).rejects.toThrow(words);
});

test('files for an image without tar', async () => {
  await using here = await running(async ({ open }) => {
    const socket = await open();
    socket.send(channel(2, 'sh: exec: tar: not found'));
    socket.send(exit(127));
    socket.close();
  });
  await expect(here.runtime.putFiles(agent, Readable.from([Buffer.alloc(1024)]), never)).rejects.toMatchObject({
    code: 'E_FILES',
    message: 'Cannot put files into the workspace of agent a1b2c3: sh: exec: tar: not found.',
  });
});

test('a caller that gives up ends what it waits for', async () => {
  await using here = await running(async ({ open }) => void (await open()).pause());
  const stop = new AbortController();
  const put = here.runtime.putFiles(agent, Readable.from([Buffer.alloc(32 * 1024 * 1024)]), stop.signal);
  await here.api.called('exec');
  stop.abort(new Error('enough'));
  await expect(put).rejects.toThrow('enough');
});
