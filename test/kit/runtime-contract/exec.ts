/** What every runtime that runs programs beside a script promises about them. */
import { expect } from 'vitest';
import type { AgentId } from '../../../src/core/slot.ts';
import type { Bench } from './bench.ts';
import { said } from './holding.ts';
import { job } from './job.ts';

const never = () => new AbortController().signal;

export function execTests(bench: Bench): void {
  const { it, standby, release, jobOutput } = bench;
  const exec = (agent: AgentId, command: readonly string[], stop = never()) => {
    if (bench.runtime.exec === undefined) throw new Error('this runtime runs nothing beside a script');
    return bench.runtime.exec(agent, command, stop);
  };
  const begun = async (script: string) => {
    const recipe = { ...bench.subject.recipe, env: { ...bench.subject.recipe.env, GIVEN: 'by the recipe' } };
    const sandbox = await standby({ recipe });
    await release(sandbox.agent, job(script, null));
    await sandbox.log.until('up\n');
    return sandbox;
  };

  it('exec', 'a program beside the script reads its input, and its output is in no log', async () => {
    // With its script a sandbox ends what runs beside it: so that waits until the last program has ended.
    const isOver = '[ -s end ] && ! kill -0 "$(cat end)" 2>/dev/null';
    const sandbox = await begun(`echo mine >file; echo up; until ${isOver}; do sleep 0.05; done`);
    const shell = await exec(sandbox.agent, ['sh', '-c', 'cat file; echo "$GIVEN"; cat; echo wrong >&2; exit 7']);
    shell.stdin.write('some ');
    shell.stdin.end('words\n');
    expect(await said(shell)).toEqual({ stdout: 'mine\nby the recipe\nsome words\n', stderr: 'wrong\n', code: 7 });
    expect((await said(await exec(sandbox.agent, ['no-such-program']))).code).toBeGreaterThan(125);
    expect((await said(await exec(sandbox.agent, ['sh', '-c', 'echo $$ >end']))).code).toBe(0);
    expect(await bench.events.exit(sandbox.agent)).toEqual({ kind: 'code', code: 0 });
    const { stdout, stderr } = await jobOutput(sandbox);
    expect([stdout.toString(), stderr.toString()]).toEqual(['up\n', '']);
    await expect(exec(sandbox.agent, ['true'])).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
    await expect(exec('0123456789ab', ['true'])).rejects.toMatchObject({ code: 'E_SANDBOX_LOST' });
  });

  it('exec-ends', 'the input of such a program ends with its client, and the program with its sandbox', async () => {
    const { agent } = await begun('echo up; while ! [ -e heard ]; do sleep 0.05; done; echo over');
    const stop = new AbortController();
    const shell = await exec(agent, ['sh', '-c', 'cat; echo >heard'], stop.signal);
    const lasting = await exec(agent, ['sh', '-c', 'echo up; exec sleep 600']);
    const output = lasting.output[Symbol.asyncIterator]();
    expect(Buffer.from((await output.next()).value?.bytes ?? []).toString()).toBe('up\n');
    stop.abort(new Error('the client has gone'));
    await expect(shell.ended).rejects.toThrow('the client has gone');
    expect(await bench.events.exit(agent)).toEqual({ kind: 'code', code: 0 });
    expect((await output.next()).done).toBe(true);
    expect(await lasting.ended).toBe(137);
  });
}
