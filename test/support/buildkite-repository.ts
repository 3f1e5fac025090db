/** A Git repository that jobs check out: a folder of this host, to be a volume at `/repositories`. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';

export interface Repository {
  /** As a sandbox sees it. */
  readonly url: string;
  /** Commits a file of that path on `main`; the commit's id. */
  commit(file: string, content?: string): string;
  /** Commits a file on top of `main`, as what only this branch has; the commit's id. */
  branch(name: string, file: string): string;
}

/** `NAME.git` in `dir`, without a working tree, and with `commit`s only. Needs `git`. */
export function bareRepository(dir: string, name = 'app'): Repository {
  const [work, bare] = [join(dir, `${name}-work`), join(dir, `${name}.git`)];
  const who = ['-c', 'user.name=test', '-c', 'user.email=test@example.org'];
  const git = (...args: string[]): string =>
    execFileSync('git', [...who, '-C', work, ...args], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  mkdirSync(work);
  git('init', '-q', '-b', 'main');
  execFileSync('git', ['init', '-q', '--bare', '-b', 'main', bare]);
  return {
    url: `file:///repositories/${name}.git`,
    commit(file, content = `${file}\n`) {
      mkdirSync(dirname(join(work, file)), { recursive: true });
      writeFileSync(join(work, file), content);
      git('add', '.');
      git('commit', '-qm', file);
      git('push', '-q', bare, 'main');
      return git('rev-parse', 'HEAD');
    },
    branch(name, file) {
      git('checkout', '-q', '-b', name);
      writeFileSync(join(work, file), `${file}\n`);
      git('add', '.');
      git('commit', '-qm', file);
      git('push', '-q', bare, name);
      const id = git('rev-parse', 'HEAD');
      git('checkout', '-q', 'main');
      return id;
    },
  };
}
