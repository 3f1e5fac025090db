/** Streams of bytes that end with an error when they are too long. */
import { Transform } from 'node:stream';

/** Passes bytes on; more than `limit` of them fail with `error`. `see`: gets each piece. */
export function limited(limit: number, error: () => Error, see: (piece: Uint8Array) => void = () => {}): Transform {
  let bytes = 0;
  return new Transform({
    transform(piece: Uint8Array, _encoding, done) {
      bytes += piece.length;
      see(piece);
      done(bytes > limit ? error() : null, piece);
    },
  });
}
