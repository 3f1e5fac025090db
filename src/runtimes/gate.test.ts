import { spawn, spawnSync } from 'node:child_process';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { anyCharacter } from '../../test/support/any-character.ts';
import { exitNoDevice, exitNoScript, frame, gateScript, MarkerFilter, readyMarker, releasedMarker } from './gate.ts';

const agent = 'a1b2-c3';
const shells = [['dash'], ['bash'], ['busybox', 'sh']].filter(
  ([name]) => spawnSync('sh', ['-c', `command -v ${name}`]).status === 0,
);

interface Ended {
  readonly code: number | null;
  /** What the job printed: markers taken out. */
  readonly stdout: string;
  readonly state: string;
  readonly raw: Buffer;
}

/** Runs a gate and writes `input` to it, then ends its input. */
function pass(
  shell: string[],
  input: Uint8Array | Uint8Array[],
  devices: string[] = [],
  env: Record<string, string> = {},
): Promise<Ended> {
  const [file = 'sh', ...first] = shell;
  // bash reads ~/.bashrc when its input is a socket, as Node's pipes are: seconds each time, where somebody's is long.
  const surroundings = { PATH: process.env.PATH ?? '', HOME: '/nonexistent', ...env };
  const child = spawn(file, [...first, '-c', gateScript(agent, devices)], { env: surroundings });
  const chunks: Buffer[] = [];
  child.stdout.on('data', (chunk: Buffer) => chunks.push(chunk));
  child.stderr.resume();
  child.stdin.on('error', () => {});
  for (const part of Array.isArray(input) ? input : [input]) child.stdin.write(part);
  child.stdin.end();
  return new Promise((resolve) => {
    child.on('close', (code) => {
      const raw = Buffer.concat(chunks);
      const filter = new MarkerFilter(agent);
      const stdout = Buffer.from(filter.push(raw)).toString('latin1');
      resolve({ code, stdout, state: filter.state, raw });
    });
  });
}

const bytes = (text: string): Buffer => Buffer.from(text, 'utf8');
const joined = (...parts: Uint8Array[]): Buffer => Buffer.concat(parts);

describe.each(shells)('the gate on %s %s', (...shell) => {
  const shellArgs = shell.filter((word) => word !== undefined);

  test('becomes the script, with its exit code, and reads nothing as its input', async () => {
    const script = 'printf "%s\\n" "it\'s \\\\ $((6*7))" \'a"b\'; cat; for i in 1 2; do echo $i; done\necho "last"; exit 9';
    const ended = await pass(shellArgs, frame(agent, script));
    expect(ended).toMatchObject({ code: 9, state: 'released' });
    expect(ended.stdout).toBe('it\'s \\ 42\na"b\n1\n2\nlast\n');
  });

  test('keeps trailing newlines, tabs and bytes over 127', async () => {
    const value = 'tab\there  \u00e9\u4e2d\u{1f600}\n\n';
    const ended = await pass(shellArgs, frame(agent, `printf %s '${value}'`));
    expect(Buffer.from(ended.stdout, 'latin1').toString('utf8')).toBe(value);
  });

  test('counts the same length in a UTF-8 locale', async () => {
    const ended = await pass(shellArgs, frame(agent, "printf %s 'h\u00e9'"), [], { LC_ALL: 'C.UTF-8' });
    expect(Buffer.from(ended.stdout, 'latin1').toString('utf8')).toBe('h\u00e9');
  });

  test('exits 96 when its input ends without a script', async () => {
    expect(await pass(shellArgs, Buffer.alloc(0))).toMatchObject({ code: exitNoScript, state: 'ready', stdout: '' });
  });

  test('runs nothing when the sender dies at any byte, and once when a new sender starts over', async () => {
    const whole = frame(agent, `echo ran ${agent} end`);
    const cuts = Array.from({ length: whole.length - 1 }, (_, cut) => cut);
    const tried = async (cut: number): Promise<void> => {
      const torn = whole.subarray(0, cut);
      const [alone, again] = await Promise.all([pass(shellArgs, torn), pass(shellArgs, joined(torn, whole, whole))]);
      expect(alone, `alone, cut at ${cut}`).toMatchObject({ code: exitNoScript, stdout: '' });
      expect(again, `again, cut at ${cut}`).toMatchObject({ code: 0, stdout: `ran ${agent} end\n` });
    };
    // A shell that ends takes its time, not the processor's.
    for (let at = 0; at < cuts.length; at += 8) await Promise.all(cuts.slice(at, at + 8).map(tried));
  }, 120_000);

  test('ignores frames of two senders that are mixed, and takes the next whole one', async () => {
    const one = frame(agent, 'echo one');
    const two = frame(agent, 'echo second');
    const mixed = joined(one.subarray(0, 14), two.subarray(0, 20), one.subarray(14), two.subarray(20));
    expect((await pass(shellArgs, joined(mixed, one))).stdout).toBe('one\n');
  });

  test('ignores a frame for another agent, and noise', async () => {
    const noise = Buffer.from([0xff, 0x80, 10, 0x1e, 92, 10, 39, 34, 10]);
    expect((await pass(shellArgs, joined(frame('other-1', 'echo wrong'), noise, frame(agent, 'echo right')))).stdout).toBe(
      'right\n',
    );
  });

  test('takes a script of 1 MiB', async () => {
    const data = 'x'.repeat(1024 * 1024 - 100);
    const ended = await pass(shellArgs, frame(agent, `d='${data}'; echo \${#d}`));
    expect(ended.stdout).toBe(`${data.length}\n`);
  });

  test('shows nothing of the script in argv or environment', async () => {
    const ended = await pass(
      shellArgs,
      frame(agent, "s=hush-secret; tr '\\0' ' ' </proc/$$/cmdline; tr '\\0' ' ' </proc/$$/environ; echo; : $s"),
    );
    expect(ended.code).toBe(0);
    expect(ended.stdout).not.toContain('hush-secret');
  });

  test('leaves none of its own variables to the script', async () => {
    expect((await pass(shellArgs, frame(agent, 'echo "${_oj_l-unset} ${_oj_n-unset}"'))).stdout).toBe('unset unset\n');
  });

  test('exits 97 without running the script when a device cannot be opened', async () => {
    const ended = await pass(shellArgs, frame(agent, 'echo ran'), ['/dev/null', "/dev/not'there"]);
    expect(ended).toMatchObject({ code: exitNoDevice, state: 'ready', stdout: '' });
    expect((await pass(shellArgs, frame(agent, 'echo ran'), ['/dev/null'])).stdout).toBe('ran\n');
  });

  test('lets the script replace itself, so that signals reach the job directly', async () => {
    expect((await pass(shellArgs, frame(agent, "exec sh -c 'exit 7'"))).code).toBe(7);
    expect((await pass(shellArgs, frame(agent, 'exec no-such-command'))).code).toBe(127);
  });
});

