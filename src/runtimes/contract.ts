/**
 * What every runtime promises, as tests against the real thing. A member's test file calls `runtimeContract` once; what
 * it cannot keep stands in its list of exceptions with the reason, and is shown as skipped.
 */
import { randomBytes } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { extract, pack } from 'tar-stream';
import { afterAll, beforeAll, describe, expect, type TestContext, test } from 'vitest';
import type { AgentId, Exit } from '../core/slot.ts';
import { OnejobError } from '../errors.ts';
import { frame, MarkerFilter, readyMarker, releasedMarker } from './gate.ts';
import type { LogChunk, LogPosition, Recipe, Runtime, RuntimeEvent, SandboxSpec } from './runtime.ts';

export type ContractTest =
  | 'ready'
  | 'once'
  | 'twice'
  | 'codes'
  | 'killed-script'
  | 'term'
  | 'term-untrapped'
  | 'kill-tree'
  | 'files'
  | 'files-after-exit'
  | 'list'
  | 'environment'
  | 'streams'
  | 'resume'
  | 'resume-live'
  | 'slow-reader'
  | 'remove'
  | 'unknown'
  | 'ended-gate'
  | 'manager-death'
  | 'adopt-standby'
  | 'fingerprint'
  | 'aborted'
  | 'check'
  | 'leftovers';

/** One member, ready to be tried. */
export interface ContractSubject {
  readonly runtime: Runtime;
  /** A recipe that works here; its sandbox has `sh`, `cat`, `sleep`, `stat`, `id`, `head` and `setsid`. */
  readonly recipe: Recipe;
  /** A second runtime object over the same state, as a manager started after a crash makes it. */
  remake(): Promise<Runtime>;
  /** Names of whatever of this owner is still in the world; called after everything was removed and swept. */
  leftovers(): Promise<readonly string[]>;
  cleanup(): Promise<void>;
  /** Tests this member cannot pass, with the reason. */
  readonly exceptions: Readonly<Partial<Record<ContractTest, string>>>;
}

const start: LogPosition = { time: 0n, atTime: 0, stdout: 0, stderr: 0 };

/** The position after one more chunk was kept. */
export function advance(position: LogPosition, chunk: LogChunk): LogPosition {
  const isLater = chunk.time > position.time;
  return {
    time: isLater ? chunk.time : position.time,
    atTime: isLater ? 1 : position.atTime + (chunk.time === position.time ? 1 : 0),
    stdout: position.stdout + (chunk.stream === 'stdout' ? chunk.bytes.length : 0),
    stderr: position.stderr + (chunk.stream === 'stderr' ? chunk.bytes.length : 0),
  };
}

/** The bytes of one stream. */
export function bytesOf(chunks: readonly LogChunk[], stream: 'stdout' | 'stderr'): Buffer {
  return Buffer.concat(chunks.filter((chunk) => chunk.stream === stream).map((chunk) => chunk.bytes));
}

/** Follows one sandbox's log in the background; `until` waits for text in it. */
export function follow(runtime: Runtime, agent: AgentId, from: LogPosition = start) {
  const chunks: LogChunk[] = [];
  const stop = new AbortController();
  const waiting = new Set<() => void>();
  const wake = () => {
    for (const check of [...waiting]) check();
  };
  let over = false;
  const ended = (async () => {
    for await (const some of runtime.logs(agent, from, stop.signal)) {
      chunks.push(...some);
      wake();
    }
  })().finally(() => {
    over = true;
    wake();
  });
  ended.catch(() => {});
  const text = () => Buffer.concat(chunks.map((chunk) => chunk.bytes)).toString('latin1');
  return {
    chunks,
    ended,
    text,
    stop: () => stop.abort(),
    until: (wanted: string) =>
      new Promise<void>((resolve, reject) => {
        const check = () => {
          const found = text().includes(wanted);
          if (!found && !over) return;
          waiting.delete(check);
          if (found) resolve();
          else reject(new Error(`the log of ${agent} ended without ${JSON.stringify(wanted)}: ${JSON.stringify(text())}`));
        };
        waiting.add(check);
        check();
      }),
  };
}

