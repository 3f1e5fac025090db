// Sums up vitest's JSON reports. Plain old JavaScript: it must also run where `npm ci` has failed.
//   count.cjs STATUS FILE…     prints "N passed, N failed"; a run that failed without a failed test counts one
//   count.cjs --no-skips [--but=WORDS]… FILE…
//                              fails when a test was skipped whose name has none of WORDS, and names it
const { existsSync, readFileSync } = require('node:fs');

const [mode, ...rest] = process.argv.slice(2);
const buts = rest.filter((word) => word.startsWith('--but=')).map((word) => word.slice('--but='.length));
const files = rest.filter((word) => word !== '' && !word.startsWith('--but='));
let passed = 0;
let failed = 0;
const skipped = [];

for (const file of files.filter(existsSync)) {
  const report = JSON.parse(readFileSync(file, 'utf8'));
  for (const suite of report.testResults) {
    if (suite.status === 'failed' && suite.assertionResults.length === 0) failed++;
    for (const test of suite.assertionResults) {
      if (test.status === 'passed') passed++;
      else if (test.status === 'failed') failed++;
      else if (!buts.some((words) => test.fullName.includes(words)))
        skipped.push(`${suite.name}: ${test.fullName} (${test.status})`);
    }
  }
}

if (mode === '--no-skips') {
  if (skipped.length > 0) console.log(`Skipped, though in CI nothing may be:\n  ${skipped.join('\n  ')}`);
  else console.log(`${passed} tests ran, none was skipped.`);
  process.exitCode = skipped.length > 0 ? 1 : 0;
} else {
  if (mode !== '0' && failed === 0) failed = 1;
  console.log(`${passed} passed, ${failed} failed`);
}
