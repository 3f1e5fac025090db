# Packages of the distribution on top of a base.
#
#   docker build -f packages.Dockerfile --build-arg BASE=ubuntu:24.04 --build-arg PACKAGES="git curl" -t mine:1 .
#
# The base's own user stays its user with --build-arg BASE_USER=<name>.
ARG BASE=debian:stable-slim
FROM ${BASE}
ARG OWNER=by-hand
LABEL io.onejob.owner=${OWNER}
USER 0
ARG PACKAGES=""
RUN : installing packages; set -eu; \
    if command -v apt-get >/dev/null; then \
      export DEBIAN_FRONTEND=noninteractive; \
      apt-get update; \
      apt-get install -y --no-install-recommends ${PACKAGES}; \
      rm -rf /var/lib/apt/lists/*; \
    elif command -v apk >/dev/null; then apk add --no-cache ${PACKAGES}; \
    elif command -v dnf >/dev/null; then dnf install -y ${PACKAGES}; dnf clean all; \
    elif command -v microdnf >/dev/null; then microdnf install -y ${PACKAGES}; microdnf clean all; \
    elif command -v yum >/dev/null; then yum install -y ${PACKAGES}; yum clean all; \
    elif command -v zypper >/dev/null; then zypper --non-interactive install ${PACKAGES}; zypper clean --all; \
    else echo "This base has neither apt-get, apk, dnf, microdnf, yum nor zypper." >&2; exit 1; fi
ARG BASE_USER=0
USER ${BASE_USER}
