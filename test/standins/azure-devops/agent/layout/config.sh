#!/bin/sh
if [ "$(id -u)" = 0 ] && [ -z "$AGENT_ALLOW_RUNASROOT" ]; then
  echo 'Must not run with sudo'
  exit 1
fi
cd "$(dirname "$0")" || exit 1
. ./env.sh
case $1 in
  remove) exec ./bin/Agent.Listener "$@" ;;
  *) exec ./bin/Agent.Listener configure "$@" ;;
esac
