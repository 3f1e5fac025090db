// Builds the real agent that tests run: see ../buildkite-agent.ts.
module onejob.invalid/buildkite-agent

go 1.26.5

require github.com/buildkite/agent/v3 v3.137.0

// The module proxy does not have this module under its own host name.
replace drjosh.dev/zzglob => github.com/DrJosh9000/zzglob v0.4.3
