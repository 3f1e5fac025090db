#!/bin/sh
# Installs the release of onejob that this script is in. It may run again, and changes nothing of another version.
set -eu

usage() {
  cat <<'TEXT'
Usage: ./install.sh [--user] [--versions DIR] [--bin DIR] [--share DIR]

Copies this folder to /opt/onejob/VERSION, and links /usr/local/bin/onejob, the man page and the completions to it. Creates
the group "onejob", whose members may use the daemon, and the folder /etc/onejob for its config.

  --user           install into your home instead: ~/.local/share/onejob, ~/.local/bin; no group, no /etc/onejob
  --versions DIR   the folder that has a folder for each version (default: /opt/onejob)
  --bin DIR        where to link the command (default: as last time, else /usr/local/bin)
  --linked         share the files of this folder, which nobody changes, instead of copying them: for packages
  --share DIR      where to link the man page and the completions (default: as last time, else /usr/local/share)
TEXT
}

fail() {
  echo "install.sh: $1" >&2
  exit "${2:-1}"
}

here=$(dirname "$(readlink -f "$0")")
user=false linked=false versions='' bin='' share=''
while [ $# -gt 0 ]; do
  case $1 in
    --user) user=true ;;
    --linked) linked=true ;;
    --versions | --bin | --share)
      [ $# -gt 1 ] || fail "$1 needs a folder; see --help" 2
      case $2 in /*) ;; *) fail "$1 needs an absolute path, got: $2" 2 ;; esac
      case $1 in --versions) versions=$2 ;; --bin) bin=$2 ;; --share) share=$2 ;; esac
      shift
      ;;
    -h | --help)
      usage
      exit 0
      ;;
    *) fail "unknown option: $1; see --help" 2 ;;
  esac
  shift
done
if $user; then
  data=${XDG_DATA_HOME:-$HOME/.local/share}
  : "${versions:=$data/onejob}"
  usual_bin=$HOME/.local/bin usual_share=$data
else
  : "${versions:=/opt/onejob}"
  usual_bin=/usr/local/bin usual_share=/usr/local/share
  [ "$(id -u)" = 0 ] || fail 'run it as root, or with --user to install into your home'
fi

version=$(sed -n 's/^  "version": "\(.*\)",$/\1/p' "$here/package.json")
[ -n "$version" ] || fail "no version in $here/package.json"
node=$here/node_modules/node/bin/node
"$node" --version >/dev/null 2>&1 || fail "$node does not run here: this release is for $(cat "$here/platform"), this machine is $(uname -sm)"

synced() { # synced PATH: what was written there survives a power cut. Old ones of sync know no -f
  sync -f "$1" 2>/dev/null || sync
}

umask 022
mkdir -p "$versions"
# One at a time.
exec 9>"$versions/.lock"
flock 9
# Where it was linked, for the next version: written before anything is linked, so that no link is forgotten.
remembered() { # remembered NAME
  [ ! -e "$versions/.links" ] || sed -n "s/^$1=//p" "$versions/.links"
}
: "${bin:=$(remembered bin)}" "${share:=$(remembered share)}"
: "${bin:=$usual_bin}" "${share:=$usual_share}"
printf 'bin=%s\nshare=%s\n' "$bin" "$share" >"$versions/.links.new"
mv -Tf "$versions/.links.new" "$versions/.links"
mkdir -p "$bin"
if [ "$here" != "$versions/$version" ]; then
  new=$(mktemp -d "$versions/.new-XXXXXX")
  trap 'if [ -e "$new.old" ] && ! [ -e "$versions/$version" ]; then mv -T "$new.old" "$versions/$version"; fi; rm -rf "$new" "$new.old"' EXIT
  # A package manager replaces files and never writes into them, so a version may share them with it.
  if ! $linked || ! cp -Rl "$here/." "$new/" 2>/dev/null; then cp -R "$here/." "$new/"; fi
  chmod 755 "$new"
  synced "$new"
  # The same version again: a running daemon keeps the files that it has open.
  if [ -e "$versions/$version" ]; then
    mv -T "$versions/$version" "$new.old"
  fi
  mv -T "$new" "$versions/$version"
  rm -rf "$new.old"
  trap - EXIT
fi

link() { # link TARGET NAME: in one step, also over a link that is there
  if [ -e "$2" ] && ! [ -L "$2" ]; then
    echo "install.sh: $2 is not a link, so it stays as it is" >&2
    return
  fi
  mkdir -p "$(dirname "$2")"
  ln -sfn "$1" "$2.onejob-new"
  mv -Tf "$2.onejob-new" "$2"
}

before=$(readlink "$versions/current" || true)
if [ -n "$before" ] && [ "$before" != "$version" ]; then link "$before" "$versions/previous"; fi
link "$version" "$versions/current"
link "$versions/current/bin/onejob" "$bin/onejob"
now=$versions/current/dist/share
link "$now/man/man1/onejob.1" "$share/man/man1/onejob.1"
link "$now/completions/onejob.bash" "$share/bash-completion/completions/onejob"
link "$now/completions/onejob.zsh" "$share/zsh/site-functions/_onejob"
link "$now/completions/onejob.fish" "$share/fish/vendor_completions.d/onejob.fish"
for folder in "$versions" "$bin" "$share"; do synced "$folder"; done

if $user; then
  echo "Installed onejob $version in $versions/$version."
  case :$PATH: in *":$bin:"*) ;; *) echo "Add $bin to your PATH." ;; esac
  echo 'Next: onejob init own-queue, then: onejob service install --user'
else
  getent group onejob >/dev/null || groupadd --system onejob
  mkdir -p /etc/onejob
  chown root:onejob /etc/onejob
  chmod 750 /etc/onejob
  echo "Installed onejob $version in $versions/$version."
  echo 'Next: sudo onejob init own-queue, then: sudo onejob service install'
fi
