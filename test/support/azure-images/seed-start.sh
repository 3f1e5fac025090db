#!/bin/bash
# In the pattern of the start script that the Python manager's images have: the token in the environment, then in a file and in
# the arguments of config.sh; a cleanup that the last line makes useless.
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

cleanup() {
  [ -e config.sh ] || return 0
  ./config.sh remove --unattended --auth PAT --token "$(cat "$AZP_TOKEN_FILE")"
}
trap 'cleanup; exit 130' INT
trap 'cleanup; exit 143' TERM

cd /azp
source ./env.sh
echo 'Configuring the agent...'
./config.sh --unattended --agent "${AZP_AGENT_NAME:-$(hostname)}" --url "$AZP_URL" --auth PAT --token "$(cat "$AZP_TOKEN_FILE")" \
  --pool "${AZP_POOL:-Default}" --work "${AZP_WORK:-_work}" --replace --acceptTeeEula

echo 'Running the agent...'
exec nice -n 19 ./run.sh --once
