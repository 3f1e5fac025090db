import { describe, expect, it } from 'vitest';
import { handClock } from '../../../test/kit/core.ts';
import { keyOf, mailText, openBox, packBox, parseMail, readMail } from './mail.ts';
import { hashOf, type JoinAnswer, newSecret } from './protocol.ts';

const answer: JoinAnswer = {
  config: 'pools: {}\n',
  files: [{ path: '/run/onejob-cloud/secrets/hub', mode: '0600', content: Buffer.from('a secret').toString('base64') }],
  beat: 15,
};

async function machine() {
  const { identityToRecipient } = await import('age-encryption');
  const key = await keyOf(newSecret());
  return { key, recipient: await identityToRecipient(key) };
}

describe('mail', () => {
  it('is read as it was written', () => {
    for (const mail of [
      { do: 'stay', at: 1_900_000_000, box: Buffer.from('box') },
      { do: 'drain', at: 0, box: null },
    ] as const)
      expect(parseMail(mailText(mail))).toEqual(mail);
  });

  it.each(['', 'stay', 'stay 1', 'leave 1 -', 'stay one -', 'drain 1 - ', 'end 1 -\nend 2 -', '#cloud-config\n{}'])(
    'that is %j does not count',
    (text) => {
      expect(parseMail(text)).toEqual(text === 'drain 1 - ' ? { do: 'drain', at: 1, box: null } : null);
    },
  );

  it('has what the machine gets only for the key of this machine, and from who knows its token', async () => {
    const [one, another] = [await machine(), await machine()];
    const hash = hashOf(newSecret());
    const box = await packBox(answer, one.recipient, hash);
    expect(await openBox(box, one.key, hash)).toEqual(answer);
    expect(await openBox(box, another.key, hash)).toBeNull();
    expect(await openBox(box, one.key, hashOf(newSecret()))).toBeNull();
    expect(await openBox(Buffer.concat([box.subarray(0, -1), Buffer.of(0)]), one.key, hash)).toBeNull();
    expect(await openBox(Buffer.from('nothing'), one.key, hash)).toBeNull();
    expect(box.toString('latin1')).not.toContain('secret');
  });

  it('that the metadata service cannot give now is an error, not the absence of mail', async () => {
    const fetch = async () => new Response('', { status: 503 });
    const never = new AbortController().signal;
    for (const cloud of ['aws', 'gcp', 'azure'] as const)
      await expect(readMail(cloud, { clock: handClock(), fetch }, never)).rejects.toThrow('answered 503');
  });
});
