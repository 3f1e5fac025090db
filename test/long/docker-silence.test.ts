/** An Engine that takes a call and stays silent: one call's silence is not the Engine's. */
import { Readable } from 'node:stream';
import { expect, test } from 'vitest';
import { writeInput } from '../../src/runtimes/docker/attach.ts';
import { Images } from '../../src/runtimes/engine/image.ts';
import { recipe } from '../kit/docker-runtime.ts';
import { fakeEngine } from '../kit/fake-engine.ts';

const never = () => new AbortController().signal;
const limits = { soon: 150, late: 150, idle: 150, ping: 150 };
/** For Engines that answer pings, however late on a busy machine. */
const answering = { ...limits, soon: 10_000, ping: 10_000 };
/** For what continues slowly, which takes longer than this in all. */
const slowly = { soon: 10_000, late: 10_000, idle: 1_000, ping: 10_000 };
const step = 150;
const steps = 10;

test('one call that gets no answer is said to be silent, and the Engine counts as there', async () => {
  await using fake = fakeEngine('one', () => {});
  const engine = await fake.connect(answering);
  await expect(engine.create('x', {})).rejects.toMatchObject({
    code: 'E_ENGINE_SILENT',
    retry: true,
    message: expect.stringContaining('create container x'),
  });
});

test('an Engine that does not even answer a ping is unreachable', async () => {
  await using fake = fakeEngine('all', () => {}, { pings: false });
  const engine = await fake.connect(limits);
  await expect(engine.containers([])).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
  await fake.stop();
  await expect(engine.containers([])).rejects.toMatchObject({ code: 'E_ENGINE_UNREACHABLE', retry: true });
});

test.each(['before its first word', 'half-way'])('a pull that stands still %s is given up, to be tried again', async (when) => {
  await using fake = fakeEngine('pull', (path, _, answer) => {
    if (path !== '/images/create') answer.writeHead(404).end('{"message":"none"}');
    else if (when === 'half-way') answer.write('{"status":"Downloading","id":"a","progressDetail":{"current":1,"total":9}}\n');
  });
  const engine = await fake.connect(answering);
  const images = new Images(engine, '/nowhere', () => 0);
  const error = await images.get({ ...recipe, image: 'lab/job:1', pull: 'missing' }, () => {}, never()).catch((e: unknown) => e);
  expect(error).toMatchObject({ retry: true, message: expect.stringContaining('pull') });
  expect(['E_PULL_FAILED', 'E_REGISTRY_UNREACHABLE']).toContain((error as { code: string }).code);
});

test('a pull that continues slowly is left alone', async () => {
  await using fake = fakeEngine('slow', (path, _, answer) => {
    if (path === '/images/lab/job:1/json') {
      if (fake.asked.includes('/images/create')) answer.end('{"Id":"sha256:1"}');
      else answer.writeHead(404).end('{"message":"none"}');
    } else {
      let words = 0;
      const timer = setInterval(() => {
        words += 1;
        if (words < steps) answer.write('{"status":"Downloading"}\n');
        else answer.end(() => clearInterval(timer));
      }, step);
    }
  });
  const engine = await fake.connect(slowly);
  const images = new Images(engine, '/nowhere', () => 0);
  const image = await images.get({ ...recipe, image: 'lab/job:1', pull: 'missing' }, () => {}, never());
  expect(image.id).toBe('sha256:1');
});

test('files that the Engine stops taking are given up; a sender that is slow is not', async () => {
  let takes = false;
  await using fake = fakeEngine('files', (_, request, answer) => {
    if (takes) request.resume().on('end', () => answer.end());
  });
  const engine = await fake.connect(slowly);
  const endless = Readable.from(
    (function* () {
      for (;;) yield Buffer.alloc(64 * 1024);
    })(),
  );
  await expect(engine.putArchive('id', '/workspace', endless, never())).rejects.toMatchObject({
    code: 'E_ENGINE_SILENT',
    retry: true,
  });
  await expect.poll(() => endless.destroyed).toBe(true);
  takes = true;
  const slow = Readable.from(
    (async function* () {
      for (let i = 0; i < steps; i += 1) {
        await new Promise((resolve) => setTimeout(resolve, step));
        yield Buffer.alloc(10);
      }
    })(),
  );
  await engine.putArchive('id', '/workspace', slow, never());
});

test('a release that the Engine neither takes nor refuses is given up, to be tried again', async () => {
  const running = { Status: 'running', Running: true, ExitCode: 0 };
  await using fake = fakeEngine('attach', (path, _, answer) => {
    if (path.endsWith('/json')) answer.end(JSON.stringify({ Id: 'id', Name: '/x', Image: 'i', State: running, Config: {} }));
  });
  const engine = await fake.connect(answering);
  await expect(writeInput(engine, 'id', Buffer.from('frame'), never())).rejects.toMatchObject({
    code: 'E_ENGINE_SILENT',
    retry: true,
  });
});
