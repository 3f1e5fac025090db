# What a runner of GitLab needs of any base: a shell, Git and certificates. The runner itself is mounted, not built in.
# Only what is missing is installed, so that a base that has all of it needs no network.
#
#   docker build -f gitlab.Dockerfile --build-arg BASE=ubuntu:24.04 -t mine:1 .
#
# The base's own user stays its user with --build-arg BASE_USER=<name>.
ARG BASE=debian:stable-slim
FROM ${BASE}
ARG OWNER=by-hand
LABEL io.onejob.owner=${OWNER}
USER 0
RUN : what the runner needs; set -eu; \
    wanted=""; \
    command -v bash >/dev/null || wanted="$wanted bash"; \
    command -v git >/dev/null || wanted="$wanted git"; \
    if ! [ -e /etc/ssl/certs/ca-certificates.crt ] && ! [ -e /etc/pki/tls/certs/ca-bundle.crt ] && ! [ -e /etc/ssl/ca-bundle.pem ]; then \
      wanted="$wanted ca-certificates"; \
    fi; \
    if [ -z "$wanted" ]; then echo "onejob: all of it is there."; exit 0; fi; \
    if command -v apt-get >/dev/null; then \
      export DEBIAN_FRONTEND=noninteractive; \
      apt-get update; \
      apt-get install -y --no-install-recommends $wanted; \
      rm -rf /var/lib/apt/lists/*; \
    elif command -v apk >/dev/null; then apk add --no-cache $wanted; \
    elif command -v dnf >/dev/null; then dnf install -y $wanted; dnf clean all; \
    elif command -v microdnf >/dev/null; then microdnf install -y $wanted; microdnf clean all; \
    elif command -v yum >/dev/null; then yum install -y $wanted; yum clean all; \
    elif command -v zypper >/dev/null; then zypper --non-interactive install $wanted; zypper clean --all; \
    else echo "This base lacks$wanted, and has neither apt-get, apk, dnf, microdnf, yum nor zypper." >&2; exit 1; fi
ARG BASE_USER=0
USER ${BASE_USER}
