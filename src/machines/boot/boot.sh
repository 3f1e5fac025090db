#!/bin/sh
# Makes a fresh machine a host of onejob, and tells the controller each stage. Its unit starts it again after a reboot.
# Comments are not sent to machines: AWS takes 16 KiB.
set -eu
umask 022
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH HOME=/root DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
here=/etc/onejob-cloud state=/var/lib/onejob-cloud log=/var/log/onejob-boot.log
mine=/run/onejob-cloud
run='' url='' cloud='' gpu='' has='' sandbox='' driver='' opengl='' probe='' package='' sum='' ca='' ends=''
# shellcheck disable=SC1091
. "$here/settings"
[ -z "$ca" ] || export NODE_EXTRA_CA_CERTS="$ca"
mkdir -p "$state"
chmod 700 "$state"
(umask 077 && : >>"$log")
exec >>"$log" 2>&1
step='begin'

# The console is all that a person sees of a machine that does not join.
say() {
  echo "onejob: $*"
  # A prompt may stand there without an end of line.
  { printf '\n%s\n' "onejob: $*" >/dev/console; } 2>/dev/null || :
}
have() { command -v "$1" >/dev/null; }
once() { # once NAME: whether this has not been done before
  [ ! -e "$state/$1" ] && touch "$state/$1"
}
web() { curl -sS --connect-timeout 10 --max-time "$@"; }
json() { # standard input as the inside of a JSON string
  tr '\t' ' ' | LC_ALL=C tr -cd '\n -~' | sed 's/[\\"]/\\&/g' | awk '{printf "%s\\n", $0}'
}
auth() { # the file with the header that says who calls: the machine, or before the join anyone who has the token
  if [ -s "$mine/auth" ]; then echo "$mine/auth"; else echo "$here/auth"; fi
}
tell() { # tell STAGE: standard input is its text
  [ "$1" = failed ] || say "$1"
  # Without an address the controller reads the console: see join/line.ts.
  if [ -z "$url" ]; then
    set -- "$run $1 $(tail -c 2k | base64 -w0)"
    say "$1 $(printf %s "$1" | sha256sum | cut -c-16)"
    return
  fi
  printf '{"run":"%s","stage":"%s","text":"%s"}' "$run" "$1" "$(json)" >"$state/told"
  for wait in 2 5 10 20 30 0; do
    code=$(web 30 ${ca:+--cacert "$ca"} -o /dev/null -w '%{http_code}' -H "@$(auth)" -H 'content-type: application/json' \
      --data-binary "@$state/told" "$url/cloud/stage") || code=000
    case $code in
      204) return 0 ;;
      403) break ;;
    esac
    sleep "$wait"
  done
  say "the controller did not take it: $code"
  return 1
}
fail() {
  trap - EXIT
  set +e
  once failed
  say "failed: $*"
  tail -c 12000 "$log" | tell failed
  # The controller destroys the machine now; where a shutdown does that too, it is the second chance.
  [ "$ends" = yes ] || exit 1
  sleep 600
  shutdown -h now
  exit 1
}
trap 'code=$?; [ "$code" = 0 ] || fail "cannot $step: a command ended with $code"' EXIT
apt() { apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 "$@"; }
need() { # need PROGRAM PACKAGE...
  have "$1" && return
  shift
  have apt-get || fail "cannot $step: the image has no apt-get; use Ubuntu or Debian, or an image that has everything"
  if once updated; then apt update; fi
  apt install "$@"
}

# What went wrong is told once. A machine that reboots after its join has lost its config, which was in memory.
for over in failed joined; do [ ! -e "$state/$over" ] || exit 0; done

# An upgrade of the driver under running jobs breaks them, and a reload of systemd takes the GPUs from containers.
step='turn off automatic upgrades'
systemctl mask --now apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service unattended-upgrades.service || :

step='tell the controller that it has booted'
need curl curl ca-certificates
if once booted; then uname -r | tell booted || :; fi

