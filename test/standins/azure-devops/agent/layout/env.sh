#!/bin/sh
# Keeps the PATH and a few variables of the user who configures the agent. Is sourced.
echo "$PATH" >.path
[ -e .env ] || : >.env
for name in LANG JAVA_HOME VSTS_HTTP_PROXY VSTS_HTTP_PROXY_USERNAME; do
  eval "value=\${$name:-}"
  if [ -n "$value" ] && ! grep -q "^$name=" .env; then echo "$name=$value" >>.env; fi
done
