#!/bin/sh
# Like the real one: no signals are passed on, and an update in once mode (exit 4) is run once more.
if [ "$(id -u)" = 0 ] && [ -z "$AGENT_ALLOW_RUNASROOT" ]; then
  echo 'Must not run interactively with sudo'
  exit 1
fi
root=$(cd "$(dirname "$0")" && pwd)
"$root/bin/Agent.Listener" run "$@"
code=$?
if [ "$code" = 4 ]; then
  sleep 1
  "$root/bin/Agent.Listener" run "$@"
  code=$?
fi
exit "$code"
