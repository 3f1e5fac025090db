/** What every runtime promises about output: every byte once, from any position, and no reader holds up a job. */
import { expect } from 'vitest';
import { advance, type LogChunk, start } from '../../../src/ports/runtime.ts';
import type { Bench } from './bench.ts';
import { bytesOf } from './follow.ts';
import { type ContractJob, job } from './job.ts';

const never = () => new AbortController().signal;

export function outputTests(bench: Bench): void {
  const { it, standby, prepare, release, run, jobOutput } = bench;

  const noisyShell = [
    'i=0; while [ $i -lt 12 ]; do echo "out $i"; echo "err $i" >&2; i=$((i+1)); done',
    'printf "\\000\\001\\200\\377\\n"; printf "bad \\303 utf\\n" >&2',
    'long=$(head -c 40000 /dev/zero | tr "\\0" x); printf "%s\\nafter long\\n" "$long"; printf "%s\\nafter long\\n" "$long" >&2',
    'exact=$(head -c 16384 /dev/zero | tr "\\0" y); printf "%s\\n\\nafter exact\\n" "$exact"',
    'printf "no newline"',
  ].join('\n');
  const noisy = job(noisyShell, [
    ...Array.from({ length: 12 }, (_, i) => [{ say: `out ${i}\n` }, { say: `err ${i}\n`, to: 'stderr' as const }]).flat(),
    { say: '\0\x01\x80\xff\n' },
    { say: 'bad \xc3 utf\n', to: 'stderr' },
    { say: `${'x'.repeat(40_000)}\nafter long\n` },
    { say: `${'x'.repeat(40_000)}\nafter long\n`, to: 'stderr' },
    { say: `${'y'.repeat(16_384)}\n\nafter exact\n` },
    { say: 'no newline' },
  ]);
  const noisyOut = () => {
    const lines = Array.from({ length: 12 }, (_, i) => `out ${i}\n`).join('');
    return Buffer.from(
      `${lines}\0\x01\x80\xff\n${'x'.repeat(40_000)}\nafter long\n${'y'.repeat(16_384)}\n\nafter exact\nno newline`,
      'latin1',
    );
  };
  const noisyErr = () => {
    const lines = Array.from({ length: 12 }, (_, i) => `err ${i}\n`).join('');
    return Buffer.from(`${lines}bad \xc3 utf\n${'x'.repeat(40_000)}\nafter long\n`, 'latin1');
  };

  it('streams', 'stdout and stderr are kept apart, every byte, also long lines and no last newline', async () => {
    const { stdout, stderr } = await jobOutput(await run(noisy));
    if (bench.subject.joinsOutput === true) {
      expect(same(stdout, inOrder(noisy))).toBe(true);
      expect(stderr).toHaveLength(0);
      return;
    }
    expect(same(stdout, noisyOut())).toBe(true);
    expect(same(stderr, noisyErr())).toBe(true);
  });

  it('reopened', 'a job opens its output again by name', async () => {
    const script = [
      'echo 1 >/dev/stdout; echo 2 >/dev/fd/1; echo 3 >/proc/self/fd/1; echo 4 | tee /dev/stdout',
      'echo 5 >/dev/stderr; echo 6 >/dev/fd/2; echo 7 >/proc/self/fd/2; echo 8 | tee /dev/stderr >/dev/null',
    ].join('\n');
    const play = [{ say: '1\n2\n3\n4\n4\n' }, { say: '5\n6\n7\n8\n', to: 'stderr' as const }];
    const { stdout, stderr } = await jobOutput(await run(job(script, play)));
    const apart = ['1\n2\n3\n4\n4\n', '5\n6\n7\n8\n'];
    expect([stdout.toString(), stderr.toString()]).toEqual(bench.subject.joinsOutput === true ? [apart.join(''), ''] : apart);
  });

  it('resume', 'output continues from every position without hole or repeat', async () => {
    const { agent, log } = await run(noisy);
    await log.ended;
    let position = start;
    const wrong: number[] = [];
    for (let kept = 0; kept <= log.chunks.length; kept += 1) {
      const rest: LogChunk[] = [];
      for await (const some of bench.runtime.logs(agent, position, never())) rest.push(...some);
      for (const stream of ['stdout', 'stderr'] as const) {
        const whole = Buffer.concat([bytesOf(log.chunks.slice(0, kept), stream), bytesOf(rest, stream)]);
        if (!same(whole, bytesOf(log.chunks, stream))) wrong.push(kept);
      }
      const next = log.chunks[kept];
      if (next !== undefined) position = advance(position, next);
    }
    expect(wrong).toEqual([]);
  });

  it('resume-live', 'a second follower takes over from where the first stopped, while the job runs', async () => {
    const { agent, log } = await standby();
    await release(
      agent,
      job('i=0; while [ $i -lt 60 ]; do echo "line $i"; i=$((i+1)); sleep 0.01; done; exit 0', [
        ...Array.from({ length: 60 }, (_, i) => [{ say: `line ${i}\n` }, { sleep: 10 }]).flat(),
        { exit: 0 },
      ]),
    );
    let position = start;
    const taken: LogChunk[] = [];
    for (;;) {
      const stop = new AbortController();
      let got = 0;
      for await (const some of bench.runtime.logs(agent, position, stop.signal)) {
        for (const chunk of some) position = advance(position, chunk);
        taken.push(...some);
        got += some.length;
        if (got >= 7) stop.abort();
      }
      if (!stop.signal.aborted) break;
    }
    await log.ended;
    expect(bytesOf(taken, 'stdout').toString()).toBe(bytesOf(log.chunks, 'stdout').toString());
    expect(bytesOf(taken, 'stdout').toString()).toContain('line 0\n');
    expect(bytesOf(taken, 'stdout').toString()).toContain('line 59\n');
  });

  it('slow-reader', 'a log that nobody reads does not hold up the job', async () => {
    const { agent } = await prepare();
    const reader = bench.runtime.logs(agent, start, never())[Symbol.asyncIterator]();
    await reader.next();
    await release(agent, job('head -c 8000000 /dev/zero | tr "\\0" x; exit 6', [{ say: 'x', times: 8_000_000 }, { exit: 6 }]));
    expect(await bench.events.exit(agent)).toEqual({ kind: 'code', code: 6 });
    await reader.return?.();
  });
}

function same(a: Buffer, b: Buffer): boolean {
  return a.equals(b);
}

/** All that a job says, on both streams. */
function inOrder({ steps }: ContractJob): Buffer {
  return Buffer.from((steps ?? []).map((step) => ('say' in step ? step.say : '')).join(''), 'latin1');
}
