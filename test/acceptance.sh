#!/bin/sh
# Every test, also those that need the wall clock: `npm run test:acceptance`, as root, with an Engine and the test images
# that .ci/run makes. `--shard I/N` runs a part of the long ones. A red file runs again, alone, up to three times: red
# three times is a regression, anything else a flake, which is recorded in test/flakes.jsonl.
set -u
cd "$(dirname "$0")/.." || exit 1
work=$(mktemp -d "${TMPDIR:-/tmp}/onejob-acceptance.XXXXXX")
trap 'rm -rf "$work"' EXIT
status=0

run() { # run NAME VITEST-ARGUMENTS…
  report=$work/$1.json
  shift
  npx vitest run "$@" --reporter=default --reporter=json --outputFile.json="$report" ||
    npx node test/support/again.ts --tries 3 --record "$report" || status=1
}

[ $# -gt 0 ] || run test --project unit --project e2e
run long --project real --project long --project long-alone "$@"
node .ci/count.cjs "$status" "$work"/*.json
exit "$status"
