import { PassThrough, Readable, type Writable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { extract, pack } from 'tar-stream';
import { expect, it } from 'vitest';
import { type ErrorCode, engineAway, OnejobError } from '../../base/errors.ts';
import { systemClock } from '../../system/system-clock.ts';
import type { Job } from './job.ts';
import { createSettle, type SettleHow } from './settle.ts';
import type { Spool } from './spool.ts';

const never = new AbortController().signal;

function subject(
  artifacts: readonly string[] = ['dist'],
  limits: { readLimit?: number; timeLimit?: number; headsLimit?: number } = {},
) {
  const job = { id: 'j', request: { artifacts } } as unknown as Job;
  const it = { notes: [] as string[], kept: [] as string[], tries: { failed: 0, killed: 0 }, asked: [] as unknown[] };
  const spool = {
    hasArtifacts: () => false,
    async putArtifacts(_: string, write: (to: Writable) => Promise<boolean>) {
      const to = new PassThrough();
      const kept = buffer(to);
      kept.catch(() => {});
      if (await write(to)) it.kept = await namesIn(await kept);
    },
  } as unknown as Spool;
  /** As a manager that has just started. */
  const settle = (open: SettleHow['open'], how: Partial<SettleHow> = {}) =>
    createSettle({
      clock: systemClock,
      spool,
      artifactLimit: 2 ** 30,
      ...limits,
      annotate: (_, more) => it.notes.push(...more),
      triesOf: () => it.tries,
      saveTries: (_, tries) => {
        it.tries = tries;
      },
    })(job, { open, signal: never, giveUp: never, ...how });
  return Object.assign(it, { settle });
}

async function namesIn(tar: Buffer): Promise<string[]> {
  const names: string[] = [];
  const entries = extract();
  Readable.from([tar]).pipe(entries);
  for await (const entry of entries) {
    names.push(entry.header.name);
    entry.resume();
  }
  return names;
}

/** A workspace with `small`, then a file of `size` zeros that never come to an end, then nothing. */
function sparse(size: number): { files: Readable; read: () => number } {
  let read = 0;
  async function* all(): AsyncGenerator<Buffer> {
    const head = pack();
    head.entry({ name: './ok' }, 'hi\n');
    head.entry({ name: './big', size }, () => {});
    for await (const piece of head as AsyncIterable<Buffer>) {
      yield piece;
      if (piece.toString('latin1').startsWith('./big')) break;
    }
    for (const zeros = Buffer.alloc(65_536); ; read += zeros.length) {
      yield zeros;
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
  return { files: Readable.from(all(), { objectMode: false }), read: () => read };
}

const failing = (code: ErrorCode, retry = true) => new OnejobError(code, 'The Engine answered 500.', { retry });

/** How often it asked to be tried again, out of `times`. */
async function triesOf(error: unknown, times: number): Promise<{ again: number; notes: string[] }> {
  const { notes, settle } = subject();
  let again = 0;
  for (let at = 0; at < times; at += 1) {
    const ended = await settle(() => Promise.reject(error)).then(
      () => true,
      () => false,
    );
    if (ended) break;
    again += 1;
  }
  return { again, notes };
}

it('artifacts that lastingly fail are given up with a note, also when it is said to pass and over restarts', async () => {
  const { again, notes } = await triesOf(failing('E_ENGINE_FAILED'), 1_000);
  expect(again).toBe(9);
  expect(notes).toEqual(['Failed to keep its artifacts: The Engine answered 500.']);
});

it.each([...engineAway, 'E_STATE_FULL'] as const)('%s is waited out, however long', async (code) => {
  expect(await triesOf(failing(code), 100)).toEqual({ again: 100, notes: [] });
});

it('what cannot pass is given up at once, what is not understood after a few tries', async () => {
  expect((await triesOf(failing('E_ENGINE_FAILED', false), 100)).again).toBe(0);
  expect((await triesOf(new Error('strange'), 100)).again).toBe(2);
});

it('a sparse file beyond what is read is not read at all, and what came before it is kept', async () => {
  const one = subject(['**/ok', 'none*']);
  const { files, read } = sparse(10 * 2 ** 40);
  await one.settle(async () => files);
  expect(one.kept).toEqual(['ok']);
  expect(one.notes).toEqual([
    'Left out of the artifacts, with everything after it in the workspace, because onejob reads 100 GiB at most: big.',
    'Not all files were searched, and none of those searched matched the artifacts none*.',
  ]);
  expect(files.destroyed).toBe(true);
  expect(read()).toBeLessThan(2 ** 20);
});

it('reading takes only so long', async () => {
  const one = subject(['ok'], { readLimit: Number.MAX_VALUE, timeLimit: 20 });
  const { files } = sparse(2 ** 50);
  await one.settle(async () => files);
  expect(one.notes).toEqual(['Failed to keep its artifacts: its workspace could not be read within 0.02 s.']);
  expect(files.destroyed).toBe(true);
});

it.each(['big', 'ok'])(
  'a caller that does not want to wait gives up the rest, also in the middle of a file (%s)',
  async (artifact) => {
    const one = subject([artifact], { readLimit: Number.MAX_VALUE });
    const { files } = sparse(2 ** 20);
    const giveUp = new AbortController();
    const ended = one.settle(async () => sparse(2 ** 29).files, { giveUp: giveUp.signal });
    setImmediate(() => giveUp.abort('the job was cancelled while onejob read them'));
    await ended;
    files.destroy();
    expect(one.notes).toEqual(['Failed to keep its artifacts: the job was cancelled while onejob read them.']);
    // Nor is it begun again.
    await one.settle(() => Promise.reject(new Error('unread')), { giveUp: giveUp.signal });
  },
);

it('a manager that ends leaves the try to the next one, and one that is killed three times has been enough', async () => {
  const one = subject();
  const stop = new AbortController();
  const left = one.settle(async () => sparse(2 ** 29).files, { signal: stop.signal });
  stop.abort(new Error('leaving'));
  await expect(left).rejects.toThrow('leaving');
  expect([one.tries, one.notes]).toEqual([{ failed: 0, killed: 0 }, []]);
  for (let times = 0; times < 3; times += 1) void one.settle(() => new Promise<Readable>(() => {}));
  await one.settle(() => Promise.reject(new Error('unread')));
  expect(one.notes).toEqual(['Failed to keep its artifacts: onejob was killed 3 times while it read them.']);
});

it('only what patterns can match is asked for, where they say what it is called', async () => {
  const asked = async (...artifacts: string[]) => {
    const only: unknown[] = [];
    await subject(artifacts).settle(async (_, names) => {
      only.push(names);
      return Readable.from([Buffer.alloc(1024)]);
    });
    return only[0];
  };
  expect(await asked('ok', './dist/**/*.js', 'dist/x/')).toEqual(['ok', 'dist']);
  expect(await asked('ok', '*.log')).toBeNull();
  expect(await asked('.')).toBeNull();
  expect(await asked('odd[1].txt')).toBeNull();
});

it('archives one behind the other are read as one', async () => {
  const tar = async (name: string) => {
    const files = pack();
    files.entry({ name }, 'x');
    files.finalize();
    return buffer(files);
  };
  const one = subject(['a', 'b']);
  const both = Buffer.concat([await tar('a'), await tar('b/c')]);
  await one.settle(async () => Readable.from([both]));
  expect(one.kept).toEqual(['a', 'b/c']);
});

/** A workspace with these entries; a name may be bytes of any kind. */
function workspace(...entries: readonly Parameters<ReturnType<typeof pack>['entry']>[0][]): Readable {
  const all = pack();
  for (const header of entries) header.type === undefined ? all.entry(header, '') : all.entry(header);
  all.finalize();
  return Readable.from(all as AsyncIterable<Buffer>, { objectMode: false });
}

it.each(['link', 'symlink'] as const)(
  'names take room, too: of what is only a %s, so much is kept as files could take',
  async (type) => {
    const long = `${'f'.repeat(200)}/`.repeat(18);
    const most = 40;
    const one = subject(['*'], { headsLimit: most * 8_192 });
    const links = Array.from({ length: 2 * most }, (_, at) => ({ name: `${long}${at}`, type, linkname: `${long}a` }));
    await one.settle(async () => workspace({ name: `${long}a` }, ...links));
    expect(one.kept.length).toBeGreaterThan(most / 2);
    expect(one.kept.length).toBeLessThan(1.5 * most);
    expect(one.notes).toEqual([
      expect.stringMatching(
        /^Left out of the artifacts, because the names of a job's artifacts may take .* at most: .* and \d+ more\.$/,
      ),
    ]);
  },
);

it('folders are kept too, also those with nothing in them', async () => {
  const one = subject(['out', 'none']);
  await one.settle(async () => workspace({ name: './', type: 'directory' }, { name: './out/', type: 'directory' }));
  expect([one.kept, one.notes]).toEqual([['out'], ['No file matched the artifacts none.']]);
});

it('a name that is not UTF-8 is left out with a note, never kept under another', async () => {
  const one = subject(['*']);
  const odd = workspace({ name: './fine' }, { name: './f-\ufffd' }, { name: './l', type: 'symlink', linkname: '\ufffd' });
  await one.settle(async () => odd);
  expect(one.kept).toEqual(['fine']);
  expect(one.notes).toEqual(['Left out of the artifacts, because their names are not UTF-8: f-\ufffd, l.']);
});
