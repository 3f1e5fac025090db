/**
 * Tar streams on their way into a sandbox. Only owners are rewritten, in place: names go through as they are, whatever
 * bytes they are made of.
 */
import { Transform } from 'node:stream';

/** Who a sandbox's files belong to, as numbers. */
export interface Owner {
  readonly uid: number;
  readonly gid: number;
}

const block = 512;
/** Offset and length of fields in a tar header (POSIX.1-1988 ustar). */
const field = { uid: [108, 8], gid: [116, 8], size: [124, 12], checksum: [148, 8], type: [156, 1] } as const;

/** Passes a tar stream through with every entry owned by `owner`. */
export function withOwner(owner: Owner): Transform {
  let held: Buffer<ArrayBufferLike> = Buffer.alloc(0);
  /** Bytes of the present entry's body and padding that are still to come. */
  let body = 0;
  let isPax = false;
  return new Transform({
    transform(chunk: Buffer, _encoding, done) {
      held = held.length === 0 ? chunk : Buffer.concat([held, chunk]);
      const out: Buffer[] = [];
      while (held.length > 0) {
        if (body > 0) {
          // Extended headers are short, and are looked at whole.
          if (isPax && held.length < body) break;
          const part = held.subarray(0, body);
          out.push(isPax ? withoutOwnerRecords(part) : part);
          held = held.subarray(part.length);
          body -= part.length;
          continue;
        }
        if (held.length < block) break;
        const header = Buffer.from(held.subarray(0, block));
        held = held.subarray(block);
        if (header.some((byte) => byte !== 0)) {
          const size = readNumber(header, ...field.size);
          body = Math.ceil(size / block) * block;
          const type = String.fromCharCode(header[field.type[0]] ?? 0);
          isPax = (type === 'x' || type === 'g') && body <= 1024 * 1024;
          writeNumber(header, owner.uid, ...field.uid);
          writeNumber(header, owner.gid, ...field.gid);
          writeChecksum(header);
        }
        out.push(header);
      }
      done(null, out.length === 0 ? undefined : Buffer.concat(out));
    },
    flush(done) {
      done(null, held.length === 0 ? undefined : held);
    },
  });
}

/** A tar of one directory entry, for giving a directory its owner. */
export function directoryEntry(name: string, mode: number, owner: Owner): Buffer {
  const header = Buffer.alloc(block);
  header.write(name, 0, 100, 'utf8');
  writeNumber(header, mode, 100, 8);
  writeNumber(header, owner.uid, ...field.uid);
  writeNumber(header, owner.gid, ...field.gid);
  writeNumber(header, 0, ...field.size);
  writeNumber(header, 0, 136, 12);
  header.write('5', field.type[0], 'latin1');
  header.write('ustar\x0000', 257, 'latin1');
  writeChecksum(header);
  return Buffer.concat([header, Buffer.alloc(2 * block)]);
}

/** Records are `LENGTH KEY=VALUE\n`; one with an unknown key is ignored by every reader, and keeps its length. */
function withoutOwnerRecords(body: Buffer): Buffer {
  const renamed = body
    .toString('latin1')
    .replace(/((?:^|\n)\d+ )(uid|gid|uname|gname)=/g, (_, head: string, key: string) => `${head}${key.toUpperCase()}=`);
  return Buffer.from(renamed, 'latin1');
}

function readNumber(header: Buffer, offset: number, length: number): number {
  // GNU tar writes what does not fit in octal as big-endian binary, with the first bit set.
  if ((header[offset] ?? 0) & 0x80) return header.readUIntBE(offset + length - 6, 6);
  return Number.parseInt(
    header
      .toString('latin1', offset, offset + length)
      .replace(/[\0 ]+$/, '')
      .trim() || '0',
    8,
  );
}

function writeNumber(header: Buffer, value: number, offset: number, length: number): void {
  header.fill(0, offset, offset + length);
  const octal = value.toString(8);
  if (octal.length < length) {
    header.write(`${octal.padStart(length - 1, '0')}\0`, offset, length, 'latin1');
    return;
  }
  header.writeUIntBE(value, offset + length - 6, 6);
  header[offset] = 0x80;
}

function writeChecksum(header: Buffer): void {
  const [offset, length] = field.checksum;
  header.fill(0x20, offset, offset + length);
  const sum = header.reduce((total, byte) => total + byte, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, offset, length, 'latin1');
}
