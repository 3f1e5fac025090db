/**
 * A stand-in for Microsoft's `Agent.Listener`: `run [--once]`, `configure …`, `remove …`, `warmup`, `--version`. It speaks the same
 * protocol and ends with the same exit codes; what it does not do is tasks other than one script per step, and real updates.
 */
import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { readPairs } from './capabilities.mjs';
import { configure, readArguments, remove } from './configure.mjs';
import { openTrace } from './diag.mjs';
import { run } from './run.mjs';
import { Ending } from './session.mjs';

const bin = import.meta.dirname;
const root = dirname(bin);
const print = (line) => process.stdout.write(`${line}\n`);

function readVersion() {
  const file = join(bin, 'version.json');
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')).version : '5.278.0';
}

async function main(words) {
  const { command, flags } = readArguments(words, process.env);
  const version = readVersion();
  if (flags.version !== undefined) {
    print(version);
    return 0;
  }
  if (command === 'warmup') return 0;
  if (process.getuid() === 0 && !process.env.AGENT_ALLOW_RUNASROOT)
    throw new Ending(1, 'Must not run as root; AGENT_ALLOW_RUNASROOT allows it.');
  Object.assign(process.env, readPairs(join(root, '.env')));
  const trace = openTrace('Agent', root);
  trace(`Version: ${version}. Command: ${command}`);
  if (command === 'configure') return await configure({ root, version, flags, print, trace });
  if (command === 'remove') return await remove({ root, flags, print, trace });
  if (command !== 'run') throw new Ending(1, `Unrecognized command-line input arguments: '${words.join(' ')}'.`);
  const stopping = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => stopping.abort());
  const code = await run({ root, version, once: flags.once !== undefined, print, trace, stopping: stopping.signal });
  trace(`Exit ${code}.`);
  return code;
}

main(process.argv.slice(2)).then(
  (code) => process.exit(code),
  (error) => {
    if (error.message !== '')
      process.stderr.write(`${error instanceof Ending ? error.message : `An error occurred: ${error.message}`}\n`);
    process.exit(error instanceof Ending ? error.code : 2);
  },
);
