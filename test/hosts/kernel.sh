#!/usr/bin/env bash
# kernel.sh OUT: builds a Linux that runs as an ordinary process (user-mode Linux, ARCH=um) out of Debian's newest source. It
# needs no KVM, only libc. Debian's own build of it has neither the nf_tables nor the control groups that Docker asks for.
set -euo pipefail
out=${1:?OUT} here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/onejob-kernel.XXXXXX")
trap 'rm -rf "$work"' EXIT

# A list of its own, so that apt checks the signature and this machine's lists stay as they are.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | head -n 1)
mkdir -p "$work/lists/partial"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sources"
own() { # own TOOL WORD…: apt, with that list alone
  "$1" -o Dir::Etc::SourceList="$work/sources" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$work/lists" \
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root "${@:2}"
}
own apt-get update -qq
package=$(own apt-cache pkgnames linux-source- | grep -E '^linux-source-[0-9.]+$' | sort -V | tail -n 1)
[ -n "$package" ] || { echo "$mirror has no linux-source in sid"; exit 1; }
cd "$work"
own apt-get download -qq "$package/sid"
dpkg-deb -x ./*.deb x
rm ./*.deb
tar -xf x/usr/src/"$package".tar.xz
rm -rf x
cd "$package"

make -s ARCH=um defconfig
scripts/kconfig/merge_config.sh -m .config "$here/kernel.config" >/dev/null
make -s ARCH=um olddefconfig
make -s ARCH=um -j"$(nproc)" linux
strip -o "$out" linux
