/** Prints the rooms of the source into `docs/architecture.md`, from the ground up. */
import { rooms } from './house/floors.ts';

const marks = ['<!-- Printed by "npm run docs" from scripts/house/floors.ts. -->', '<!-- End of the rooms. -->'] as const;

export function withRooms(page: string): string {
  const [first, last] = [page.indexOf(marks[0]), page.indexOf(marks[1])];
  if (first < 0 || last < first) throw new Error('docs/architecture.md has no place for the rooms.');
  const rows = rooms.map(({ name, guarantee, start }) => {
    const places = start.map((file) => `[\`${file}\`](../src/${name}/${file})`).join(', ');
    return `| [\`${name}\`](../src/${name}) | ${guarantee} | ${places} |`;
  });
  const table = ['| Room | What the others can rely on | Start reading at |', '|---|---|---|', ...rows].join('\n');
  return `${page.slice(0, first + marks[0].length)}\n\n${table}\n\n${page.slice(last)}`;
}
