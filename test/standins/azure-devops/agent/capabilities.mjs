/** What the agent says that it can do, in the real one's order (agent `CapabilitiesManager.cs`): the last of a name wins. */
import { accessSync, constants, existsSync, readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { delimiter, join } from 'node:path';

const tools =
  'ant bash bundler clang cmake curl docker git gulp jake make mvn node npm nvcc python python3 rake ruby sh svn wget'.split(' ');
const never = new Set(['_', 'LS_COLORS', 'MAIL', 'OLDPWD', 'SHLVL', 'SYSTEM_ACCESSTOKEN', 'TERM', 'VSO_AGENT_IGNORE']);

/** The system capabilities of an agent `name` whose files lie in `root`. Reads the environment and `.capabilities`. */
export function scanCapabilities({ root, name, version }) {
  return {
    ...fromEnvironment(),
    ...fromPath(),
    ...readPairs(join(root, '.capabilities')),
    'Agent.Name': name,
    'Agent.OS': 'Linux',
    'Agent.OSArchitecture': process.arch === 'arm64' ? 'ARM64' : 'X64',
    InteractiveSession: 'False',
    'Agent.Version': version,
    'Agent.ComputerName': hostname(),
    'Agent.HomeDirectory': root,
  };
}

function fromEnvironment() {
  const ignored = new Set((process.env.VSO_AGENT_IGNORE ?? '').split(',').map((name) => name.trim().toLowerCase()));
  return Object.fromEntries(
    Object.entries(process.env).filter(
      ([name, value]) => !never.has(name) && !ignored.has(name.toLowerCase()) && value.length < 1024,
    ),
  );
}

function fromPath() {
  const folders = (process.env.PATH ?? '').split(delimiter).filter((folder) => folder.startsWith('/'));
  const find = (tool) => folders.map((folder) => join(folder, tool)).find(runs);
  return Object.fromEntries(tools.flatMap((tool) => (find(tool) === undefined ? [] : [[tool, find(tool)]])));
}

function runs(file) {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** `KEY=VALUE` lines of a file; nothing if there isn't one. */
export function readPairs(file) {
  if (!existsSync(file)) return {};
  const lines = readFileSync(file, 'utf8')
    .replace(/^\uFEFF/, '')
    .split(/\r?\n/);
  return Object.fromEntries(
    lines
      .filter((line) => line.indexOf('=') > 0)
      .map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
  );
}
