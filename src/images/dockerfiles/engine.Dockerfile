# An engine of its own for one agent, of which containers of its job are: rootless Podman, and a rootless Docker Engine that
# starts when a job first asks for one. On Debian 13. Only what is missing is installed, so that a base that has all of it
# needs no network.
#
#   docker build -f engine.Dockerfile --build-arg BASE=debian:trixie-slim -t mine:1 .
ARG BASE=debian:trixie-slim
FROM ${BASE}
ARG OWNER=by-hand
LABEL io.onejob.owner=${OWNER}
USER 0

RUN : the engines; set -eu; \
    wanted=""; \
    for name in podman crun netavark aardvark-dns passt catatonit uidmap libcap2-bin \
                docker.io docker-cli docker-buildx docker-compose rootlesskit slirp4netns iptables iproute2 ca-certificates; do \
      if ! dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed'; then wanted="$wanted $name"; fi; \
    done; \
    if [ -z "$wanted" ]; then echo "onejob: all of it is there."; exit 0; fi; \
    export DEBIAN_FRONTEND=noninteractive; \
    apt-get update; \
    apt-get install -y --no-install-recommends $wanted; \
    rm -rf /var/lib/apt/lists/*

# Their ids are above those that systemd, useradd and people use, so no process of the host has them. A container has one of the two:
# jobs that are not trusted share no ids with others. With setuid programs they would need more capabilities than SETUID and SETGID.
# What is a volume later is open, since it takes the mode from here and belongs to one of them alone.
RUN : users whose ids nobody else has; set -eu; \
    rm -f /etc/subuid; first=1879048192; \
    for user in engine untrusted; do \
      echo "$user:x:$first:" >>/etc/group; \
      echo "$user:x:$first:$first::/home/$user:/usr/sbin/nologin" >>/etc/passwd; \
      echo "$user:$((first + 1)):65536" >>/etc/subuid; \
      mkdir -p /home/$user/.config/containers /run/$user; \
      printf '[storage]\ndriver = "overlay"\ngraphroot = "/var/lib/engine/podman"\nrunroot = "/run/%s/podman"\n[storage.options]\nadditionalimagestores = ["/var/lib/images"]\n' \
        $user >/home/$user/.config/containers/storage.conf; \
      printf '[containers]\nkeyring = false\npids_limit = 0\nlog_driver = "k8s-file"\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' \
        >/home/$user/.config/containers/containers.conf; \
      chown -R $user:$user /home/$user /run/$user; \
      first=$((first + 131072)); \
    done; \
    cp /etc/subuid /etc/subgid; \
    mkdir -p /var/lib/engine /var/lib/images /workspace; \
    chmod 1777 /var/lib/engine /var/lib/images /workspace; \
    chmod u-s /usr/bin/newuidmap /usr/bin/newgidmap; \
    setcap cap_setuid=ep /usr/bin/newuidmap; \
    setcap cap_setgid=ep /usr/bin/newgidmap

# An Engine that does not know that it is rootless publishes no ports outside of its network, and a container that shares processes or
# memory with it would mount them anew, which the kernel refuses. So its runc binds them, as rootless Engines ask for it themselves.
RUN : for an Engine that limits single containers; set -eu; \
    mkdir -p /usr/local/lib/onejob; cd /usr/local/lib/onejob; \
    printf '%s\n' '#!/bin/sh' \
      'ROOTLESSKIT_STATE_DIR=$XDG_RUNTIME_DIR/rootlesskit exec rootlesskit-docker-proxy "$@"' >publish; \
    printf '%s\n' '#!/usr/bin/perl' \
      'use strict; use warnings;' \
      'my ($bundle) = map { $ARGV[$_] eq "--bundle" ? $ARGV[$_ + 1] : () } 0 .. $#ARGV - 1;' \
      'if (defined $bundle) {' \
      '  open(my $in, "<", "$bundle/config.json") or die "config.json: $!\n";' \
      '  my $config = do { local $/; <$in> };' \
      '  my ($own) = $config =~ /"namespaces":(\[.*?\])/s or die "config.json has no namespaces\n";' \
      '  my %shared = (pid => ["/proc"], ipc => ["/dev/shm", "/dev/mqueue"]);' \
      '  for my $path (map { $own =~ /"type":"$_"/ ? () : @{$shared{$_}} } keys %shared) {' \
      '    my $bound = qq({"destination":"$path","type":"bind","source":"$path","options":["rbind","nosuid","noexec","nodev"]});' \
      '    $config =~ s/\{"destination":"\Q$path\E"[^}]*\}/$bound/;' \
      '    $config =~ s/"readonlyPaths":\[[^\]]*\]/"readonlyPaths":[]/ if $path eq "/proc";' \
      '  }' \
      '  open(my $out, ">", "$bundle/config.json") or die "config.json: $!\n";' \
      '  print($out $config) && close($out) or die "config.json: $!\n";' \
      '}' \
      'exec("/usr/sbin/runc", @ARGV) or die "runc: $!\n";' >runc; \
    chmod 755 publish runc
ARG BASE_USER=0
USER ${BASE_USER}