/** Gathers what a runtime reports; `exit` waits for one agent's end. */
export function watch(runtime: Runtime) {
  const seen: RuntimeEvent[] = [];
  const stop = new AbortController();
  const waiting = new Set<() => void>();
  const done = (async () => {
    for await (const event of runtime.events(stop.signal)) {
      seen.push(event);
      for (const check of [...waiting]) check();
    }
  })();
  done.catch(() => {});
  const find = <E extends RuntimeEvent>(matches: (event: RuntimeEvent) => event is E) =>
    new Promise<E>((resolve) => {
      const check = () => {
        const found = seen.find(matches);
        if (found === undefined) return;
        waiting.delete(check);
        resolve(found);
      };
      waiting.add(check);
      check();
    });
  return {
    seen,
    done,
    connected: () => find((event): event is Extract<RuntimeEvent, { kind: 'connected' }> => event.kind === 'connected'),
    exit: async (agent: AgentId): Promise<Exit> => {
      const isIt = (event: RuntimeEvent): event is Extract<RuntimeEvent, { kind: 'exited' }> =>
        event.kind === 'exited' && event.agent === agent;
      return (await find(isIt)).exit;
    },
    stop: async () => {
      stop.abort();
      await done;
    },
  };
}

/** A sandbox to be made, with a fresh agent id. */
export function specOf(recipe: Recipe, changes: Partial<SandboxSpec> = {}): SandboxSpec {
  return {
    agent: randomBytes(6).toString('hex'),
    pool: 'contract',
    slot: 'contract/1',
    name: 'con.1',
    recipe,
    devices: [],
    ...changes,
  };
}

const never = () => new AbortController().signal;
const quiet = () => {};