if [ "$gpu" = yes ]; then
  step='find a GPU'
  need lspci pciutils
  lspci -n -d 10de: | grep -q . || fail 'this machine has no NVIDIA device (lspci shows none of vendor 10de): look at its type'
  if [ "$has" = nothing ]; then
    step="install the driver $driver"
    need ubuntu-drivers ubuntu-drivers-common
    if once driver; then
      ubuntu-drivers install --gpgpu "nvidia:$driver"
      apt install "nvidia-utils-${driver%-open}"
      dpkg-query -W -f '${db:Status-Status} ${Package}\n' '*nvidia*' | sed -n 's/^installed //p' | xargs -r apt-mark hold
    fi
    modprobe nvidia || :
    if grep -q '^nouveau ' /proc/modules || ! nvidia-smi >/dev/null; then
      once rebooted || fail "the driver $driver is installed, but does not answer, even after a reboot"
      say 'reboots for its driver'
      systemctl reboot
      exit 0
    fi
  fi
  step='ask the driver for its GPUs'
  have nvidia-smi || fail 'the image was said to have a driver, but has no nvidia-smi'
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader >"$state/gpus" ||
    fail 'nvidia-smi finds no GPU: the driver does not fit the device or the kernel'
  gpus=$(grep -c . "$state/gpus")

  if [ "$opengl" != none ]; then
    step='install OpenGL'
    # Of the same version as the driver, else it does not work.
    branch=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1 | cut -d. -f1)
    ldconfig -p | grep -q libEGL_nvidia || {
      if once updated; then apt update; fi
      apt install "libnvidia-gl-$branch-server" || apt install "libnvidia-gl-$branch"
    }
    ldconfig -p | grep -q libEGL_nvidia || fail "NVIDIA's OpenGL library is missing, although libnvidia-gl-$branch is installed"
    need glxinfo mesa-utils
  fi
  if [ "$opengl" = egl ]; then
    step='ask EGL for its devices'
    eglinfo 2>/dev/null | grep -qi nvidia || fail 'EGL does not work with the GPU: eglinfo does not name NVIDIA'
  elif [ "$opengl" = glx ]; then
    step='start an X server on the GPU'
    need Xorg xserver-xorg-core
    find /usr/lib -name nvidia_drv.so | grep -q . || apt install "xserver-xorg-video-nvidia-$branch-server"
    at=$(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader | head -n 1 | tr ':.' '  ')
    # shellcheck disable=SC2086
    set -- $at
    cat >"$here/xorg.conf" <<EOF
Section "Device"
  Identifier "gpu"
  Driver "nvidia"
  BusID "PCI:$(printf %d "0x$2")@$(printf %d "0x$1"):$(printf %d "0x$3"):$(printf %d "0x$4")"
EndSection
Section "Screen"
  Identifier "screen"
  Device "gpu"
  DefaultDepth 24
  Option "AllowEmptyInitialConfiguration" "true"
  SubSection "Display"
    Virtual 1920 1080
  EndSubSection
EndSection
EOF
    systemctl enable --now onejob-x.service
    for wait in 1 1 2 3 5 10 0; do
      if DISPLAY=:0 glxinfo -B 2>/dev/null | grep -q 'OpenGL vendor string: NVIDIA'; then break; fi
      [ "$wait" != 0 ] || fail 'the X server does not draw with the GPU: "glxinfo -B" does not name NVIDIA'
      sleep "$wait"
    done
  fi
  tell driver-ok <"$state/gpus" || :
fi

