/** Values that services of several types have. */
import { secretReference } from './parts.ts';
import { key, no, value, yes } from './values.ts';

export const token = (description: string) =>
  key(secretReference, 'secret', { description, example: '{ file: /etc/onejob/token, expires: 2027-05-01 }' });

export const sha256 = (description: string, shown: string) =>
  key(
    value((found) => {
      if (typeof found === 'string' && /^[0-9a-f]{64}$/i.test(found)) return yes(found.toLowerCase());
      return no('expected a SHA-256 checksum: 64 digits 0 to 9 and a to f');
    }),
    'checksum',
    { description, example: '3f0c9be6b6a1c5d2e4f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e', shown },
  );
