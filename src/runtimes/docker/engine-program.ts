/**
 * The first program in the container of an agent's engine, in Perl, which every Debian has. As root it makes two sockets that nobody
 * else can replace. Podman, which makes the sandbox, answers on one, which only the manager can open. For the other it starts a rootless Docker Engine at the first
 * connection, so that jobs without containers pay nothing. The container ends with Podman.
 *
 * Its arguments are the agent, by which the host knows it, and the nodes of its devices.
 */
import { cardsConfig } from './cards-inside.ts';

/** Names inside of the container; the image and the program have the same. */
export const inEngine = {
  /** Where this host mounts a folder for the socket of Podman. */
  folder: '/run/onejob',
  api: 'api.sock',
  /** Output of the sandbox, next to the socket. */
  log: 'log',
  /** How the sandbox has ended, next to it. */
  exit: 'exit',
  /** What jobs know as `/var/run/docker.sock`. */
  docker: '/run/docker.sock',
  /** There once the users of the container have ids of their own. */
  mapped: '/run/mapped',
  storage: '/var/lib/engine',
  images: '/var/lib/images',
  /** Images that jobs have from the start, if their pool names some. */
  ready: '/var/lib/ready',
  /** Programs of a Docker Engine that limits single containers. */
  limiting: '/usr/local/lib/onejob',
} as const;

/**
 * A user of the image, which runs the engines in a container. `first`: its id on the host, which is user 0 inside; all others follow. That
 * of the image owns what agents share; an agent has another one (`own-ids.ts`) where this host allows it.
 */
export interface EngineUser {
  readonly name: string;
  readonly first: number;
}

/** The kernel gives each of its users so much of some things (inotify instances, keys). Untrusted jobs must not use up what others need. */
export const engineUsers = {
  trusted: { name: 'engine', first: 1_879_048_192 },
  untrusted: { name: 'untrusted', first: 1_879_179_264 },
} as const satisfies Record<string, EngineUser>;

/**
 * Runs in the namespaces of the Docker Engine. runc wants to see control groups, and the host's are not in the container, so it gets
 * those of its own namespace: the container's group and nothing above. Where that is the user's to divide (`engine-group.ts`), this
 * Engine must not know that it is rootless, since it would limit nothing without systemd; the image has what such a one lacks. It
 * begins with the images that are ready, see `image-store.ts`.
 */
const dockerStart = `
rm -f /run/docker /run/containerd /run/xtables.lock;
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup;
while IFS=: read -r _ kind _; do
[ "$kind" ] && mkdir "/sys/fs/cgroup/\${kind#name=}" && mount -t cgroup -o "$kind" cgroup "/sys/fs/cgroup/\${kind#name=}";
done </proc/self/cgroup;
[ "$(ls /sys/fs/cgroup)" ] || mount -t cgroup2 cgroup2 /sys/fs/cgroup;
[ ! -w /sys/fs/cgroup/cgroup.procs ] || [ ! -x ${inEngine.limiting}/runc ] || {
cd /sys/fs/cgroup; mkdir -p own;
for try in 1 2 3 4 5; do
while read -r one; do echo "$one" >own/cgroup.procs; done <cgroup.procs 2>/dev/null;
sed "s/^/+/; s/ / +/g" cgroup.controllers >cgroup.subtree_control 2>/dev/null && break;
done; cd /;
unset ROOTLESSKIT_STATE_DIR; MIRRORS="$MIRRORS --exec-opt native.cgroupdriver=cgroupfs --userland-proxy-path ${inEngine.limiting}/publish --add-runtime limiting=${inEngine.limiting}/runc --default-runtime limiting"; };
[ -d ${inEngine.storage}/docker ] || [ ! -d ${inEngine.ready}/seed ] || {
rm -rf ${inEngine.storage}/new; cp -a ${inEngine.ready}/seed ${inEngine.storage}/new && mv ${inEngine.storage}/new ${inEngine.storage}/docker || exit 1; };
exec 3<&9 9<&-; export LISTEN_PID=$$;
set --; [ ! -e ${cardsConfig} ] || set -- --config-file ${cardsConfig};
exec dockerd "$@" -H fd:// --log-level warn --data-root ${inEngine.storage}/docker --exec-root $XDG_RUNTIME_DIR/docker --pidfile $XDG_RUNTIME_DIR/docker.pid $MIRRORS
`.trim();

