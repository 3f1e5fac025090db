/** A screenshot with 256 colours instead of millions, a third of its size. Source: the PNG specification (W3C), 3rd edition. */
import { crc32, deflateSync, inflateSync } from 'node:zlib';

/** @throws RangeError for anything but 8 bits of red, green and blue (and alpha, which is dropped) without interlacing */
export function smallPng(png: Buffer): Buffer {
  const { width, height, pixels } = decode(png);
  const { palette, indices } = reduced(pixels);
  const rows = Buffer.alloc((width + 1) * height);
  for (let y = 0; y < height; y += 1) indices.copy(rows, y * (width + 1) + 1, y * width, (y + 1) * width);
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  // 8 bits for each pixel, which are an index of the palette.
  head.set([8, 3, 0, 0, 0], 8);
  return Buffer.concat([
    png.subarray(0, 8),
    chunk('IHDR', head),
    chunk('PLTE', Buffer.from(palette.flat())),
    chunk('IDAT', deflateSync(rows, { level: 9 })),
    chunk('IEND', Buffer.alloc(0)),
  ]);
}

type Color = readonly [red: number, green: number, blue: number];

function chunk(name: string, data: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(name, 'latin1'), data]);
  const [length, check] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  check.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, check]);
}

function decode(png: Buffer): { readonly width: number; readonly height: number; readonly pixels: readonly number[] } {
  const parts: Buffer[] = [];
  for (let at = 8; at < png.length; at += 12 + png.readUInt32BE(at)) {
    if (png.toString('latin1', at + 4, at + 8) === 'IDAT') parts.push(png.subarray(at + 8, at + 8 + png.readUInt32BE(at)));
  }
  const [width, height] = [png.readUInt32BE(16), png.readUInt32BE(20)];
  const [depth, kind, , , interlaced] = png.subarray(24, 29);
  if (depth !== 8 || (kind !== 2 && kind !== 6) || interlaced !== 0) throw new RangeError('not a picture of 8-bit colours');
  const step = kind === 2 ? 3 : 4;
  const raw = inflateSync(Buffer.concat(parts));
  const line = width * step;
  const pixels: number[] = [];
  let above = new Uint8Array(line);
  for (let y = 0; y < height; y += 1) {
    const filter = raw[y * (line + 1)] ?? 0;
    const row = new Uint8Array(raw.subarray(y * (line + 1) + 1, (y + 1) * (line + 1)));
    for (let x = 0; x < line; x += 1) {
      const [left, up, corner] = [row[x - step] ?? 0, above[x] ?? 0, x < step ? 0 : (above[x - step] ?? 0)];
      row[x] = (row[x] ?? 0) + predicted(filter, left, up, corner);
    }
    for (let x = 0; x < line; x += step) pixels.push(((row[x] ?? 0) << 16) | ((row[x + 1] ?? 0) << 8) | (row[x + 2] ?? 0));
    above = row;
  }
  return { width, height, pixels };
}

function predicted(filter: number, left: number, up: number, corner: number): number {
  if (filter === 0) return 0;
  if (filter === 1) return left;
  if (filter === 2) return up;
  if (filter === 3) return (left + up) >> 1;
  const [a, b, c] = [left, up, corner].map((one) => Math.abs(left + up - corner - one)) as unknown as Color;
  return a <= b && a <= c ? left : b <= c ? up : corner;
}

/** The most frequent colours, and for each pixel the one next to it. */
function reduced(pixels: readonly number[]): { readonly palette: readonly Color[]; readonly indices: Buffer } {
  const counts = new Map<number, number>();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  const parts = (pixel: number): Color => [pixel >> 16, (pixel >> 8) & 255, pixel & 255];
  const palette: Color[] = [];
  const distance = ([r, g, b]: Color, [x, y, z]: Color) => 2 * (r - x) ** 2 + 4 * (g - y) ** 2 + 3 * (b - z) ** 2;
  for (const [pixel] of [...counts].sort(([, a], [, b]) => b - a)) {
    const color = parts(pixel);
    // Colours that nobody can tell apart share a place.
    if (palette.length < 256 && palette.every((known) => distance(known, color) > 160)) palette.push(color);
  }
  const nearest = new Map<number, number>();
  for (const pixel of counts.keys()) {
    const color = parts(pixel);
    const found = palette.reduce(
      (best, known, at) => (distance(known, color) < distance(palette[best] ?? known, color) ? at : best),
      0,
    );
    nearest.set(pixel, found);
  }
  return { palette, indices: Buffer.from(pixels.map((pixel) => nearest.get(pixel) ?? 0)) };
}
