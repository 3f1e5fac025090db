/** `secret keygen`, `encrypt`, `decrypt`, `rotate`, `pins`, `allow` and `forget`: their options and help. */
import type { EncryptFlags, KeygenFlags, PinFlags, RotateFlags } from '../secret.ts';
import { type Cli, wrongOrFailed } from './options.ts';

const codes = 'Exit codes: 0; 1 if it failed, with the reason; 2 wrong usage.';

export function addSecretCommands(program: Cli): void {
  const secret = program.command('secret').description('manage encrypted values for pipelines, and the keys that decrypt them');
  addKeygen(secret);
  addEncryptAndDecrypt(secret);
  addRotate(secret);
  addPins(secret);
}

function addKeygen(secret: Cli): void {
  secret
    .command('keygen')
    .local()
    .description('create a private key in a file that only this user can read, and print its public key')
    .argument('[file]', 'the key file', 'secrets.key')
    .option('--rsa', 'for the old format, which OpenSSL scripts read')
    .option('--add', 'keep the keys that are in the file, after the new one')
    .option('--force', 'overwrite the file; values encrypted for its keys are lost')
    .after(`
Examples:
  onejob secret keygen /etc/onejob/secrets.key >secrets.public
  onejob secret keygen --add /etc/onejob/secrets.key       a new key; values for the old one can still be decrypted

On each host that may decrypt secrets, the config names the file: secrets: { key: { file: /etc/onejob/secrets.key } }
${codes}`)
    .does(wrongOrFailed, async (session, file: string, flags: KeygenFlags) =>
      (await import('../secret.ts')).keygen(session, file, flags),
    );
}

function addEncryptAndDecrypt(secret: Cli): void {
  secret
    .command('encrypt')
    .local()
    .description('encrypt a value for one variable of one pipeline; type it at a hidden prompt, or pass it on standard input')
    .requiredOption('--key <public>', 'public key, or a file that contains it')
    .requiredOption('--name <name>', 'variable that the job gets it in, without SECRET_')
    .pipelines()
    .option('--seed-format', 'write the old format, for programs other than onejob; needs an RSA key')
    .option('--keep-newline', 'keep the newline at the end of standard input, which private key files need')
    .option('--yaml', 'print the lines for the pipeline even into a pipe')
    .after(`
Examples:
  onejob secret encrypt --key age1… --name CODECOV_TOKEN --organization acme --pipeline solver
  pass show codecov | onejob secret encrypt --key secrets.public --name CODECOV_TOKEN --pipeline acme/solver --pipeline acme/docs
  onejob secret encrypt --key age1… --name DEPLOY_KEY --pipeline acme/site --keep-newline <id_ed25519
  onejob secret encrypt --key age1… --name MIRROR --organization acme --pipeline '*'

One newline at the end of standard input is removed; nothing else changes. On a terminal it prints lines for the
pipeline; into a pipe it prints only the encrypted value. ${codes}`)
    .does(wrongOrFailed, async (session, flags: EncryptFlags) => (await import('../secret.ts')).encrypt(session, flags));

  secret
    .command('decrypt')
    .local()
    .description('decrypt the value on standard input, in either format, and print it')
    .requiredOption('--key <private>', 'file with the private key')
    .after(`
Examples:
  onejob secret decrypt --key /etc/onejob/secrets.key <value.txt
  grep SECRET_CODECOV pipeline.yml | onejob secret decrypt --key /etc/onejob/secrets.key

Standard output is exactly the value; standard error names its variable and pipelines. ${codes}`)
    .does(wrongOrFailed, async (session, flags: { key: string }) => (await import('../secret.ts')).decrypt(session, flags));
}

function addRotate(secret: Cli): void {
  secret
    .command('rotate')
    .local()
    .description('re-encrypt every value in a text for another key; everything else stays the same, byte for byte')
    .requiredOption('--key <private>', 'file with the keys that decrypt the current values')
    .requiredOption('--to <public>', 'public key, or a file that contains it')
    .pipelines('for values in the old format, which do not contain it: ')
    .option('--name <name>', 'for a single value that comes without its variable')
    .option('--seed-format', 'write the old format again, for another RSA key')
    .after(`
Examples:
  onejob secret rotate --key secrets.key --to age1… <pipeline.yml >new.yml
  onejob secret rotate --key old.pem --to age1… --pipeline acme/solver <pipeline.yml >new.yml    from the old format

Values in the new format keep their variable and pipelines. Before you name a pipeline for old values, check that they
belong to it: the author of the text could have copied them from elsewhere.
Exit codes: 0; 1 when a value was left unchanged, with its line and the reason; 2 wrong usage.`)
    .does(wrongOrFailed, async (session, flags: RotateFlags) => (await import('../secret.ts')).rotate(session, flags));
}

function addPins(secret: Cli): void {
  secret
    .command('pins')
    .description('list values in the old format that were used on this host, and which pipelines may use them')
    .after('\nExample:\n  onejob secret pins --json | jq -r .fingerprint')
    .does(wrongOrFailed, async (session) => (await import('../secret.ts')).listPins(session));

  secret
    .command('allow')
    .description('allow one more pipeline to use a value in the old format, or set its owner before its first use')
    .argument('[fingerprint]', 'from the job\'s message or "secret pins"')
    .pipelines()
    .option('--value-from-stdin', 'read the encrypted value from standard input instead of giving its fingerprint')
    .after(`
Examples:
  onejob secret allow --pipeline acme/docs 5e95bd57c0ffee00
  onejob secret allow --pipeline acme/solver --value-from-stdin <value.txt
  grep SECRET_CODECOV pipeline.yml | onejob secret allow --pipeline acme/solver --value-from-stdin

Takes effect at once, on this host only. ${codes}`)
    .does(wrongOrFailed, async (session, fingerprint: string | undefined, flags: PinFlags) =>
      (await import('../secret.ts')).allow(session, fingerprint ?? null, flags),
    );

  secret
    .command('forget')
    .description('revoke what "allow" or a first use granted')
    .argument('[fingerprint]', 'from "secret pins"')
    .pipelines('default: all, so that the next pipeline that uses it becomes its owner: ')
    .option('--value-from-stdin', 'read the encrypted value from standard input instead of giving its fingerprint')
    .after(`
Example:
  onejob secret forget --pipeline acme/docs 5e95bd57c0ffee00

This does not remove the only pipeline of a value: "allow" another one first.`)
    .does(wrongOrFailed, async (session, fingerprint: string | undefined, flags: PinFlags) =>
      (await import('../secret.ts')).forget(session, fingerprint ?? null, flags),
    );
}
