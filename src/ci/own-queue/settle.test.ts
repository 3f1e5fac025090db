import { Readable } from 'node:stream';
import { expect, it } from 'vitest';
import { OnejobError } from '../../errors.ts';
import type { Job } from './job.ts';
import { createSettle } from './settle.ts';
import type { Spool } from './spool.ts';

const job = { id: 'j', request: { artifacts: ['dist'] } } as unknown as Job;
const never = new AbortController().signal;

function subject(): { notes: string[]; settle(error: unknown): Promise<void> } {
  const notes: string[] = [];
  const spool = {
    hasArtifacts: () => false,
    putArtifacts: (_: string, write: (to: Readable) => Promise<boolean>) => write(new Readable()),
  } as unknown as Spool;
  const settle = createSettle({ spool, artifactLimit: 1, annotate: (_, more) => notes.push(...more) });
  return { notes, settle: (error) => settle(job, () => Promise.reject(error), never) };
}

const failing = (code: 'E_ENGINE_FAILED' | 'E_ENGINE_UNREACHABLE' | 'E_ENGINE_PERMISSION' | 'E_STATE_FULL', retry = true) =>
  new OnejobError(code, 'The Engine answered 500.', { retry });

/** How often it asked to be tried again, out of `times`. */
async function triesOf(error: unknown, times: number): Promise<{ again: number; notes: string[] }> {
  const { notes, settle } = subject();
  let again = 0;
  for (let at = 0; at < times; at += 1) {
    const ended = await settle(error).then(
      () => true,
      () => false,
    );
    if (ended) break;
    again += 1;
  }
  return { again, notes };
}

it('artifacts that lastingly fail are given up with a note, also when it is said to pass', async () => {
  const { again, notes } = await triesOf(failing('E_ENGINE_FAILED'), 1_000);
  expect(again).toBe(9);
  expect(notes).toEqual(['Its artifacts could not be kept: The Engine answered 500.']);
});

it.each(['E_ENGINE_UNREACHABLE', 'E_ENGINE_PERMISSION', 'E_STATE_FULL'] as const)(
  '%s is waited out, however long',
  async (code) => {
    expect(await triesOf(failing(code), 100)).toEqual({ again: 100, notes: [] });
  },
);

it('what cannot pass is given up at once, what is not understood after a few tries', async () => {
  expect((await triesOf(failing('E_ENGINE_FAILED', false), 100)).again).toBe(0);
  expect((await triesOf(new Error('strange'), 100)).again).toBe(2);
});
