#!/usr/bin/env bash
# engine-base.sh TAR: makes an archive of a Debian 13 that has all that an engine of an agent needs, for tests that reach no registry. As
# root, in a mount namespace of its own: what is mounted meanwhile is in no other process's sight.
set -euo pipefail
tar=${1:?TAR} suite=trixie
root=$(mktemp -d "${TMPDIR:-/tmp}/onejob-engine.XXXXXX")
trap 'umount -R "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$root" "$root.log"' EXIT
said() { "$@" >"$root.log" 2>&1 || { tail -n 20 "$root.log"; echo "This failed: $*"; exit 1; }; }
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"; }

mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | head -n 1)
[ -n "$mirror" ] || { echo "apt's sources name no mirror"; exit 1; }
# The names as the Dockerfile of the engines has them, so that it finds nothing missing.
dockerfile=$(dirname "$0")/../../src/images/dockerfiles/engine.Dockerfile
names=$(sed -n '/for name in /,/; do/p' "$dockerfile" | tr -d '\\\n' | sed 's/.*for name in \(.*\); do.*/\1/')
# What documents something is half of the packages' files.
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
printf 'path-exclude=/usr/share/%s/*\n' doc locale man info lintian >"$root/etc/dpkg/dpkg.cfg.d/small"
said debootstrap --variant=minbase "$suite" "$root" "$mirror"
# Nothing is to start in a folder.
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
mount -t proc proc "$root/proc"
said inside apt-get update
# shellcheck disable=SC2086 # They are many.
said inside apt-get install -y --no-install-recommends $names
umount -R "$root/proc"
rm -rf --one-file-system "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,locale,man,info}/*
tar -C "$root" --numeric-owner --sort=name -cf "$tar" .