step='install Docker'
need docker docker.io
need iptables iptables
systemctl enable --now docker
if [ "$gpu" = yes ]; then
  step="install NVIDIA's container toolkit"
  if ! have nvidia-ctk; then
    site=https://nvidia.github.io/libnvidia-container
    mkdir -p /etc/apt/keyrings
    web 60 -f --retry 5 -o /etc/apt/keyrings/nvidia-container-toolkit.asc "$site/gpgkey"
    echo "deb [signed-by=/etc/apt/keyrings/nvidia-container-toolkit.asc] $site/stable/deb/$(dpkg --print-architecture) /" \
      >/etc/apt/sources.list.d/nvidia-container-toolkit.list
    apt update
    apt install nvidia-container-toolkit
  fi
  nvidia-ctk runtime configure --runtime=docker
  systemctl restart docker
  step="use the GPUs in a container of $probe"
  for wait in 5 20 60 0; do
    ! docker pull -q "$probe" || break
    sleep "$wait"
  done
  docker run --rm --gpus all "$probe" nvidia-smi --query-gpu=uuid --format=csv,noheader >"$state/seen"
  seen=$(grep -c . "$state/seen" || :)
  [ "$seen" = "$gpus" ] || fail "a container sees $seen GPUs, the machine has $gpus"
fi
docker version --format '{{.Server.Version}}' | tell docker-ok || :

if [ "$sandbox" = yes ]; then
  step='install what isolates jobs on the process runtime'
  need bwrap bubblewrap
  # Older releases of Ubuntu do not have it. A pool that needs it then says so.
  need pasta passt || say 'without pasta, jobs on the process runtime share the network of this machine'
fi

# A job that reads the metadata service reads this machine's cloud-init text, and acts as its role if it has one.
step='keep jobs from the metadata service'
rule() { # rule PROGRAM CHAIN RULE...
  tables=$1 chain=$2
  shift 2
  "$tables" -w -C "$chain" "$@" 2>/dev/null || "$tables" -w -I "$chain" "$@"
}
deny() { # deny PROGRAM CHAIN-OF-CONTAINERS ADDRESS [MATCH...]
  program=$1 forward=$2 to=$3
  shift 3
  rule "$program" "$forward" -d "$to" "$@" -j REJECT
  rule "$program" OUTPUT -d "$to" "$@" -m owner ! --uid-owner 0 -j REJECT
}
case $cloud in
  aws)
    deny iptables DOCKER-USER 169.254.169.254
    deny ip6tables FORWARD fd00:ec2::254 || :
    ;;
  # It is the name server, too.
  gcp | command) deny iptables DOCKER-USER 169.254.169.254 -p tcp --dport 80 ;;
  azure)
    deny iptables DOCKER-USER 169.254.169.254 -p tcp --dport 80
    deny iptables DOCKER-USER 168.63.129.16 -p tcp --dport 80
    deny iptables DOCKER-USER 168.63.129.16 -p tcp --dport 32526
    ;;
esac

if [ -s "$here/extra.sh" ] && once setup; then
  step='run the commands of "setup" in the config'
  sh -eu "$here/extra.sh"
fi

step="get onejob from $package"
case $package in
  "$url"/*) web 600 -f --retry 5 --retry-connrefused ${ca:+--cacert "$ca"} -H "@$(auth)" -o "$state/onejob.tgz" "$package" ;;
  *) web 600 -fL --proto-redir =https --retry 5 --retry-connrefused -o "$state/onejob.tgz" "$package" ;;
esac
echo "$sum  $state/onejob.tgz" | sha256sum -c - || fail "what $package gave is not the package that was promised: its checksum differs"
step='install onejob'
mkdir -p "$state/package"
tar -xzf "$state/onejob.tgz" -C "$state/package" --no-same-owner --strip-components=1
sh "$state/package/install.sh"
rm -rf "$state/package" "$state/onejob.tgz"

step='join the controller'
onejob cloud join --file "$here/machine.json"
rm -f "$here/auth"
step='start onejob'
onejob service install --config "$mine/config.yml"
# After a reboot its config is gone.
systemctl disable onejob
once joined
systemctl start onejob-attend.service
say 'joined; onejob-attend tells the controller'
