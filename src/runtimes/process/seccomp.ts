/**
 * The system calls that a job on the process runtime may not make, as a seccomp filter (seccomp(2), classic BPF).
 *
 * The list is the inverse of Docker's default profile (moby/profiles, seccomp 0.2.3) for a container without capabilities: the
 * calls that the kernel knows and that profile does not allow. Among them are the kernel's keyring, mounts and namespaces, bpf,
 * io_uring, perf_event_open, userfaultfd, modules, kexec, and NUMA policies. ptrace is allowed, as in Docker.
 */

/** The calls of one architecture. On x86-64 there is a second one for 32-bit programs, with other numbers. */
interface Calls {
  /** AUDIT_ARCH_… of linux/audit.h. */
  readonly audit: number;
  readonly clone: number;
  readonly personality: number;
  readonly socket: number;
  /** Denied numbers, and ranges of them. Numbers above 424 are the same everywhere. */
  readonly denied: string;
}

const common = '425-433 438 440 442-443 450 459-461';
const calls: Readonly<Record<string, readonly Calls[]>> = {
  x64: [
    {
      audit: 0xc000003e,
      clone: 56,
      personality: 135,
      socket: 41,
      denied: `103 134 136 139 153 155-156 161 163-185 212 227 236-239 246 248-250 256 272 279 298 300 304 308 312-313 320-321 323 ${common}`,
    },
    {
      audit: 0x40000003,
      clone: 120,
      personality: 136,
      socket: 359,
      denied: `17-18 21-22 25 28 31-32 34-35 44 48 51-53 56 58-59 61-62 67-69 72-74 79 84 86-89 98 101 103 109-113 115 121 127-131 134-135 137 149 166-167 169 188-189 217 253 264 273-276 283 286-288 294 310 317 336 338 342 346 349-350 357 374 384 404 ${common}`,
    },
  ],
  arm64: [
    {
      audit: 0xc00000b7,
      clone: 220,
      personality: 92,
      socket: 198,
      denied: `18 39-42 51 58 60 89 97 104-106 112 116 142 161-162 170 217-219 224-225 235-239 241 262 265 268 272-273 280 282 294 ${common}`,
    },
  ],
};

/** The same number on every architecture. */
const clone3 = 435;
/** removexattrat, the last call that the profile knows. Newer ones look unknown, as on an older kernel. */
const newest = 466;
/** CLONE_NEWNS, _NEWCGROUP, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID and _NEWNET. */
const namespaces = 0x7e020000;
/** PER_LINUX, PER_LINUX32, UNAME26, both of these, and the query for the current one. */
const personalities = [0, 0x8, 0x20000, 0x20008, 0xffffffff];
/**
 * AF_ALG, which uses kernel keys by number, and AF_VSOCK, which reaches the host of a virtual machine. Only socket(2) denies
 * them: socketcall(2) of 32-bit x86 has the family in memory, where a filter cannot look. It is still allowed, because the glibc
 * of Debian and Ubuntu for i386 creates its sockets only with it: Docker denied it in 29.4.2, and no longer does
 * (moby/moby#52506, #52547).
 */
const families = [38, 40];

// linux/filter.h and linux/seccomp.h
const [load, jumpEqual, jumpAbove, jumpAtLeast, jumpAnyBit, answer] = [0x20, 0x15, 0x25, 0x35, 0x45, 0x06];
const [allow, deny, missing] = [0x7fff0000, 0x00050001, 0x00050026];
/** Offsets in struct seccomp_data: the number of the call, its architecture, and the low half of its first argument. */
const at = { number: 0, architecture: 4, argument: 16 };

/** Arguments of the perl program: the numbers of keyctl and prctl, the filter's file, and the command to become. */
const perl = [
  'my ($keyctl, $prctl, $file) = splice @ARGV, 0, 3;',
  'open F, "<:raw", $file or die "$file: $!\\n"; local $/; my $filter = <F>; close F;',
  // KEYCTL_JOIN_SESSION_KEYRING, a new one without a name. A kernel without keyrings has none to share.
  'syscall $keyctl + 0, 1, 0;',
  // PR_SET_NO_NEW_PRIVS, and PR_SET_SECCOMP with SECCOMP_MODE_FILTER and a struct sock_fprog.
  'syscall($prctl + 0, 38, 1, 0, 0, 0) == 0 && syscall($prctl + 0, 22, 2, pack("S x6 P", length($filter) / 8, $filter)) == 0',
  '  or die "seccomp: $!\\n";',
  'exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\\n";',
].join(' ');
const loaderCalls: Readonly<Record<string, { keyctl: number; prctl: number }>> = {
  x64: { keyctl: 250, prctl: 157 },
  arm64: { keyctl: 219, prctl: 167 },
};

/**
 * Puts a command under the filter in `file` and into its own session keyring if bubblewrap does not: perl, which every Debian and
 * Ubuntu has. setpriv can do it only since util-linux 2.41. Empty for an unknown processor.
 */
export function filterLoader(arch: string, file: string): readonly string[] {
  const numbers = loaderCalls[arch];
  return numbers === undefined ? [] : ['perl', '-e', perl, `${numbers.keyctl}`, `${numbers.prctl}`, file];
}

/** One instruction: struct sock_filter. */
type Step = readonly [code: number, value: number, jumpIfTrue?: number, jumpIfFalse?: number];

/** The filter for a processor as Node names it (`process.arch`); null if its calls are unknown. Little-endian, as both are. */
export function seccompFilter(arch: string): Uint8Array | null {
  const known = calls[arch];
  if (known === undefined) return null;
  // A program for another processor is denied everything, and so does not start.
  const steps: readonly Step[] = [[load, at.architecture], ...known.flatMap(filterOf), [answer, deny]];
  const bytes = Buffer.alloc(steps.length * 8);
  for (const [n, [code, value, jumpIfTrue = 0, jumpIfFalse = 0]] of steps.entries()) {
    bytes.writeUInt16LE(code, n * 8);
    bytes.writeUInt8(jumpIfTrue, n * 8 + 2);
    bytes.writeUInt8(jumpIfFalse, n * 8 + 3);
    bytes.writeUInt32LE(value, n * 8 + 4);
  }
  return bytes;
}

function filterOf({ audit, clone, personality, socket, denied }: Calls): readonly Step[] {
  const argument: Step = [load, at.argument];
  return when(jumpEqual, audit, [
    [load, at.number],
    ...when(jumpAbove, newest, [[answer, missing]]),
    // Its flags are in memory, where a filter cannot look. Programs fall back to clone.
    ...when(jumpEqual, clone3, [[answer, missing]]),
    ...when(jumpEqual, clone, [argument, ...when(jumpAnyBit, namespaces, [[answer, deny]]), [answer, allow]]),
    ...when(jumpEqual, personality, [
      argument,
      ...personalities.flatMap((each) => when(jumpEqual, each, [[answer, allow]])),
      [answer, deny],
    ]),
    ...when(jumpEqual, socket, [argument, ...families.flatMap((each) => when(jumpEqual, each, [[answer, deny]])), [answer, allow]]),
    ...denied.split(' ').flatMap((range): readonly Step[] => {
      const [first = 0, last = first] = range.split('-').map(Number);
      return [
        [jumpAtLeast, first, 0, 2],
        [jumpAbove, last, 1, 0],
        [answer, deny],
      ];
    }),
    [answer, allow],
  ]);
}

/** `then` if the test holds, else the steps after it. */
function when(test: number, value: number, then: readonly Step[]): readonly Step[] {
  return [[test, value, 0, then.length], ...then];
}