/** In the program's words: `Socket` hands over a socket as systemd does, as descriptor 3. rootlesskit uses that one itself. */
export const engineProgram = String.raw`
use strict; use warnings; use POSIX (); use Socket;
my ($mirrors, $user, $first) = @ENV{qw(MIRRORS ENGINE_USER ENGINE_FIRST)};
# Docker makes a volume that somebody has removed anew, and empty.
die "somebody has removed the volume with the images of its pool\n" if -d '${inEngine.ready}' && !-e '${inEngine.ready}/complete';
my (undef, undef, $uid, $gid, undef, undef, undef, $home) = getpwnam $user or die "the image has no user for the engine\n";
# The manager gives it ids of its own from outside ("own-ids.ts").
select undef, undef, undef, 0.005 until $uid == $first || -e '${inEngine.mapped}';
$uid = $gid = $first;
sub listening {
  my ($path, $owner, $mask) = @_;
  socket(my $socket, AF_UNIX, SOCK_STREAM, 0) or die "socket: $!\n";
  local $> = $owner;
  umask $mask;
  # Under its name it answers from the first moment.
  unlink "$path.new";
  bind($socket, pack_sockaddr_un("$path.new")) && listen($socket, 128) && rename("$path.new", $path) or die "$path: $!\n";
  return $socket;
}
sub start {
  my ($socket, @command) = @_;
  my $pid = fork // die "fork: $!\n";
  return $pid if $pid;
  umask 022;
  $) = "$gid $gid";
  POSIX::setgid($gid);
  POSIX::setuid($uid);
  die "still root\n" if $< != $uid || $> != $uid || POSIX::setuid(0);
  POSIX::dup2(fileno $socket, $_) // die "dup2: $!\n" for 3, 9;
  %ENV = (HOME => $home, PATH => '/usr/sbin:/usr/bin:/sbin:/bin', XDG_RUNTIME_DIR => "/run/$user", LISTEN_FDS => 1, LISTEN_PID => $$,
    PODMAN_IGNORE_CGROUPSV1_WARNING => 1, MIRRORS => $mirrors);
  exec @command or POSIX::_exit(127);
}
my @docker = ('rootlesskit', "--state-dir=/run/$user/rootlesskit", qw(--net=slirp4netns --mtu=65520 --slirp4netns-sandbox=auto
  --slirp4netns-seccomp=auto --disable-host-loopback --port-driver=builtin --copy-up=/etc --copy-up=/run --cgroupns sh -c),
  '${dockerStart.replaceAll('\n', ' ')}');
my (undef, @nodes) = @ARGV;
chmod 0666, '/dev/net/tun', @nodes;
open(my $mounts, '<', '/proc/self/mountinfo') or die "mountinfo: $!\n";
for (<$mounts>) {
  die "something of this host has mounted $1 there, and with that the kernel lets no engine start containers\n" if (split)[4] =~ m{^(/proc/.+)};
}
my $owner = (stat '${inEngine.folder}')[4] // die "${inEngine.folder}: $!\n";
my $asked = listening('${inEngine.docker}', 0, 0);
my $podman = start(listening('${inEngine.folder}/${inEngine.api}', $owner, 077), qw(podman system service --time=0));
my $docker = 0;
$SIG{CHLD} = sub {};
for (;;) {
  while ((my $gone = waitpid -1, POSIX::WNOHANG()) > 0) {
    exit 1 if $gone == $podman;
    next if $gone != $docker;
    $docker = 0;
    # Who waits for an answer gets none, so that an engine that cannot start is not started again and again.
    for (;;) {
      vec(my $waiting = '', fileno $asked, 1) = 1;
      last if select($waiting, undef, undef, 0) <= 0;
      accept(my $refused, $asked);
    }
  }
  my $set = '';
  vec($set, fileno $asked, 1) = 1 if !$docker;
  $docker = start($asked, @docker) if select($set, undef, undef, undef) > 0;
}
`;