describe('frame', () => {
  test('is printable ASCII on one line, whatever the script', () => {
    fc.assert(
      fc.property(fc.string({ unit: anyCharacter }), (script) => {
        fc.pre(!script.includes('\0'));
        expect(Buffer.from(frame(agent, script)).toString('latin1')).toMatch(/^\n[ -~]+\n$/);
      }),
    );
  });

  test('carries any script through a shell', async () => {
    const shell = shells[0] ?? ['sh'];
    await fc.assert(
      fc.asyncProperty(fc.string({ unit: anyCharacter, maxLength: 200 }), async (text) => {
        const value = text.replaceAll('\0', '').replaceAll("'", '"');
        const ended = await pass(shell, frame(agent, `printf %s '${value}'`));
        expect(Buffer.from(ended.stdout, 'latin1').equals(bytes(value))).toBe(true);
      }),
      { numRuns: 50 },
    );
  });

  test('refuses a NUL byte, which no shell could carry', () => {
    expect(() => frame(agent, 'a\0b')).toThrow(RangeError);
  });

  test('refuses an agent id that a shell pattern would read otherwise', () => {
    expect(() => gateScript('a*')).toThrow(RangeError);
  });
});

describe('MarkerFilter', () => {
  const stream = bytes(`${readyMarker(agent)}\n${releasedMarker(agent)}\n\u001eonejob released ${agent}\nout\u0000put`);

  test('gives the same result wherever the bytes are cut, and never a marker of the gate', () => {
    for (let cut = 0; cut <= stream.length; cut++) {
      const filter = new MarkerFilter(agent);
      const kept = joined(filter.push(stream.subarray(0, cut)), filter.push(stream.subarray(cut)));
      expect(kept.toString()).toBe(`\u001eonejob released ${agent}\nout\u0000put`);
      expect(filter.state).toBe('released');
    }
  });

  test('drops what an image prints before the gate starts, however long', () => {
    const filter = new MarkerFilter(agent);
    expect(filter.push(Buffer.alloc(1_000_000, 'x'))).toHaveLength(0);
    filter.push(bytes(`\n${readyMarker(agent)}\n`));
    expect(filter.state).toBe('ready');
    expect(Buffer.from(filter.push(bytes(`${releasedMarker(agent)}\nhello`))).toString()).toBe('hello');
  });

  test('accepts no released marker before ready, and none of another agent', () => {
    const filter = new MarkerFilter(agent);
    filter.push(bytes(`${releasedMarker(agent)}\n${readyMarker('other')}\n`));
    expect(filter.state).toBe('silent');
  });
});
