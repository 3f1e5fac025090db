/** Which numbers a container's user stands for: images name users, tar entries count them. */
import { text } from 'node:stream/consumers';
import { extract } from 'tar-stream';
import { OnejobError } from '../../errors.ts';
import type { Owner } from './archive.ts';
import type { Engine } from './engine.ts';

/** `user` as Docker takes it: empty, `name`, `uid`, `name:group`, `uid:gid`. */
export async function ownerOf(engine: Engine, container: string, user: string, signal: AbortSignal): Promise<Owner> {
  const [name = '', group] = user.split(':');
  if (name === '' || name === 'root' || (name === '0' && group === undefined))
    return { uid: 0, gid: await groupId(engine, container, group, 0, signal) };
  const isNumber = /^\d+$/.test(name);
  if (isNumber && group !== undefined && /^\d+$/.test(group)) return { uid: Number(name), gid: Number(group) };
  const lines = await readLines(engine, container, '/etc/passwd', signal);
  const entry = lines.map((line) => line.split(':')).find((fields) => (isNumber ? fields[2] === name : fields[0] === name));
  if (entry === undefined && !isNumber) {
    throw new OnejobError('E_USER_UNKNOWN', `Cannot make a sandbox for user "${user}": the image has no such user.`, {
      hint: 'Write a uid, or uid:gid, or a user of the image.',
    });
  }
  return { uid: Number(entry?.[2] ?? name), gid: await groupId(engine, container, group, Number(entry?.[3] ?? 0), signal) };
}

async function groupId(
  engine: Engine,
  container: string,
  group: string | undefined,
  otherwise: number,
  signal: AbortSignal,
): Promise<number> {
  if (group === undefined || group === '') return otherwise;
  if (/^\d+$/.test(group)) return Number(group);
  const lines = await readLines(engine, container, '/etc/group', signal);
  const entry = lines.map((line) => line.split(':')).find((fields) => fields[0] === group);
  if (entry !== undefined) return Number(entry[2]);
  throw new OnejobError('E_USER_UNKNOWN', `Cannot make a sandbox for group "${group}": the image has no such group.`, {
    hint: 'Write a gid, or a group of the image.',
  });
}

async function readLines(engine: Engine, container: string, path: string, signal: AbortSignal): Promise<string[]> {
  const archive = await engine.getArchive(container, path, signal);
  if (archive === null) return [];
  for await (const entry of archive.pipe(extract())) {
    if (entry.header.type === 'file') return (await text(entry)).split('\n');
    entry.resume();
  }
  return [];
}
