/**
 * What every runtime promises, as tests against the real thing. A member's test file calls `runtimeContract` once; what
 * it cannot keep stands in its list of exceptions with the reason, and is shown as skipped.
 */
import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { OnejobError } from '../../../src/base/errors.ts';
import { isOwnAddress } from '../../../src/base/own-address.ts';
import { type LogChunk, start } from '../../../src/ports/runtime.ts';
import { frame, readyMarker, releasedMarker } from '../../../src/runtimes/gate.ts';
import { type Bench, type ContractSubject, createBench } from './bench.ts';
import { execTests } from './exec.ts';
import { fileTests } from './files.ts';
import { follow, specOf, watch } from './follow.ts';
import { holdingTests } from './holding.ts';
import { job } from './job.ts';
import { outputTests } from './output.ts';

export type { ContractSubject } from './bench.ts';
export { follow, specOf, watch } from './follow.ts';

const never = () => new AbortController().signal;
const quiet = () => {};

/** ms: all sandboxes of the suite are removed one after the other. */
const removalOfAll = 240_000;

/** Defines the suite. `make` is called once, before the first test. */
export function runtimeContract(name: string, make: () => Promise<ContractSubject>): void {
  describe(`${name} keeps the runtime contract`, () => {
    const bench = contractBench(make);
    beforeAll(bench.open);
    afterAll(bench.close);
    for (const { key, title, body } of bench.cases)
      test(`${key}: ${title}`, { timeout: key === 'leftovers' ? removalOfAll : 60_000 }, async (context) => {
        const reason = bench.subject.exceptions[key];
        if (reason !== undefined) context.skip(reason);
        await body();
      });
  });
}

