/**
 * What a controller tells a machine that cannot call it: one text at the machine's entry in the cloud, see `Cloud.deliver`, which
 * the machine reads from its metadata service: `ORDER TIME BOX`. The box has what the machine gets when it joins, encrypted with age
 * for the key that it made, and proves with the hash of the join token who made it. An order has no such proof: who may write there
 * may also end the machine.
 *
 * AWS: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/work-with-tags-in-IMDS.html
 * GCP: https://cloud.google.com/compute/docs/metadata/querying-metadata
 * Azure: https://learn.microsoft.com/azure/virtual-machines/user-data
 */
import { createHash, type webcrypto } from 'node:crypto';
import { gunzipSync, gzipSync } from 'node:zlib';
import { z } from 'zod';
import { jsonOf } from '../../system/json.ts';
import { awsHeaders, awsToken, azureHeaders, gcpHeaders, type MetadataParts, metadataOf } from './metadata.ts';
import { type JoinAnswer, joinAnswer, type MachineFile, type Order } from './protocol.ts';

export interface Mail {
  readonly do: Order;
  /** When it was written: two with the same order differ by it. s since the epoch. */
  readonly at: number;
  /** null: it has none. */
  readonly box: Buffer | null;
}

/** An age recipient for X25519. */
const recipientText = z.string().regex(/^age1[a-z0-9]{58}$/);
export const joinLine = z.object({ recipient: recipientText, version: z.string().min(1).max(64) });

const contents = joinAnswer.extend({ proof: z.string() });
/** Bytes of an opened box. */
const mostContents = 16 * 1024 * 1024;

export function mailText({ do: order, at, box }: Mail): string {
  return `${order} ${at} ${box === null ? '-' : box.toString('base64')}`;
}

/** null: it is not mail. */
export function parseMail(text: string): Mail | null {
  const [, order, at, box = ''] = /^(stay|drain|end) (\d{1,12}) (-|[A-Za-z0-9+/]+={0,2})$/.exec(text.trim()) ?? [];
  return order === undefined ? null : { do: order as Order, at: Number(at), box: box === '-' ? null : Buffer.from(box, 'base64') };
}

/** `tokenHash`: of the machine's join token. */
export async function packBox(answer: JoinAnswer, recipient: string, tokenHash: string): Promise<Buffer> {
  const { Encrypter } = await import('age-encryption');
  const encrypter = new Encrypter();
  encrypter.addRecipient(recipient);
  const packed = gzipSync(JSON.stringify({ ...answer, proof: tokenHash }), { level: 9 });
  return Buffer.from(await encrypter.encrypt(packed));
}

/** null: it is not for this key, or not of who knows the token. */
export async function openBox(box: Buffer, key: webcrypto.CryptoKey, tokenHash: string): Promise<JoinAnswer | null> {
  const { Decrypter } = await import('age-encryption');
  const decrypter = new Decrypter();
  decrypter.addIdentity(key);
  try {
    const packed = await decrypter.decrypt(box);
    const found = contents.parse(jsonOf(gunzipSync(packed, { maxOutputLength: mostContents }).toString()));
    const { proof, ...answer } = found;
    return proof === tokenHash ? answer : null;
  } catch {
    return null;
  }
}

/** The key of a machine, from its credential: 32 random bytes are an X25519 key (RFC 7748, in the form of RFC 8410). */
export async function keyOf(credential: string): Promise<webcrypto.CryptoKey> {
  const der = Buffer.concat([Buffer.from('302e020100300506032b656e04220420', 'hex'), Buffer.from(credential, 'base64url')]);
  return crypto.subtle.importKey('pkcs8', der, { name: 'X25519' }, false, ['deriveBits']);
}

/** Reads the machine's mail from its metadata service; null: there is none, or not all of it. @throws Error without an answer */
export async function readMail(cloud: MachineFile['cloud'], parts: MetadataParts, signal: AbortSignal): Promise<Mail | null> {
  const ask = metadataOf(parts);
  const textAt = async (path: string, headers: Readonly<Record<string, string>>): Promise<string> => {
    const { status, text } = await ask(path, headers, signal);
    if (status !== 200 && status !== 404) throw new Error(`the metadata service answered ${status}`);
    return status === 200 ? text : '';
  };
  switch (cloud) {
    case 'command':
    case 'none':
      return null;
    case 'aws': {
      const headers = awsHeaders(await awsToken(ask, 60, signal));
      const tag = (key: string): Promise<string> => textAt(`/latest/meta-data/tags/instance/${key}`, headers);
      const [, count = 0, sum] = /^(\d{1,2}) ([0-9a-f]{64})$/.exec((await tag('onejob-mail')).trim()) ?? [];
      let text = '';
      for (let piece = 1; piece <= Number(count); piece++) text += await tag(`onejob-mail-${piece}`);
      // Tags may change while they are read.
      return createHash('sha256').update(text).digest('hex') === sum ? parseMail(text) : null;
    }
    case 'gcp':
      return parseMail(await textAt('/computeMetadata/v1/instance/attributes/onejob-mail', gcpHeaders));
    case 'azure': {
      const path = '/metadata/instance/compute/userData?api-version=2021-01-01&format=text';
      return parseMail(Buffer.from(await textAt(path, azureHeaders), 'base64').toString());
    }
  }
}
