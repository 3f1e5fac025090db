#!/usr/bin/env bash
# slurm-newer.sh ROOT: makes a folder ROOT with a Debian 13 that has Slurm and what its nodes need. As root, in a mount namespace of its
# own: what is mounted meanwhile is then in no other process's sight, and whoever removes a ROOT that stayed half removes only that.
set -euo pipefail
root=${1:?ROOT} suite=trixie
log=$(mktemp "${TMPDIR:-/tmp}/onejob-slurm.XXXXXX")
trap 'rm -f "$log"' EXIT
said() { "$@" >"$log" 2>&1 || { tail -n 20 "$log"; echo "This failed: $*"; exit 1; }; }
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | head -n 1)
[ -n "$mirror" ] || { echo "apt's sources name no mirror"; exit 1; }
# What documents something is half of the packages' files.
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
printf 'path-exclude=/usr/share/%s/*\n' doc locale man info lintian >"$root/etc/dpkg/dpkg.cfg.d/small"
said debootstrap --variant=minbase "$suite" "$root" "$mirror"
# Nothing is to start in a folder.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
said inside apt-get update
said inside apt-get install -y --no-install-recommends slurm-wlm slurmctld slurmd slurm-client munge bubblewrap
umount -R "$root/proc"
rm -rf --one-file-system "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,locale,man,info}/*