/** Defines the suite. `make` is called once, before the first test. */
export function runtimeContract(name: string, make: () => Promise<ContractSubject>): void {
  describe(`${name} keeps the runtime contract`, { timeout: 60_000 }, () => {
    let subject: ContractSubject;
    let runtime: Runtime;
    let events: ReturnType<typeof watch>;
    const made: AgentId[] = [];

    beforeAll(async () => {
      subject = await make();
      runtime = subject.runtime;
      events = watch(runtime);
      await events.connected();
    });
    afterAll(async () => {
      for (const agent of made) await runtime.remove(agent);
      await events.stop();
      await subject.cleanup();
    });

    const it = (key: ContractTest, title: string, body: (context: TestContext) => Promise<void>) =>
      test(`${key}: ${title}`, async (context) => {
        const reason = subject.exceptions[key];
        if (reason !== undefined) context.skip(reason);
        await body(context);
      });

    const prepare = async (changes: Partial<SandboxSpec> = {}) => {
      const spec = specOf(subject.recipe, changes);
      made.push(spec.agent);
      const { fingerprint } = await runtime.prepare(spec, quiet, never());
      return { spec, agent: spec.agent, fingerprint };
    };
    const standby = async (changes: Partial<SandboxSpec> = {}) => {
      const sandbox = await prepare(changes);
      const log = follow(runtime, sandbox.agent);
      await log.until(`${readyMarker(sandbox.agent)}\n`);
      return { ...sandbox, log };
    };
    const release = (agent: AgentId, script: string) => runtime.release(agent, frame(agent, script), never());
    const run = async (script: string, changes: Partial<SandboxSpec> = {}) => {
      const sandbox = await standby(changes);
      await release(sandbox.agent, script);
      return { ...sandbox, exit: await events.exit(sandbox.agent) };
    };
    const jobOutput = async (sandbox: { agent: AgentId; log: ReturnType<typeof follow> }) => {
      await sandbox.log.ended;
      const filter = new MarkerFilter(sandbox.agent);
      const stdout = sandbox.log.chunks
        .filter((chunk) => chunk.stream === 'stdout')
        .map((chunk) => Buffer.from(filter.push(chunk.bytes)));
      return { stdout: Buffer.concat(stdout), stderr: bytesOf(sandbox.log.chunks, 'stderr') };
    };

    it('ready', 'a prepared sandbox says that its gate is ready, and runs nothing', async () => {
      const { agent, log } = await standby();
      expect(log.text()).toBe(`${readyMarker(agent)}\n`);
    });

    it('once', 'a released script runs once; a second frame does nothing', async () => {
      const { agent, log } = await standby();
      await release(agent, 'trap "exit 5" TERM; echo began; while :; do sleep 0.05; done');
      await log.until('began');
      await release(agent, 'echo began again');
      await runtime.signal(agent, 'TERM');
      expect(await events.exit(agent)).toEqual({ kind: 'code', code: 5 });
      await log.ended;
      expect(log.text()).toBe(`${readyMarker(agent)}\n${releasedMarker(agent)}\nbegan\n`);
    });

    it('twice', 'preparing the same agent twice gives one sandbox', async () => {
      const { spec, agent } = await prepare();
      await runtime.prepare(spec, quiet, never());
      expect((await runtime.list(never())).filter((one) => one.agent === agent)).toHaveLength(1);
    });

    it('codes', 'exit codes are passed on', async () => {
      for (const code of [0, 9, 96, 127, 255]) expect((await run(`exit ${code}`)).exit).toEqual({ kind: 'code', code });
      expect((await run('onejob-no-such-command 2>/dev/null')).exit).toEqual({ kind: 'code', code: 127 });
    });

    it('killed-script', 'a script that is killed is told apart from success', async () => {
      const { exit } = await run('kill -KILL $$; sleep 10');
      if (exit.kind === 'signal') expect(exit.signal).toMatch(/KILL/);
      else expect(exit).toEqual({ kind: 'code', code: 137 });
    });

    it('term', 'a job that traps TERM gets its time, and its last line is in the log', async () => {
      const { agent, log } = await standby();
      await release(agent, 'trap "sleep 0.5; echo last words; exit 3" TERM; echo up; while :; do sleep 0.05; done');
      await log.until('up\n');
      await runtime.signal(agent, 'TERM');
      expect(await events.exit(agent)).toEqual({ kind: 'code', code: 3 });
      await log.ended;
      expect(log.text()).toContain('last words\n');
    });

    it('term-untrapped', 'a job that does not trap TERM ends by it', async () => {
      const { agent, log } = await standby();
      await release(agent, 'echo up; exec sleep 600');
      await log.until('up\n');
      await runtime.signal(agent, 'TERM');
      const exit = await events.exit(agent);
      if (exit.kind === 'signal') expect(exit.signal).toMatch(/TERM/);
      else expect(exit).toEqual({ kind: 'code', code: 143 });
    });

    it('kill-tree', 'KILL ends a job that ignores TERM, with all it started', async () => {
      const { agent, log } = await standby();
      const mark = `60${Number.parseInt(agent.slice(0, 6), 16)}`;
      await release(
        agent,
        `trap "" TERM; setsid sh -c 'trap "" TERM; sleep ${mark}; :' >/dev/null 2>&1 & (sleep ${mark} &); echo up; while :; do sleep 0.05; done`,
      );
      await log.until('up\n');
      await expect.poll(() => running(mark), { timeout: 5_000 }).toBeGreaterThan(0);
      await runtime.signal(agent, 'TERM');
      await runtime.signal(agent, 'KILL');
      expect((await events.exit(agent)).kind).not.toBe('lost');
      await expect.poll(() => running(mark), { timeout: 5_000 }).toBe(0);
    });

    it('files', 'files put in belong to the agent, and files made come back', async () => {
      const { agent, log } = await standby();
      const long = `deep/${'n'.repeat(120)}/file with spaces\u00e9`;
      await runtime.putFiles(agent, await aTar(long), never());
      const place = runtime.capabilities.workspace(agent);
      const script = [
        'set -e',
        `cd '${place}'; cat hello.txt; cat link; ./tool; cat '${long}'`,
        '[ "$(stat -c %u hello.txt)" = "$(id -u)" ] && [ "$(stat -c %u deep)" = "$(id -u)" ] && echo mine',
        'echo more >>hello.txt; echo made >made.txt; mkdir -p out; printf "\\0\\377" >out/bytes; ln -s made.txt made-link; rm tool',
        'echo done; exec sleep 600',
      ].join('\n');
      await release(agent, script);
      await log.until('done\n');
      expect(log.text()).toContain('hello\nhello\ntool ran\ndeep\nmine\ndone\n');
      const files = await untar(await runtime.getFiles(agent, never()));
      expect(files.get('./hello.txt')).toBe('hello\nmore\n');
      expect(files.get('./made.txt')).toBe('made\n');
      expect(files.get('./out/bytes')).toBe('\0\xff');
      expect(files.get('./made-link')).toBe('-> made.txt');
      expect(files.get(`./${long}`)).toBe('deep\n');
      expect([...files.keys()].filter((path) => path !== '.' && !path.startsWith('./'))).toEqual([]);
      expect(files.has('./tool')).toBe(false);
    });

    it('files-after-exit', 'files come back after the agent has ended', async () => {
      const { agent } = await run('echo kept >kept.txt; exit 4');
      expect((await untar(await runtime.getFiles(agent, never()))).get('./kept.txt')).toBe('kept\n');
    });

    it('list', 'the list tells what adoption needs', async () => {
      const alive = await standby({ slot: 'contract/7' });
      const dead = await run('exit 9');
      const seen = await runtime.list(never());
      expect(seen).toContainEqual({ agent: alive.agent, pool: 'contract', slot: 'contract/7', state: { kind: 'running' } });
      const exit = { kind: 'code', code: 9 };
      expect(seen).toContainEqual({ agent: dead.agent, pool: 'contract', slot: 'contract/1', state: { kind: 'exited', exit } });
    });

    it('environment', 'a job sees the environment of the recipe and nothing on standard input', async () => {
      const recipe = { ...subject.recipe, env: { ...subject.recipe.env, ONE: "it's $HOME\nand more" } };
      const sandbox = await run('printf "%s|" "$ONE"; cat; pwd', { recipe });
      const { stdout } = await jobOutput(sandbox);
      expect(stdout.toString()).toBe(`it's $HOME\nand more|${runtime.capabilities.workspace(sandbox.agent)}\n`);
    });

    const noisy = [
      'i=0; while [ $i -lt 12 ]; do echo "out $i"; echo "err $i" >&2; i=$((i+1)); done',
      'printf "\\000\\001\\200\\377\\n"; printf "bad \\303 utf\\n" >&2',
      'long=$(head -c 40000 /dev/zero | tr "\\0" x); printf "%s\\nafter long\\n" "$long"; printf "%s\\nafter long\\n" "$long" >&2',
      'exact=$(head -c 16384 /dev/zero | tr "\\0" y); printf "%s\\n\\nafter exact\\n" "$exact"',
      'printf "no newline"',
    ].join('\n');
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
      expect(same(stdout, noisyOut())).toBe(true);
      expect(same(stderr, noisyErr())).toBe(true);
    });

    it('resume', 'output goes on from every position without hole or repeat', async () => {
      const { agent, log } = await run(noisy);
      await log.ended;
      let position = start;
      const wrong: number[] = [];
      for (let kept = 0; kept <= log.chunks.length; kept += 1) {
        const rest: LogChunk[] = [];
        for await (const some of runtime.logs(agent, position, never())) rest.push(...some);
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
      await release(agent, 'i=0; while [ $i -lt 60 ]; do echo "line $i"; i=$((i+1)); sleep 0.01; done; exit 0');
      let position = start;
      const taken: LogChunk[] = [];
      for (;;) {
        const stop = new AbortController();
        let got = 0;
        for await (const some of runtime.logs(agent, position, stop.signal)) {
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
      const reader = runtime.logs(agent, start, never())[Symbol.asyncIterator]();
      await reader.next();
      await release(agent, 'head -c 8000000 /dev/zero | tr "\\0" x; exit 6');
      expect(await events.exit(agent)).toEqual({ kind: 'code', code: 6 });
      await reader.return?.();
    });

    it('remove', 'removing ends and forgets a sandbox, and may be repeated', async () => {
      const { agent, log } = await standby();
      await release(agent, 'trap "" TERM; echo up; while :; do sleep 0.05; done');
      await log.until('up\n');
      await runtime.remove(agent);
      await runtime.remove(agent);
      await log.ended.catch(quiet);
      expect((await runtime.list(never())).map((one) => one.agent)).not.toContain(agent);
    });

    it('unknown', 'what was asked of an unknown agent is no surprise', async () => {
      const nobody = randomBytes(6).toString('hex');
      await runtime.signal(nobody, 'TERM');
      await runtime.signal(nobody, 'KILL');
      await runtime.remove(nobody);
      const chunks: LogChunk[] = [];
      for await (const some of runtime.logs(nobody, start, never())) chunks.push(...some);
      expect(chunks).toEqual([]);
      await expect(release(nobody, 'true')).rejects.toThrow(OnejobError);
      await expect(runtime.getFiles(nobody, never())).rejects.toThrow(OnejobError);
    });

    it('ended-gate', 'a gate that has ended takes no script, and says that another may', async () => {
      const { agent, log } = await standby();
      await runtime.signal(agent, 'KILL');
      await events.exit(agent);
      await log.ended;
      await expect(release(agent, 'true')).rejects.toMatchObject({ code: 'E_GATE_ENDED', retry: true });
      await runtime.signal(agent, 'TERM');
    });

    it('manager-death', 'exit code and output can be read by a manager that was not there', async () => {
      const { agent, log } = await standby();
      await release(agent, 'echo alone; exit 21');
      const exit = await events.exit(agent);
      await log.ended;
      const later = await subject.remake();
      const seen = (await later.list(never())).find((one) => one.agent === agent);
      expect(seen?.state).toEqual({ kind: 'exited', exit });
      expect(exit).toEqual({ kind: 'code', code: 21 });
      const again = follow(later, agent);
      await again.ended;
      expect(again.text()).toBe(log.text());
    });

    it('adopt-standby', 'a standby can be released by a manager that did not make it', async () => {
      const { agent, log } = await standby();
      const later = await subject.remake();
      const seen = watch(later);
      await seen.connected();
      await later.release(agent, frame(agent, 'echo adopted; exit 22'), never());
      expect(await seen.exit(agent)).toEqual({ kind: 'code', code: 22 });
      await seen.stop();
      await log.ended;
      expect(log.text()).toContain('adopted\n');
    });

    it('fingerprint', 'a fingerprint follows the recipe', async () => {
      const { fingerprint } = await prepare();
      expect(await runtime.fingerprint(subject.recipe, never())).toBe(fingerprint);
      const other = { ...subject.recipe, env: { ...subject.recipe.env, OTHER: '1' } };
      expect(await runtime.fingerprint(other, never())).not.toBe(fingerprint);
    });

    it('aborted', 'following ends when it is told to, and a stopped preparation leaves nothing after remove', async () => {
      const { log } = await standby();
      log.stop();
      await log.ended;
      const spec = specOf(subject.recipe);
      made.push(spec.agent);
      const stop = new AbortController();
      const preparing = runtime.prepare(spec, quiet, stop.signal);
      stop.abort();
      await preparing.catch(quiet);
      await runtime.remove(spec.agent);
      expect((await runtime.list(never())).map((one) => one.agent)).not.toContain(spec.agent);
    });

    it('check', 'findings have no error, and the disk is known', async () => {
      expect((await runtime.check(never())).filter((finding) => finding.level === 'error')).toEqual([]);
      const disk = await runtime.disk(never());
      if (disk === null) return;
      expect(disk.free).toBeGreaterThan(0);
      expect(disk.free).toBeLessThan(1);
    });

    it('leftovers', 'once all is removed and swept, nothing of this owner is left', async () => {
      for (const agent of made) await runtime.remove(agent);
      await runtime.sweep(never());
      expect(await runtime.list(never())).toEqual([]);
      expect(await subject.leftovers()).toEqual([]);
    });
  });
}

function same(a: Buffer, b: Buffer): boolean {
  return a.equals(b);
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

async function aTar(long: string): Promise<Readable> {
  const files = pack();
  files.entry({ name: '.', type: 'directory', mode: 0o755 });
  files.entry({ name: './hello.txt', mode: 0o644, uid: 4711, gid: 4711 }, 'hello\n');
  files.entry({ name: './link', type: 'symlink', linkname: 'hello.txt' });
  files.entry({ name: './tool', mode: 0o755 }, '#!/bin/sh\necho tool ran\n');
  files.entry({ name: './empty', mode: 0o600 }, '');
  files.entry({ name: './deep', type: 'directory', mode: 0o755 });
  files.entry({ name: `./${long}`, mode: 0o644 }, 'deep\n');
  files.finalize();
  return Readable.from([await buffer(files)]);
}

async function untar(stream: Readable): Promise<Map<string, string>> {
  const files = new Map<string, string>();
  const reader = stream.pipe(extract());
  for await (const entry of reader) {
    const body = (await buffer(entry)).toString('latin1');
    const name = entry.header.name.replace(/\/$/, '');
    files.set(name, entry.header.type === 'symlink' ? `-> ${entry.header.linkname}` : body);
  }
  return files;
}
