import { describe, expect, test } from 'vitest';
import { seccompFilter } from './seccomp.ts';

/** What the kernel answers to a call: the interpreter of classic BPF that a filter is run by. */
function answer(arch: string, call: { audit: number; number: number; argument?: number }): 'allow' | 'EPERM' | 'ENOSYS' {
  const program = Buffer.from(seccompFilter(arch) ?? []);
  const data: Readonly<Record<number, number>> = { 0: call.number, 4: call.audit, 16: call.argument ?? 0 };
  let value = 0;
  for (let at = 0; at < program.length; at += 8) {
    const [code, yes, no, k] = [program.readUInt16LE(at), program[at + 2] ?? 0, program[at + 3] ?? 0, program.readUInt32LE(at + 4)];
    const jump = (holds: boolean) => {
      at += 8 * (holds ? yes : no);
    };
    if (code === 0x20) value = data[k] ?? Number.NaN;
    else if (code === 0x15) jump(value === k);
    else if (code === 0x25) jump(value > k);
    else if (code === 0x35) jump(value >= k);
    else if (code === 0x45) jump((value & k) !== 0);
    else if (code === 0x06) return k === 0x7fff0000 ? 'allow' : k === 0x50001 ? 'EPERM' : k === 0x50026 ? 'ENOSYS' : fail();
    else fail();
  }
  return fail();
}

function fail(): never {
  throw new Error('no program that the kernel would take');
}

/** Numbers by name, of asm/unistd_64.h, unistd_32.h and asm-generic/unistd.h. */
const machines = {
  'x86-64': [
    'x64',
    0xc000003e,
    {
      read: 0,
      execve: 59,
      fork: 57,
      ptrace: 101,
      setresuid: 117,
      capset: 126,
      setgroups: 116,
      seccomp: 317,
      uretprobe: 335,
      clone: 56,
      socket: 41,
      personality: 135,
      keyctl: 250,
      add_key: 248,
      request_key: 249,
      mount: 165,
      umount2: 166,
      unshare: 272,
      setns: 308,
      bpf: 321,
      perf_event_open: 298,
      kexec_load: 246,
      init_module: 175,
      finit_module: 313,
      userfaultfd: 323,
      open_by_handle_at: 304,
    },
  ],
  '32-bit x86': [
    'x64',
    0x40000003,
    {
      read: 3,
      execve: 11,
      fork: 2,
      ptrace: 26,
      setresuid: 208,
      capset: 185,
      setgroups: 206,
      seccomp: 354,
      clone: 120,
      socket: 359,
      personality: 136,
      keyctl: 288,
      add_key: 286,
      request_key: 287,
      mount: 21,
      umount2: 52,
      unshare: 310,
      setns: 346,
      bpf: 357,
      perf_event_open: 336,
      kexec_load: 283,
      init_module: 128,
      finit_module: 350,
      userfaultfd: 374,
      open_by_handle_at: 342,
    },
  ],
  arm64: [
    'arm64',
    0xc00000b7,
    {
      read: 63,
      execve: 221,
      ptrace: 117,
      setresuid: 147,
      capset: 91,
      setgroups: 159,
      seccomp: 277,
      clone: 220,
      socket: 198,
      personality: 92,
      keyctl: 219,
      add_key: 217,
      request_key: 218,
      mount: 40,
      umount2: 39,
      unshare: 97,
      setns: 268,
      bpf: 280,
      perf_event_open: 241,
      kexec_load: 104,
      init_module: 105,
      finit_module: 273,
      userfaultfd: 282,
      open_by_handle_at: 265,
    },
  ],
} as const;
const harmless = ['read', 'execve', 'fork', 'ptrace', 'setresuid', 'capset', 'setgroups', 'seccomp', 'uretprobe'];
const same = { io_uring_setup: 425, open_tree: 428, fsopen: 430, pidfd_getfd: 438, mount_setattr: 442 };

describe.each(Object.entries(machines))('the filter on %s', (_name, [arch, audit, numbers]) => {
  const say = (number: number, argument = 0) => answer(arch, { audit, number, argument });
  const { clone, socket, personality, ...plain } = numbers;

  test.each(Object.entries({ ...plain, ...same }))('answers to %s', (name, number) => {
    expect(say(number)).toBe(harmless.includes(name) ? 'allow' : 'EPERM');
  });

  test('lets clone create threads and processes, but no namespace', () => {
    expect(say(clone, 0x3d0f00)).toBe('allow');
    expect(say(clone, 0x11)).toBe('allow');
    for (const flag of [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
      expect(say(clone, 0x11 | flag)).toBe('EPERM');
  });

  test('reports clone3 and unknown calls as not implemented', () => {
    for (const number of [435, 467, 600, 0x40000000, 0xffffffff]) expect(say(number)).toBe('ENOSYS');
    expect(say(466)).toBe('allow');
  });

  test('allows sockets of any family but AF_ALG and AF_VSOCK', () => {
    expect([1, 2, 10, 16, 17, 38, 39, 40, 44].filter((family) => say(socket, family) !== 'allow')).toEqual([38, 40]);
  });

  test('lets a program query its personality, but not weaken it', () => {
    expect([0, 8, 0x20000, 0xffffffff, 0x0040000, 0x400000].map((one) => say(personality, one))).toEqual([
      'allow',
      'allow',
      'allow',
      'allow',
      'EPERM',
      'EPERM',
    ]);
  });

  test('denies everything to programs of another processor', () => {
    expect(answer(arch, { audit: 0x40000028, number: 3 })).toBe('EPERM');
  });
});

test('lets 32-bit programs create sockets with socketcall, as the glibc of Debian and Ubuntu does', () => {
  expect(answer('x64', { audit: 0x40000003, number: 102, argument: 1 })).toBe('allow');
});

test('a processor with unknown calls has no filter', () => {
  expect(seccompFilter('riscv64')).toBe(null);
});
