/**
 * Lists the files of a folder that are sent. In a git work tree: files that git tracks or does not ignore, with submodules and
 * nested repositories as plain files. Elsewhere: everything that `.onejobignore` does not name. `.git` is never sent unless
 * `.onejobignore` takes it back with `!.git`: it is large, and may hold credentials.
 */
import { constants, type Dirent, lstatSync, readdirSync, readFileSync, type Stats, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { attempt, codeOf, messageOf, OnejobError } from '../base/errors.ts';
import { glob } from '../base/glob.ts';
import { run } from '../system/run.ts';

/**
 * `paths`: relative to the folder, sorted. `seen`: what was found of some. `warnings`: sentences about files that could not be listed.
 * @throws OnejobError E_WORKSPACE_READ if the folder, or git in it, cannot be read
 */
export async function listWorkspace(folder: string) {
  const top = resolve(folder);
  try {
    // The slash fails for all but a folder, or a link to one.
    lstatSync(`${top}/`);
  } catch (error) {
    const code = codeOf(error);
    const why = code === 'ENOENT' ? 'there is no such folder' : code === 'ENOTDIR' ? 'it is not a folder' : messageOf(error);
    const hint = 'Give a folder with --workspace, or use --no-workspace.';
    throw new OnejobError('E_WORKSPACE_READ', `Cannot send the workspace ${top}: ${why}.`, { hint, cause: error });
  }
  const warnings: string[] = [];
  const seen = new Map<string, Stats>();
  const tracked = isBelowGit(top) ? await listGit(top, '', warnings, seen) : null;
  // It takes minutes to see that it is too much.
  if (tracked === null && top === '/' && lookAt('/.onejobignore') === undefined) throw wholeHost();
  const paths = tracked ?? listAll(top, warnings);
  return { paths: [...new Set(paths)].sort(), seen, git: tracked !== null, warnings };
}

function wholeHost(): OnejobError {
  const message = 'Cannot send the workspace /: it is the whole file system of this host.';
  const hint =
    'Go to the folder of your project, give it with --workspace, or use --no-workspace. With a file /.onejobignore it is sent.';
  return new OnejobError('E_WORKSPACE_READ', message, { hint });
}

function isBelowGit(top: string): boolean {
  for (let at = top; ; at = dirname(at)) {
    // A folder above that cannot be read says nothing.
    if (at === top ? hasGit(at) : attempt(() => hasGit(at))) return true;
    if (at === dirname(at)) return false;
  }
}

/** null if git says that this is not a repository, whatever `.git` is there. */
async function listGit(top: string, prefix: string, warnings: string[], seen: Map<string, Stats>): Promise<string[] | null> {
  const output = await runGit(join(top, prefix));
  if (output === null) return null;
  const found = names(output, warnings);
  const paths: string[] = [];
  const isReal = realFolders(top);
  for (const name of found) {
    if (!isBelow(name)) {
      warnings.push(`Skipped ${JSON.stringify(prefix + name)}: git lists it, but it lies outside of the folder, or in .git.`);
      continue;
    }
    const path = prefix + name.replace(/\/$/, '');
    // Deleted but still tracked; or its folder became a link, with something else behind it.
    const entry = isReal(dirname(path)) ? lookAt(join(top, path)) : undefined;
    if (entry === undefined) continue;
    if (!entry.isDirectory()) {
      paths.push(path);
      seen.set(path, entry);
    } else {
      // git names a submodule or nested repository, but not its contents.
      const below = hasGit(join(top, path)) ? await listGit(top, `${path}/`, warnings, seen) : null;
      for (const one of below ?? walk(top, path, isGit, warnings)) paths.push(one);
    }
  }
  return paths;
}

/** Whether a path below `top` is a folder that is reached without a link. Checks each folder once. */
function realFolders(top: string): (path: string) => boolean {
  const known = new Map([['.', true]]);
  return function isReal(path): boolean {
    const before = known.get(path);
    if (before !== undefined) return before;
    const real = isReal(dirname(path)) && lookAt(join(top, path))?.isDirectory() === true;
    known.set(path, real);
    return real;
  };
}

/**
 * The folder may be a stranger's, and git obeys the config that it finds there: which program watches files, which ones run when its
 * index changes, and which one fetches an object that is missing.
 */
const noPrograms = ['-c', 'core.fsmonitor=false', '-c', 'core.hooksPath=/dev/null'];
const noProtocols = { GIT_ALLOW_PROTOCOL: 'none', GIT_NO_LAZY_FETCH: '1', GIT_OPTIONAL_LOCKS: '0' };

async function runGit(folder: string): Promise<Buffer | null> {
  const args = ['ls-files', '-z', '--cached', '--others', '--exclude-standard'];
  const how = { cwd: folder, moreEnv: noProtocols, most: Number.POSITIVE_INFINITY };
  const { code, error, stdout, stderr } = await run('git', [...noPrograms, ...args], how);
  if (error === null) return stdout;
  const said = typeof code === 'string' ? error.message : stderr.trim() || `exit code ${code}`;
  if (said.startsWith('fatal: not a git repository (or any')) return null;
  throw new OnejobError('E_WORKSPACE_READ', `Cannot list the git work tree ${folder} with "git ${args.join(' ')}": ${said}.`, {
    hint: 'Fix what makes that command fail there, give another folder with --workspace, or use --no-workspace.',
  });
}

function hasGit(folder: string): boolean {
  return lookAt(join(folder, '.git')) !== undefined;
}

/** Undefined if there is nothing. @throws OnejobError E_WORKSPACE_READ */
export function lookAt(path: string): Stats | undefined {
  try {
    return lstatSync(path, { throwIfNoEntry: false });
  } catch (error) {
    throw unreadableFolder(path, error);
  }
}

/** The error for a file or folder of a workspace that cannot be read. */
export function unreadableFolder(path: string, error: unknown): OnejobError {
  const hint =
    'Make it readable for this user, name it in .onejobignore, give another folder with --workspace, or use --no-workspace.';
  return new OnejobError('E_WORKSPACE_READ', `Cannot read ${path} for the workspace: ${messageOf(error)}.`, { hint, cause: error });
}

function isGit(path: string): boolean {
  return path === '.git' || path.endsWith('/.git');
}

function names(output: Buffer, warnings: string[]): string[] {
  const all = output.toString('latin1').split('\0').slice(0, -1);
  return all.flatMap((written) => {
    const name = asName(Buffer.from(written, 'latin1'));
    if (name === null) warnings.push(`Skipped ${JSON.stringify(written)}: its name is not UTF-8.`);
    return name ?? [];
  });
}

/** git prints the names that are in the index, and that is a file which a stranger may have made. */
function isBelow(name: string): boolean {
  return name
    .replace(/\/$/, '')
    .split('/')
    .every((part) => !/^(\.{0,2}|\.git)$/i.test(part));
}

function listAll(top: string, warnings: string[]): string[] {
  return walk(top, '', parseIgnore(['.git', ...ignoreLines(top)]), warnings);
}

/** Bytes of a file that people write. */
const mostIgnore = 1 << 20;

function ignoreLines(top: string): string[] {
  const path = join(top, '.onejobignore');
  if (lookAt(path) === undefined) return [];
  const refused = (why: string): OnejobError =>
    new OnejobError('E_WORKSPACE_READ', `Cannot read ${path}: ${why}.`, { hint: 'Fix or remove that file.' });
  try {
    // What a stranger made may be a pipe that nobody writes to, or a link to a device without an end.
    const found = statSync(path);
    if (!found.isFile()) throw refused('it is not a file');
    if (found.size > mostIgnore) throw refused(`it is larger than ${mostIgnore >> 20} MiB`);
    return readFileSync(path, { encoding: 'utf8', flag: constants.O_RDONLY | constants.O_NONBLOCK }).split('\n');
  } catch (error) {
    throw error instanceof OnejobError ? error : refused(messageOf(error));
  }
}

function walk(top: string, start: string, ignores: Ignores, warnings: string[]): string[] {
  const paths: string[] = [];
  const device = lookAt(join(top, start))?.dev;
  const todo = [start];
  for (let at = todo.pop(); at !== undefined; at = todo.pop()) {
    let entries: Dirent<Buffer>[];
    try {
      entries = readdirSync(join(top, at), { withFileTypes: true, encoding: 'buffer' });
    } catch (error) {
      if (at === start) throw unreadableFolder(join(top, at), error);
      warnings.push(`Skipped ${at}: ${messageOf(error)}.`);
      continue;
    }
    for (const entry of entries) {
      const name = asName(entry.name);
      if (name === null) {
        warnings.push(`Skipped ${JSON.stringify(entry.name.toString('latin1'))} in ${at || '.'}: its name is not UTF-8.`);
        continue;
      }
      const path = at === '' ? name : `${at}/${name}`;
      const isDirectory = entry.isDirectory();
      if (ignores(path, isDirectory)) continue;
      if (!isDirectory) paths.push(path);
      // Such as /proc below the root: without an end, and of this host.
      else if ((attempt(() => lstatSync(join(top, path)).dev) ?? device) === device) todo.push(path);
      else
        warnings.push(`Skipped ${path}: another file system is mounted there; "--workspace" or "--volume" can give it to the job.`);
    }
  }
  return paths;
}

/** The name as text; null if that would give other bytes. */
export function asName(bytes: Buffer): string | null {
  const name = bytes.toString('utf8');
  return Buffer.from(name, 'utf8').equals(bytes) ? name : null;
}

/**
 * `.onejobignore`, with the syntax of gitignore(5): the last matching pattern decides, `!` takes back, a trailing slash means
 * directories only, another slash ties the pattern to the top. Everything below an ignored directory is ignored. Returns whether
 * to leave out a path, which is relative to the top without a leading slash.
 */
export type Ignores = (path: string, isDirectory: boolean) => boolean;

interface Rule {
  readonly matches: (path: string) => boolean;
  readonly directoriesOnly: boolean;
  readonly ignores: boolean;
}

export function parseIgnore(lines: readonly string[]): Ignores {
  const rules = lines.map(parseLine).filter((rule) => rule !== null);
  return (path, isDirectory) => {
    const last = rules.findLast((rule) => (isDirectory || !rule.directoriesOnly) && rule.matches(path));
    return last?.ignores ?? false;
  };
}

function parseLine(line: string): Rule | null {
  // Trailing spaces are dropped unless a backslash keeps them.
  let pattern = line.replace(/\r$/, '').replace(/(?<!\\)\s+$/, '');
  if (pattern === '' || pattern.startsWith('#')) return null;
  const ignores = !pattern.startsWith('!');
  if (!ignores) pattern = pattern.slice(1);
  const directoriesOnly = pattern.endsWith('/');
  if (directoriesOnly) pattern = pattern.slice(0, -1);
  const tied = pattern.includes('/');
  pattern = pattern.replace(/^\//, '');
  if (pattern === '') return null;
  return { matches: glob(tied ? pattern : `**/${pattern}`, { braces: false }), directoriesOnly, ignores };
}
