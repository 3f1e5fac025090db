/** Figures about what surrounds the source: tests, and the pages about the architecture. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export function linesOf(root: string, paths: readonly string[]): number {
  return paths.reduce((sum, path) => sum + readFileSync(join(root, path), 'utf8').split('\n').length - 1, 0);
}

/** Tests, stand-ins, and what both use; also those of the dashboard, of the scripts and of what is not part of the product. */
export function testFiles(root: string): string[] {
  const found = globSync(['test/**/*.ts', '{src,scripts,web,bench,tools}/**/*.test.{ts,tsx}'], { cwd: root });
  return found.filter((path) => !path.includes('node_modules')).sort();
}

/** Paragraphs, points of a list and rows of a table with more than `limit` words: `page: first words`. Programs do not count. */
export function longParagraphs(root: string, limit: number): string[] {
  return globSync(['docs/architecture.md', 'docs/architecture/*.md'], { cwd: root }).flatMap((path) => {
    const text = readFileSync(join(root, path), 'utf8').replaceAll(/^```[\s\S]*?^```/gm, '');
    const paragraphs = text.split(/\n(?=\s*\n|\s*[-*|] |\s*\d+\. )/);
    const long = paragraphs
      .map((each) => each.split(/\s+/).filter((word) => /\w/.test(word)))
      .filter((words) => words.length > limit);
    return long.map((words) => `${path}: ${words.slice(0, 8).join(' ')}`);
  });
}