/** The suite as plain functions, in the order in which they run. */
export function contractBench(make: () => Promise<ContractSubject>): Bench {
  const bench = createBench(make);
  const { it, prepare, standby, release, scriptOf, run, jobOutput, made } = bench;

  it('ready', 'a prepared sandbox says that its gate is ready, and runs nothing', async () => {
    const { agent, log } = await standby();
    expect(log.text()).toBe(`${readyMarker(agent)}\n`);
  });

  it('once', 'a released script runs once; a second frame does nothing', async () => {
    const { agent, log } = await standby();
    await release(
      agent,
      job('trap "exit 5" TERM; echo began; while :; do sleep 0.05; done', [
        { trap: [{ exit: 5 }] },
        { say: 'began\n' },
        { wait: 'signal' },
      ]),
    );
    await log.until('began');
    await release(agent, job('echo began again', [{ say: 'began again\n' }]));
    await bench.runtime.signal(agent, 'TERM');
    expect(await bench.events.exit(agent)).toEqual({ kind: 'code', code: 5 });
    await log.ended;
    expect(log.text()).toBe(`${readyMarker(agent)}\n${releasedMarker(agent)}\nbegan\n`);
  });

  it('frame', 'what is not a whole frame for this agent is ignored', async () => {
    const { agent, log } = await standby();
    const wrong = scriptOf(job('echo wrong', [{ say: 'wrong\n' }]));
    const other = randomBytes(6).toString('hex');
    await bench.runtime.release(agent, frame(other, wrong), never());
    await bench.runtime.release(agent, frame(agent, wrong).subarray(0, -3), never());
    await release(agent, job('echo right; exit 7', [{ say: 'right\n' }, { exit: 7 }]));
    expect(await bench.events.exit(agent)).toEqual({ kind: 'code', code: 7 });
    await log.ended;
    expect(log.text()).toBe(`${readyMarker(agent)}\n${releasedMarker(agent)}\nright\n`);
  });

  it('twice', 'preparing the same agent twice gives one sandbox', async () => {
    const { spec, agent } = await prepare();
    await bench.runtime.prepare(spec, quiet, never());
    expect((await bench.runtime.list(never())).filter((one) => one.agent === agent)).toHaveLength(1);
  });

  it('codes', 'exit codes are passed on', async () => {
    for (const code of [0, 9, 96, 127, 255])
      expect((await run(job(`exit ${code}`, [{ exit: code }]))).exit).toEqual({ kind: 'code', code });
    expect((await run(job('onejob-no-such-command 2>/dev/null', [{ exit: 127 }]))).exit).toEqual({ kind: 'code', code: 127 });
  });

  it('killed-script', 'a script that is killed is told apart from success', async () => {
    const { exit } = await run(job('kill -KILL $$; sleep 10', [{ kill: 'KILL' }, { sleep: 10_000 }]));
    if (exit.kind === 'signal') expect(exit.signal).toMatch(/KILL/);
    else expect(exit).toEqual({ kind: 'code', code: 137 });
  });

  it('term', 'a job that traps TERM gets its time, and its last line is in the log', async () => {
    const { agent, log } = await standby();
    await release(
      agent,
      job('trap "sleep 0.5; echo last words; exit 3" TERM; echo up; while :; do sleep 0.05; done', [
        { trap: [{ sleep: 500 }, { say: 'last words\n' }, { exit: 3 }] },
        { say: 'up\n' },
        { wait: 'signal' },
      ]),
    );
    await log.until('up\n');
    await bench.runtime.signal(agent, 'TERM');
    expect(await bench.events.exit(agent)).toEqual({ kind: 'code', code: 3 });
    await log.ended;
    expect(log.text()).toContain('last words\n');
  });

  it('term-untrapped', 'a job that does not trap TERM ends by it', async () => {
    const { agent, log } = await standby();
    await release(agent, job('echo up; exec sleep 600', [{ say: 'up\n' }, { sleep: 600_000 }]));
    await log.until('up\n');
    await bench.runtime.signal(agent, 'TERM');
    const exit = await bench.events.exit(agent);
    if (exit.kind === 'signal') expect(exit.signal).toMatch(/TERM/);
    else expect(exit).toEqual({ kind: 'code', code: 143 });
  });

  it('kill-tree', 'KILL ends a job that ignores TERM, with all it started', async () => {
    const { agent, log } = await standby();
    const mark = `60${Number.parseInt(agent.slice(0, 6), 16)}`;
    await release(
      agent,
      job(
        `trap "" TERM; setsid sh -c 'trap "" TERM; sleep ${mark}; :' >/dev/null 2>&1 & (sleep ${mark} &); echo up; while :; do sleep 0.05; done`,
        null,
      ),
    );
    await log.until('up\n');
    await expect.poll(() => running(mark), { timeout: 5_000 }).toBeGreaterThan(0);
    await bench.runtime.signal(agent, 'TERM');
    await bench.runtime.signal(agent, 'KILL');
    expect((await bench.events.exit(agent)).kind).not.toBe('lost');
    await expect.poll(() => running(mark), { timeout: 5_000 }).toBe(0);
  });

  fileTests(bench);

  it('list', 'the list tells what adoption needs', async () => {
    const alive = await standby({ slot: 'contract/7' });
    const dead = await run(job('exit 9', [{ exit: 9 }]));
    const seen = await bench.runtime.list(never());
    expect(seen).toContainEqual({ agent: alive.agent, pool: 'contract', slot: 'contract/7', state: { kind: 'running' } });
    const exit = { kind: 'code', code: 9 };
    expect(seen).toContainEqual({ agent: dead.agent, pool: 'contract', slot: 'contract/1', state: { kind: 'exited', exit } });
  });

  it('environment', 'a job sees the environment of the recipe and nothing on standard input', async () => {
    const recipe = { ...bench.subject.recipe, env: { ...bench.subject.recipe.env, ONE: "it's $HOME\nand more" } };
    const shows = job('printf "%s|" "$ONE"; cat; pwd', [
      { show: { variable: 'ONE' } },
      { say: '|' },
      { show: 'stdin' },
      { show: 'folder' },
    ]);
    const sandbox = await run(shows, { recipe });
    const { stdout } = await jobOutput(sandbox);
    expect(stdout.toString()).toBe(`it's $HOME\nand more|${bench.runtime.capabilities.workspace(sandbox.agent)}\n`);
  });

  outputTests(bench);
  holdingTests(bench);
  execTests(bench);

  it('remove', 'removing ends and forgets a sandbox, and may be repeated', async () => {
    const { agent, log } = await standby();
    await release(
      agent,
      job('trap "" TERM; echo up; while :; do sleep 0.05; done', [{ trap: [] }, { say: 'up\n' }, { wait: 'signal' }]),
    );
    await log.until('up\n');
    await bench.runtime.remove(agent);
    await bench.runtime.remove(agent);
    await log.ended.catch(quiet);
    expect((await bench.runtime.list(never())).map((one) => one.agent)).not.toContain(agent);
  });

  it('unknown', 'what was asked of an unknown agent is not a surprise', async () => {
    const nobody = randomBytes(6).toString('hex');
    await bench.runtime.signal(nobody, 'TERM');
    await bench.runtime.signal(nobody, 'KILL');
    await bench.runtime.remove(nobody);
    const chunks: LogChunk[] = [];
    for await (const some of bench.runtime.logs(nobody, start, never())) chunks.push(...some);
    expect(chunks).toEqual([]);
    await expect(release(nobody, job('true', []))).rejects.toThrow(OnejobError);
    await expect(bench.runtime.getFiles(nobody, never())).rejects.toThrow(OnejobError);
  });

  it('stranger', "another owner's sandbox is not seen, and not touched", async () => {
    const theirs = await bench.subject.stranger();
    const { agent, ...spec } = specOf(bench.subject.recipe);
    await theirs.prepare({ ...spec, agent }, quiet, never());
    try {
      const log = follow(theirs, agent);
      await log.until(`${readyMarker(agent)}\n`);
      expect((await bench.runtime.list(never())).map((one) => one.agent)).not.toContain(agent);
      await bench.runtime.signal(agent, 'KILL');
      await bench.runtime.remove(agent);
      await bench.runtime.sweep(never());
      await expect(release(agent, job('echo touched', [{ say: 'touched\n' }]))).rejects.toThrow(OnejobError);
      expect((await theirs.list(never())).find((one) => one.agent === agent)?.state).toEqual({ kind: 'running' });
      expect(log.text()).toBe(`${readyMarker(agent)}\n`);
      // What ends slowly may still be listed as running.
      await theirs.release(agent, frame(agent, scriptOf(job('echo theirs', [{ say: 'theirs\n' }]))), never());
      await log.until('theirs\n');
      log.stop();
      await log.ended;
    } finally {
      await theirs.remove(agent);
      await theirs.sweep(never());
      theirs.close?.();
    }
  });

  it('ended-gate', 'a gate that has ended takes no script, and says that another may', async () => {
    const { agent, log } = await standby();
    await bench.runtime.signal(agent, 'KILL');
    await bench.events.exit(agent);
    await log.ended;
    await expect(release(agent, job('true', []))).rejects.toMatchObject({ code: 'E_GATE_ENDED', retry: true });
    await bench.runtime.signal(agent, 'TERM');
  });

  it('manager-death', 'exit code and output can be read by a manager that was not there', async () => {
    const { agent, log } = await standby();
    await release(agent, job('echo alone; exit 21', [{ say: 'alone\n' }, { exit: 21 }]));
    const exit = await bench.events.exit(agent);
    await log.ended;
    const later = await bench.subject.remake();
    const seen = (await later.list(never())).find((one) => one.agent === agent);
    expect(seen?.state).toEqual({ kind: 'exited', exit });
    expect(exit).toEqual({ kind: 'code', code: 21 });
    const again = follow(later, agent);
    await again.ended;
    expect(again.text()).toBe(log.text());
  });

  it('adopt-standby', 'a standby can be released by a manager that did not make it', async () => {
    const { agent, log } = await standby();
    await log.stop();
    const later = await bench.subject.remake();
    const again = follow(later, agent);
    const seen = watch(later);
    await seen.connected();
    const script = scriptOf(job('echo adopted; exit 22', [{ say: 'adopted\n' }, { exit: 22 }]));
    await later.release(agent, frame(agent, script), never());
    expect(await seen.exit(agent)).toEqual({ kind: 'code', code: 22 });
    await seen.stop();
    await again.ended;
    expect(again.text()).toContain('adopted\n');
  });

  it('fingerprint', 'a fingerprint follows the recipe', async () => {
    const { fingerprint } = await prepare();
    expect(await bench.runtime.fingerprint(bench.subject.recipe, never())).toBe(fingerprint);
    const other = { ...bench.subject.recipe, env: { ...bench.subject.recipe.env, OTHER: '1' } };
    expect(await bench.runtime.fingerprint(other, never())).not.toBe(fingerprint);
  });

  it('image-id', 'an image named by its id gives the same sandbox, and is refused when it is not there', async () => {
    const { recipe } = bench.subject;
    const { fingerprint, imageId } = await prepare();
    const known = (await bench.runtime.imageId?.(recipe, never())) ?? undefined;
    expect(imageId).toBe(known);
    // Without images there is nothing to name.
    if (known === undefined) return;
    const named = { ...recipe, imageId: known };
    expect(await bench.runtime.fingerprint(named, never())).toBe(fingerprint);
    expect(await prepare({ recipe: { ...named, pull: 'always' } })).toMatchObject({ fingerprint, imageId: known });
    const gone = { ...recipe, imageId: `sha256:${'0'.repeat(64)}` };
    expect([await bench.runtime.fingerprint(gone, never()), await bench.runtime.imageId?.(gone, never())]).toEqual([null, null]);
    await expect(prepare({ recipe: gone })).rejects.toMatchObject({ code: 'E_IMAGE_NOT_FOUND' });
  });

  it('aborted', 'following ends when it is told to, and a stopped preparation leaves nothing after remove', async () => {
    const { log } = await standby();
    log.stop();
    await log.ended;
    const spec = specOf(bench.subject.recipe);
    made.push(spec.agent);
    const stop = new AbortController();
    const preparing = bench.runtime.prepare(spec, quiet, stop.signal);
    stop.abort();
    await preparing.catch(quiet);
    await bench.runtime.remove(spec.agent);
    expect((await bench.runtime.list(never())).map((one) => one.agent)).not.toContain(spec.agent);
  });

  it('check', 'findings have no error, and the disk is known', async () => {
    expect((await bench.runtime.check(never())).filter((finding) => finding.level === 'error')).toEqual([]);
    const disk = await bench.runtime.disk(never());
    if (disk === null) return;
    expect(disk.free).toBeGreaterThan(0);
    expect(disk.free).toBeLessThan(1);
  });

  it('usage', "what a sandbox's files take on disk can be told, while it runs", async () => {
    const { agent, log } = await standby();
    const empty = await bench.runtime.usage?.(agent, never());
    if (empty === undefined || empty === null) return;
    await release(
      agent,
      job('dd if=/dev/urandom of=big bs=1024 count=3072 2>/dev/null; echo written; while :; do sleep 0.05; done', [
        { file: 'big', text: { zeros: 3 * 2 ** 20 } },
        { say: 'written\n' },
        { wait: 'signal' },
      ]),
    );
    await log.until('written\n');
    const full = (await bench.runtime.usage?.(agent, never())) ?? 0;
    expect(full - empty).toBeGreaterThan(2 * 2 ** 20);
    expect(full - empty).toBeLessThan(8 * 2 ** 20);
  });

  it('door', 'a network has an address of the host, the same each time, or the reason why not', async () => {
    const { network } = bench.subject.recipe;
    const asked = bench.runtime.hostAddress(network, 4711, never());
    if (network === 'none') return expect(asked).rejects.toMatchObject({ code: 'E_NO_DOOR', hint: expect.any(String) });
    expect(await isOwnAddress(await asked)).toBe(true);
    expect(await bench.runtime.hostAddress(network, 4711, never())).toBe(await asked);
    await expect(bench.runtime.hostAddress('none', 4711, never())).rejects.toMatchObject({ code: 'E_NO_DOOR', retry: false });
  });

  it('leftovers', 'once all is removed and swept, nothing of this owner is left', async () => {
    for (const agent of made) await bench.runtime.remove(agent);
    await bench.runtime.sweep(never());
    expect(await bench.runtime.list(never())).toEqual([]);
    expect(await bench.subject.leftovers()).toEqual([]);
  });
  return bench;
}

/** Processes of this host that have `mark` among their arguments; agents of a runtime on this host are among them. */
function running(mark: string): number {
  let count = 0;
  for (const pid of readdirSync('/proc')) {
    if (!/^\d+$/.test(pid)) continue;
    try {
      if (readFileSync(`/proc/${pid}/cmdline`, 'latin1').split('\0').slice(0, -1).join(' ') === `sleep ${mark}`) count += 1;
    } catch {
      // It ended while we looked.
    }
  }
  return count;
}
