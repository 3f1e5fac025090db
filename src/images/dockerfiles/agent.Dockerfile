# The agent of Azure Pipelines or the runner of GitHub Actions, which need the same, on top of any base with a shell: Ubuntu 22.04 and
# newer, Debian 12 and newer, and what is built on them, such as nvidia/cuda. On a base without apt-get the libraries must be there.
#
#   mkdir agent && tar -xzf vsts-agent-linux-x64-5.278.0.tar.gz -C agent
#   docker build -f agent.Dockerfile --build-arg BASE=ubuntu:24.04 --build-arg AGENT_VERSION=5.278.0 -t mine:1 .
#
# AGENT_VERSION is what the package must turn out to be; the build fails when it is another. For a runner of GitHub Actions add
# --build-arg AGENT_TYPE=github.
ARG BASE=ubuntu:24.04
FROM ${BASE}
ARG OWNER=by-hand
LABEL io.onejob.owner=${OWNER}
USER 0

# Alternatives are joined by commas: each release has another ICU, and some packages were renamed for 64-bit times.
RUN : what the agent needs of the distribution; set -eu; \
    if ! command -v apt-get >/dev/null; then \
      echo "onejob: this base has no apt-get; what the agent needs is taken to be there."; \
      exit 0; \
    fi; \
    wanted=""; \
    for set in libicu78,libicu76,libicu74,libicu72,libicu70 libssl3t64,libssl3 libkrb5-3 zlib1g \
               liblttng-ust1t64,liblttng-ust1,liblttng-ust0 git curl ca-certificates bash tar iputils-ping; do \
      here=""; \
      for name in $(echo "$set" | tr , ' '); do \
        if dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed'; then here=yes; fi; \
      done; \
      if [ -z "$here" ]; then wanted="$wanted $set"; fi; \
    done; \
    if [ -z "$wanted" ]; then echo "onejob: all of it is there."; exit 0; fi; \
    export DEBIAN_FRONTEND=noninteractive; \
    apt-get update; \
    names=""; \
    for set in $wanted; do \
      chosen=""; \
      for name in $(echo "$set" | tr , ' '); do \
        if [ -z "$chosen" ] && apt-cache show "$name" >/dev/null 2>&1; then chosen=$name; fi; \
      done; \
      if [ -z "$chosen" ]; then echo "onejob: this distribution has none of $set."; else names="$names $chosen"; fi; \
    done; \
    apt-get install -y --no-install-recommends $names; \
    rm -rf /var/lib/apt/lists/*

# The user with id 1000 runs the agent; where nobody has it, a user "agent" is made.
RUN : a user for the agent; set -eu; \
    if ! grep -q '^[^:]*:[^:]*:1000:' /etc/passwd; then \
      if command -v useradd >/dev/null; then useradd --uid 1000 --create-home --shell /bin/sh agent; \
      else \
        grep -q '^[^:]*:[^:]*:1000:' /etc/group || echo 'agent:x:1000:' >>/etc/group; \
        echo 'agent:x:1000:1000::/home/agent:/bin/sh' >>/etc/passwd; \
        mkdir -p /home/agent; \
        chown 1000:1000 /home/agent; \
      fi; \
    fi

COPY --chown=1000:1000 agent/ /opt/agent/
USER 1000

# What it writes while it is asked must not be in every container.
ARG AGENT_VERSION
ARG AGENT_TYPE=azure-pipelines
RUN : asking the agent for its version; set -eu; \
    listener=$(ls /opt/agent/bin/Agent.Listener /opt/agent/bin/Runner.Listener 2>/dev/null | head -n 1); \
    found=$($listener --version | tail -n 1); \
    rm -rf /opt/agent/_diag; \
    if [ "$found" != "${AGENT_VERSION}" ]; then \
      echo "The agent says that it is version '$found', not '${AGENT_VERSION}'." >&2; \
      exit 1; \
    fi
LABEL io.onejob.agent.type=${AGENT_TYPE} \
      io.onejob.agent.version=${AGENT_VERSION} \
      io.onejob.agent.root=/opt/agent
