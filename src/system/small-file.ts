/**
 * Small files that may lie on a file server. A read of a server that is away never ends, takes one of the few threads that all reads
 * of this process share, and keeps the process from ending. So a program of its own reads what does not lie on this host.
 */
import { constants } from 'node:fs';
import { open } from 'node:fs/promises';
import { askAt } from './file-server.ts';
import { ownMounts } from './mountinfo.ts';
import { follow } from './real-path.ts';

/** The file server of a file does not answer. */
export class ServerAway extends Error {}

export interface SmallFile {
  readonly isFile: boolean;
  readonly mode: number;
  readonly size: number;
  /** Empty if it is larger than was asked for, or is not a file. */
  readonly text: string;
}

/** A file of at most `most` bytes. @throws ServerAway, or what the system says */
export async function readSmall(path: string, most: number, mountinfo = ownMounts()): Promise<SmallFile> {
  const { server } = follow(path, mountinfo);
  return server === null ? await readHere(path, most) : await readThere(path, server, most);
}

async function readHere(path: string, most: number): Promise<SmallFile> {
  // A pipe without a writer would be waited for, too.
  await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  const found = await file.stat();
  const { mode, size } = found;
  const isFile = found.isFile();
  return { isFile, mode: mode & 0o777, size, text: isFile && size <= most ? await file.readFile('utf8') : '' };
}

const program = `
const { constants, fstatSync, openSync, readFileSync } = require('node:fs');
const [, path, most] = process.argv.slice(1);
try {
  const file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
  const found = fstatSync(file);
  const isFile = found.isFile();
  const text = isFile && found.size <= Number(most) ? readFileSync(file, 'utf8') : '';
  process.stdout.write(JSON.stringify({ isFile, mode: found.mode & 0o777, size: found.size, text }));
} catch (error) {
  process.stdout.write(JSON.stringify({ code: error.code, message: error.message }));
}`;

/** What the program says. */
type Said = SmallFile | { readonly code: string; readonly message: string };

async function readThere(path: string, server: string, most: number): Promise<SmallFile> {
  // As it was written above.
  const said = (await askAt(server, program, [path, String(most)])) as Said | null | undefined;
  if (said == null) throw new ServerAway('its file server does not answer');
  if ('code' in said) throw Object.assign(new Error(said.message), { code: said.code });
  return said;
}
