#!/bin/sh
# boot.sh KERNEL DISK SHARE: boots DISK, with the folder SHARE as its /mnt, and ends when the machine is switched off. It is the
# first process of namespaces of its own (machine.ts), so killing it is a power cut, and nothing is left: no process, tap or mount.
set -eu
kernel=$1 disk=$2 share=$3
mount -t proc proc /proc
# Both are gone with the namespaces. The machine's memory is a file, mapped as a program.
mount -t tmpfs -o exec,mode=700 tmpfs /mnt
export TMPDIR=/mnt
ip link set lo up
ip tuntap add dev tap0 mode tap
ip address add 10.0.2.2/24 dev tap0
ip link set tap0 up
# Not by exec: the first process of a namespace gets no signal that it does not wait for, and this kernel sends itself some.
"$kernel" mem=2G seccomp=on uml_dir=/mnt umid=host hostfs="$share" ubd0="$disk" root=/dev/ubda rw \
  vec0:transport=tap,ifname=tap0 con0=null,fd:1 con=null ssl=null quiet
