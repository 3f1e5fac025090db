/**
 * Protobuf, as far as tasks of Gitea's runner service need it: fields are read, and written again as they came. Facts from
 * protobuf.dev ("Encoding", `google/protobuf/struct.proto`). All of it is foreign: what is not whole is an error.
 */

/** `value`: the content of a text, of bytes or of a message; else the number as it was written. `raw`: all of the field. */
export interface Field {
  readonly no: number;
  readonly isLong: boolean;
  readonly value: Buffer;
  readonly raw: Buffer;
}

/** Messages in messages that are read at most. */
const deepest = 100;

/** @throws RangeError when they are not whole */
export function fieldsOf(bytes: Buffer): Field[] {
  const found: Field[] = [];
  for (let at = 0; at < bytes.length; ) {
    const from = at;
    const number = (): number => {
      const [value, next] = varint(bytes, at);
      at = next;
      return value;
    };
    const tag = number();
    const [no, kind] = [Math.floor(tag / 8), tag % 8];
    const isLong = kind === 2;
    if (no === 0 || ![0, 1, 2, 5].includes(kind)) throw new RangeError('a field of an unknown kind');
    if (kind === 0) {
      const start = at;
      number();
      found.push({ no, isLong, value: bytes.subarray(start, at), raw: bytes.subarray(from, at) });
      continue;
    }
    const size = isLong ? number() : kind === 1 ? 8 : 4;
    if (size > bytes.length - at) throw new RangeError('a field that is not whole');
    at += size;
    found.push({ no, isLong, value: bytes.subarray(at - size, at), raw: bytes.subarray(from, at) });
  }
  return found;
}

/** The last such field, which counts; null if the message lacks it. */
export function fieldOf(fields: readonly Field[], no: number): Field | null {
  return fields.findLast((one) => one.no === no) ?? null;
}

/** A number that is a varint; 0 without one. Exact up to 2^53. */
export const protoNumber = (field: Field | null): number => (field === null || field.isLong ? 0 : varint(field.value, 0)[0]);

export function longField(no: number, value: Uint8Array): Buffer<ArrayBuffer> {
  return Buffer.concat([Buffer.from(varintOf(no * 8 + 2)), Buffer.from(varintOf(value.length)), value]);
}

export function varintOf(value: number): number[] {
  return value < 128 ? [value] : [(value % 128) + 128, ...varintOf(Math.floor(value / 128))];
}

/** A `map<string, …>`: key and value are the fields 1 and 2 of each entry. */
export function entriesOf(fields: readonly Field[], no: number): [key: string, value: Buffer][] {
  return fields
    .filter((one) => one.no === no)
    .map(({ value }) => {
      const entry = fieldsOf(value);
      return [fieldOf(entry, 1)?.value.toString() ?? '', fieldOf(entry, 2)?.value ?? Buffer.alloc(0)];
    });
}

/** A `google.protobuf.Struct` as an object without prototype. */
export function structOf(bytes: Buffer, depth = 0): Readonly<Record<string, unknown>> {
  if (depth > deepest) throw new RangeError('a message that is too deep');
  const found: Record<string, unknown> = Object.create(null);
  for (const [key, value] of entriesOf(fieldsOf(bytes), 1)) found[key] = anyOf(value, depth + 1);
  return found;
}

function anyOf(bytes: Buffer, depth: number): unknown {
  if (depth > deepest) throw new RangeError('a message that is too deep');
  const field = fieldsOf(bytes).at(-1);
  switch (field?.no) {
    case 2:
      return field.value.readDoubleLE();
    case 3:
      return field.value.toString();
    case 4:
      return protoNumber(field) !== 0;
    case 5:
      return structOf(field.value, depth + 1);
    case 6:
      return fieldsOf(field.value).map(({ value }) => anyOf(value, depth + 1));
    default:
      return null;
  }
}

function varint(bytes: Buffer, from: number): [value: number, next: number] {
  let value = 0;
  for (let [at, factor] = [from, 1]; at < bytes.length && at < from + 10; at += 1, factor *= 128) {
    const byte = bytes[at] ?? 0;
    value += (byte % 128) * factor;
    if (byte < 128) return [value, at + 1];
  }
  throw new RangeError('a number that is not whole');
}
