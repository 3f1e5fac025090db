#!/bin/bash
# In the pattern of the start script on Microsoft's page about agents in Docker: the agent is fetched from the service at every start.
set -e

if [ -z "$AZP_URL" ]; then
  echo 1>&2 'error: missing AZP_URL environment variable'
  exit 1
fi
if [ -z "$AZP_TOKEN_FILE" ]; then
  if [ -z "$AZP_TOKEN" ]; then
    echo 1>&2 'error: missing AZP_TOKEN environment variable'
    exit 1
  fi
  AZP_TOKEN_FILE=/azp/.token
  echo -n "$AZP_TOKEN" >"$AZP_TOKEN_FILE"
fi
unset AZP_TOKEN
[ -z "$AZP_WORK" ] || mkdir -p "$AZP_WORK"

export AGENT_ALLOW_RUNASROOT=1
export VSO_AGENT_IGNORE=AZP_TOKEN,AZP_TOKEN_FILE

rm -rf /azp/agent
mkdir /azp/agent
cd /azp/agent

cleanup() {
  trap '' EXIT
  [ -e config.sh ] || return 0
  ./config.sh remove --unattended --auth PAT --token "$(cat "$AZP_TOKEN_FILE")"
}

echo 'Determining the matching agent...'
basic=$(printf 'user:%s' "$(cat "$AZP_TOKEN_FILE")" | base64 | tr -d '\n')
packages=$(wget -q -O - --header "Authorization: Basic $basic" --header 'Accept: application/json' \
  "$AZP_URL/_apis/distributedtask/packages/agent?platform=linux-x64&top=1")
address=$(printf '%s' "$packages" | sed -n 's/.*"downloadUrl": *"\([^"]*\)".*/\1/p')
if [ -z "$address" ]; then
  echo 1>&2 'error: could not determine a matching agent; check that account and token are valid'
  exit 1
fi

echo 'Downloading and extracting the agent...'
wget -q -O - "$address" | tar -xz

source ./env.sh
trap 'cleanup; exit 0' EXIT
trap 'cleanup; exit 130' INT
trap 'cleanup; exit 143' TERM

echo 'Configuring the agent...'
./config.sh --unattended --agent "${AZP_AGENT_NAME:-$(hostname)}" --url "$AZP_URL" --auth PAT --token "$(cat "$AZP_TOKEN_FILE")" \
  --pool "${AZP_POOL:-Default}" --work "${AZP_WORK:-_work}" --replace --acceptTeeEula &
wait $!

echo 'Running the agent...'
./run.sh --once "$@" &
wait $!
