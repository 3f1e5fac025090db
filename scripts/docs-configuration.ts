/** Prints docs/configuration.md from the config's schema; with `--check` only says whether it is up to date. */
import { readFileSync, writeFileSync } from 'node:fs';
import { configurationPage } from '../src/config/docs.ts';

const file = new URL('../docs/configuration.md', import.meta.url);

if (!process.argv.includes('--check')) writeFileSync(file, configurationPage());
else if (readFileSync(file, 'utf8') !== configurationPage()) {
  console.error('docs/configuration.md is not what the schema says: run "npm run docs".');
  process.exitCode = 1;
}
