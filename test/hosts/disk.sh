#!/usr/bin/env bash
# disk.sh OUT ENGINES: makes a folder OUT with the disk of a Debian 13 that has systemd, Podman, Debian's Docker Engine and those of the
# folder ENGINES, a key that opens it over ssh, and the image that jobs run in by default. As root, in a mount namespace of its own.
set -euo pipefail
out=${1:?OUT} engines=${2:?ENGINES} suite=trixie
work=$(mktemp -d "${TMPDIR:-/tmp}/onejob-disk.XXXXXX")
root=$work/root
mounts=''
trap '[ -z "$mounts" ] || umount $mounts; rm -rf --one-file-system "$work"' EXIT
said() { "$@" >"$work/log" 2>&1 || { tail -n 20 "$work/log"; echo "This failed: $*"; exit 1; }; }
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | head -n 1)
said debootstrap --variant=minbase "$suite" "$root" "$mirror"
mkdir -p "$out"
tar -C "$root" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' -cf "$out/image.tar" .

# apt installs the rest, since debootstrap minds no alternatives. Nothing is to start in a folder.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
mount -t proc proc "$root/proc"
mounts=$root/proc
said inside apt-get update
said inside apt-get install -y --no-install-recommends systemd systemd-sysv dbus udev kmod iproute2 openssh-server ca-certificates \
  docker.io docker-cli iptables nftables apparmor procps bubblewrap libpam-systemd dbus-user-session \
  podman crun netavark aardvark-dns passt catatonit busybox-static openssl git
rm -rf "$root/usr/sbin/policy-rc.d" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,locale,man}/*

# Each Engine as the files that differ. Before the first start of any service, /mnt/setup may choose another one than the newest.
cp -r "$engines" "$root/usr/lib/engines"
for name in usr/sbin/dockerd usr/sbin/docker-proxy usr/bin/containerd usr/bin/containerd-shim-runc-v2 usr/sbin/runc; do
  install -D "$root/$name" "$root/usr/lib/engines/26/$name"
done
cp -rlf "$root/usr/lib/engines/29/." "$root/"
cat >"$root/etc/systemd/system/setup.service" <<'UNIT'
[Unit]
DefaultDependencies=no
RequiresMountsFor=/ /mnt
After=systemd-remount-fs.service systemd-tmpfiles-setup.service
Before=sysinit.target systemd-sysctl.service docker.service docker.socket containerd.service podman.socket
ConditionPathExists=/mnt/setup
ConditionPathExists=!/var/lib/setup-done
[Service]
Type=oneshot
ExecStart=/bin/sh -ec '. /mnt/setup; touch /var/lib/setup-done; sync'
[Install]
WantedBy=sysinit.target
UNIT
# One or the other, which systemd asks only when it comes to it.
for unit in docker.service docker.socket containerd.service podman.socket; do
  mkdir "$root/etc/systemd/system/$unit.d"
  case $unit in podman*) only='' ;; *) only='!' ;; esac
  printf '[Unit]\nConditionPathExists=%s/etc/only-podman\n' "$only" >"$root/etc/systemd/system/$unit.d/here.conf"
done

# boot.sh has the other end of the wire.
printf '[Match]\nName=vec*\n[Network]\nAddress=10.0.2.15/24\n' >"$root/etc/systemd/network/wire.network"
printf '127.0.0.1 localhost onejob-host\n' >"$root/etc/hosts"
echo onejob-host >"$root/etc/hostname"
: >"$root/etc/resolv.conf"
printf '/dev/ubda / ext4 defaults 0 1\nnone /mnt hostfs hostfs=/,nofail 0 0\n' >"$root/etc/fstab"
ssh-keygen -q -t ed25519 -N '' -f "$out/key"
install -D -m 600 "$out/key.pub" "$root/root/.ssh/authorized_keys"
printf 'UseDNS no\nMaxSessions 100\n' >"$root/etc/ssh/sshd_config.d/here.conf"
install -d "$root/etc/systemd/journald.conf.d"
printf '[Journal]\nStorage=persistent\n' >"$root/etc/systemd/journald.conf.d/here.conf"
# Profiles of a hundred programs that are not there cost half a minute at the first boot.
find "$root/etc/apparmor.d" -maxdepth 1 -type f ! -name 'runc' ! -name 'bwrap*' ! -name 'unprivileged*' -delete
inside systemctl enable -q ssh systemd-networkd docker containerd podman.socket setup
inside systemctl mask -q apt-daily.timer apt-daily-upgrade.timer systemd-networkd-wait-online.service e2scrub_all.timer dpkg-db-backup.timer
umount "$root/proc"
mounts=''

truncate -s 12G "$out/disk.ext4"
mkfs.ext4 -q -d "$root" -E lazy_itable_init=1,lazy_journal_init=1 "$out/disk.ext4"
