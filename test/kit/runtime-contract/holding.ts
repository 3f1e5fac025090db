/** What every runtime that keeps ended sandboxes promises about them, and about shells in them. */
import { randomBytes } from 'node:crypto';
import { expect } from 'vitest';
import type { AgentId } from '../../../src/core/slot.ts';
import type { Holding, RunningShell, Runtime, ShellSpec } from '../../../src/ports/runtime.ts';
import type { Bench } from './bench.ts';
import { specOf } from './follow.ts';
import { job } from './job.ts';

const never = () => new AbortController().signal;

/** Everything that a shell says, and its exit code. */
export async function said({ output, ended }: RunningShell) {
  const text = { stdout: '', stderr: '' };
  for await (const { stream, bytes } of output) text[stream] += Buffer.from(bytes).toString();
  return { ...text, code: await ended };
}

export function holdingTests(bench: Bench): void {
  const { it, run, made } = bench;
  const holding = (runtime: Runtime = bench.runtime): Holding => {
    if (runtime.holding === undefined) throw new Error('this runtime holds nothing');
    return runtime.holding;
  };
  const specFor = (): ShellSpec['spec'] => {
    const recipe = { ...bench.subject.recipe, env: { ...bench.subject.recipe.env, GIVEN: 'by the recipe' } };
    return specOf(recipe, { agent: randomBytes(6).toString('hex') });
  };
  const open = (
    agent: AgentId,
    command: readonly string[] | null,
    more: { stop?: AbortSignal; terminal?: ShellSpec['terminal'] } = {},
  ) => holding().shell(agent, { spec: specFor(), command, terminal: more.terminal ?? null }, more.stop ?? never());
  const failed = async (script: string): Promise<AgentId> => {
    const { agent } = await run(job(script, null));
    expect(await holding().hold(agent)).toBe(true);
    return agent;
  };
  const release = async (agent: AgentId) => {
    await holding().release(agent);
    made.splice(made.indexOf(agent), 1);
  };

  it('held', 'a shell finds the files of a held sandbox, but nothing of its script', async () => {
    const agent = await failed(
      'export SECRET=s3cret; cd ~ 2>/dev/null; echo mine >kept; echo work >"$OLDPWD/work"; echo t >/tmp/t; exit 3',
    );
    const shell = await open(agent, [
      'sh',
      '-c',
      'cat work; cat ~/kept /kept /tmp/t 2>/dev/null; echo "$GIVEN $SECRET."; echo w >&2; exit 7',
    ]);
    // Of a read-only root only the workspace is left: the rest was in memory.
    const files = bench.subject.recipe.readOnly ? 'work\n' : 'work\nmine\nt\n';
    expect(await said(shell)).toEqual({ stdout: `${files}by the recipe .\n`, stderr: 'w\n', code: 7 });
    const none = await said(await open(agent, ['sh', '-c', 'cat /proc/*/environ /proc/*/cmdline 2>/dev/null | grep -c s3c[r]et']));
    expect(none.stdout).toBe('0\n');
    expect((await said(await open(agent, ['no-such-program']))).code).toBe(127);
    const [seen, ...others] = (await bench.runtime.list(never())).filter((one) => one.agent === agent);
    expect(seen?.state.kind).toBe('exited');
    expect(others).toEqual([]);
    await release(agent);
    await expect(open(agent, ['true'])).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
    expect(await holding().hold(agent)).toBe(false);
  });

  it('held-input', 'a shell reads its input, and what it changes in the workspace stays', async () => {
    const agent = await failed('exit 1');
    const shell = await open(agent, ['sh', '-c', 'cat >typed']);
    const done = said(shell);
    shell.stdin.write('some ');
    shell.stdin.end('words');
    expect((await done).code).toBe(0);
    expect((await said(await open(agent, ['cat', 'typed']))).stdout).toBe('some words');
    await release(agent);
  });

  it('held-output', 'what a shell runs opens its output by name, and its exit code does not wait for what it leaves', async () => {
    const agent = await failed('exit 1');
    const shell = await open(agent, ['sh', '-c', 'echo one >/dev/stdout; echo two >/dev/stderr; sleep 300 & exit 7']);
    expect(await said(shell)).toEqual({ stdout: 'one\n', stderr: 'two\n', code: 7 });
    await release(agent);
  });

  it('held-terminal', 'a terminal has a size that follows, and Ctrl-C reaches what runs in it', async () => {
    const agent = await failed('exit 1');
    const shell = await open(agent, null, { terminal: { columns: 91, rows: 33, term: 'vt100' } });
    let text = '';
    const until = async (what: RegExp) => {
      for (let tries = 0; !what.test(text); tries += 1) {
        if (tries > 500) throw new Error(`not ${what} in: ${text}`);
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    };
    const reading = (async () => {
      for await (const { bytes } of shell.output) text += Buffer.from(bytes).toString();
    })();
    // What is typed is echoed, so what is waited for must not be a part of it.
    shell.stdin.write('while ! stty size 2>/dev/null | grep "33 91"; do sleep 0.1; done; echo $TERM-; echo re""ady\n');
    await until(/33 91[\s\S]*vt100-[\s\S]*ready/);
    shell.resize({ columns: 60, rows: 20 });
    // A dash that starts another program takes the signal from it if it comes before that has begun.
    shell.stdin.write(
      'while ! stty size | grep "20 60"; do sleep 0.1; done; echo re""sized; sh -c "echo run""ning; exec sleep 300"\n',
    );
    await until(/running/);
    shell.stdin.write('\u0003');
    shell.stdin.write('echo inter""rupted; exit 5\n');
    await until(/interrupted/);
    expect(await shell.ended).toBe(5);
    await reading;
    await release(agent);
  });

  it('held-abort', 'a shell ends with its client, and with its hold', async () => {
    const agent = await failed('exit 1');
    const stop = new AbortController();
    const shell = await open(agent, ['sh', '-c', 'echo up; sleep 600 & sleep 600'], { stop: stop.signal });
    const reading = (async () => {
      for await (const _ of shell.output) stop.abort(new Error('the client has gone'));
    })();
    await expect(shell.ended).rejects.toThrow('the client has gone');
    await reading;
    await release(agent);
    await bench.runtime.sweep(never());
    await holding().sweep(new Set(), never());
  });
}
