/** What probe pods run: they listen, and connect to each other, with the first tool that is there, for both families of addresses. */

export const probePort = 18_080;
/** s in which a connection is there, or is taken to be kept back. */
const connectsWithin = 2;
/** Exit code of a script that has no tool. */
export const toolless = 93;

interface Tool {
  readonly has: string;
  readonly listen: string;
  /** To the address in `$1`. */
  readonly connect: string;
}

const tools: Readonly<Record<'perl' | 'python3' | 'nc', Tool>> = {
  perl: {
    has: 'perl -MIO::Socket::IP -e 1 2>/dev/null',
    listen: `exec perl -MIO::Socket::IP -e '
my %o = (LocalPort => ${probePort}, Listen => 16, ReuseAddr => 1);
my $s = IO::Socket::IP->new(LocalHost => "::", V6Only => 0, %o) || IO::Socket::IP->new(LocalHost => "0.0.0.0", %o) or die $@;
while (1) { my $c = $s->accept or next; close $c }'`,
    connect: `exec perl -MIO::Socket::IP -e 'exit !IO::Socket::IP->new(PeerHost => $ARGV[0], PeerPort => ${probePort}, Timeout => ${connectsWithin})' "$1"`,
  },
  python3: {
    has: 'python3 -c "import socket" 2>/dev/null',
    listen: `exec python3 -c '
import socket
try:
    s = socket.socket(socket.AF_INET6)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind(("::", ${probePort}))
except OSError:
    s = socket.socket()
    s.bind(("", ${probePort}))
s.listen(16)
while True:
    s.accept()[0].close()'`,
    connect: `exec python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], ${probePort}), ${connectsWithin})' "$1" 2>/dev/null`,
  },
  nc: {
    has: 'command -v nc >/dev/null',
    // Some serve one connection only.
    listen: `while :; do nc -l -p ${probePort} </dev/null >/dev/null || sleep 0.1; done`,
    connect: `exec nc -w ${connectsWithin} "$1" ${probePort} </dev/null >/dev/null 2>&1`,
  },
};

/** A script that listens, or that connects to the address in `$1`, with the first tool that is there: 0 if that worked, 1 if not. */
export function probeScript(does: 'listen' | 'connect'): string {
  return [...Object.values(tools).map((tool) => `if ${tool.has}; then\n${tool[does]}\nfi`), `exit ${toolless}`].join('\n');
}
