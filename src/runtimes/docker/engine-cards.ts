/**
 * The cards of an agent with an engine of its own. The container of the engine gets them from the host's Engine as every sandbox does, and
 * they are the most that anything in it can reach. What is here hands them on: to the sandbox by a specification (CDI) that Podman
 * reads, and to containers of the job by the same one and by the hook that Docker Engine calls for `--gpus`.
 *
 * https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md; moby, `daemon/nvidia_linux.go` (the hook)
 */
import type { LeasedDevice } from '../../ports/runtime.ts';
import { type MigMinors, nodesOf } from '../devices.ts';

/** Where the container has, for each name of a card, a file with what belongs to it. */
export const cardsFolder = '/var/lib/cards';

/** What a Docker Engine of a job with cards is configured with. Its own /etc has links, which CDI does not follow. */
export const cardsConfig = `${cardsFolder}/config/daemon.json`;

/** Cards as `handOnCards` takes them: `UUID=NODE,…`, in the order of the lease. */
export function cardWords(devices: readonly LeasedDevice[], minors: MigMinors | null): string[] {
  const nvidia = devices.filter(({ vendor }) => vendor === 'nvidia');
  return nvidia.map((device) => {
    const own = nodesOf([device], minors).needed.filter((name) => name !== 'nvidiactl');
    return `${device.uuid}=${own.join(',')}`;
  });
}

/**
 * What a Docker Engine calls before it starts a container with `--gpus`, with the container's state on standard input. Names are those of
 * the lease: `all`, the UUID of a card, or its place among the cards of this agent.
 */
const hook = String.raw`#!/bin/sh
set -eu
state=$(cat)
of() { printf %s "$state" | sed 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/'; }
config=$(of bundle)/config.json
asked=$(grep -o '"NVIDIA_VISIBLE_DEVICES=[^"]*"' "$config" | tail -n 1 | sed 's/^[^=]*=//; s/"$//' | tr , ' ')
root=$(grep -o '"root":{"path":"[^"]*"' "$config" | sed 's/.*:"//; s/"$//')
cd ${cardsFolder}
for name in $asked; do
  [ "$name" != void ] && [ "$name" != none ] || exit 0
  [ -f "$name" ] || { echo "this job has no card $name, but these: $(ls -p | grep -v / | tr '\n' ' ')" >&2; exit 1; }
done
cat $asked | sort -u | nsenter -t "$(of pid)" -m sh -euc 'while read -r from to; do
  mkdir -p "$(dirname "$1$to")"
  [ -e "$1$to" ] || : >"$1$to"
  mount --bind "$from" "$1$to"
done' - "$root"
`;

/**
 * Perl. `hand_on(CARDS)` writes all of this, as root of the container. Files that NVIDIA's tools have mounted, the driver's libraries
 * and programs, go along with every card, under each name that the container's own linker has made for them.
 */
export const handOnCards = String.raw`
sub write_file {
  my ($path, $mode, @text) = @_;
  (my $folder = $path) =~ s{/[^/]*$}{};
  my $at = '';
  for (split m{/}, substr $folder, 1) { $at .= "/$_"; mkdir $at, 0755 }
  open my $file, '>', $path or die "$path: $!\n";
  print($file @text) && close($file) && chmod($mode, $path) or die "$path: $!\n";
}
sub hand_on {
  my @cards = map { [split /[=,]/] } @_;
  my %mounted;
  open(my $mounts, '<', '/proc/self/mountinfo') or die "mountinfo: $!\n";
  for (<$mounts>) { $mounted{(split ' ')[4]} = 1 }
  # Only what was made for this container: another node is the host's own, with the permissions that its owner gave it.
  chmod 0666, grep { -c $_ && !$mounted{$_} } glob '/dev/nvidia* /dev/nvidia-caps/* /dev/dri/* /dev/kfd';
  return if !@cards;
  my @common = grep { -c $_ } map { "/dev/$_" } qw(nvidiactl nvidia-uvm nvidia-uvm-tools nvidia-modeset);
  my @files = grep { -f $_ && m{^/(usr/|lib|etc/(?!host|resolv))[\w./+:\@-]+$} && !m{/docker-init$} } sort keys %mounted;
  my %real = map { (Cwd::abs_path($_), $_) } @files;
  my %folders = map { (m{^(.*)/}, 1) } grep { /\.so/ } @files;
  my @links = grep { -l $_ && $real{Cwd::abs_path($_) // ''} } map { glob "$_/*.so*" } sort keys %folders;
  my @binds = ((map { "$_ $_" } @files), map { $real{Cwd::abs_path $_} . " $_" } @links);
  my $nodes = sub { join ',', map { qq({"path":"$_"}) } @_ };
  my (@devices, @all);
  my $add = sub {
    my ($name, @own) = @_;
    write_file("${cardsFolder}/$name", 0644, map { "$_\n" } (map { "$_ $_" } @common, @own), @binds);
    push @devices, qq({"name":"$name","containerEdits":{"deviceNodes":[) . $nodes->(@own) . ']}}';
  };
  for my $at (0 .. $#cards) {
    my ($uuid, @own) = @{$cards[$at]};
    @own = map { "/dev/$_" } @own;
    push @all, @own;
    $add->($_, @own) for $uuid, $at;
  }
  my %seen;
  $add->('all', grep { !$seen{$_}++ } @all);
  my $shared = join ',', map { my ($from, $to) = split ' '; qq({"hostPath":"$from","containerPath":"$to","options":["ro","nosuid","nodev","bind"]}) } @binds;
  my $spec = '{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[' . join(',', @devices) . '],"containerEdits":{"deviceNodes":['
    . $nodes->(@common) . '],"mounts":[' . $shared . "]}}\n";
  write_file($_, 0644, $spec) for '/etc/cdi/nvidia.json', '${cardsFolder}/config/nvidia.json';
  write_file('${cardsConfig}', 0644, qq({"features":{"cdi":true},"cdi-spec-dirs":["${cardsFolder}/config"]}\n));
  write_file('/usr/bin/nvidia-container-runtime-hook', 0755, <<'HOOK');
${hook}HOOK
}
`;
