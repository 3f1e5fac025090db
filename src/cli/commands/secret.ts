/** `secret keygen`, `encrypt`, `decrypt`, `rotate`, `pins`, `allow` and `forget`: their options and help. */
import { type Command, Option } from 'commander';
import type { EncryptFlags, RotateFlags } from '../secret.ts';
import type { KeygenFlags } from '../secret-keygen.ts';
import type { PinFlags } from '../secret-pins.ts';
import { type Act, collect, does, wrongOrFailed } from './options.ts';

const codes = 'Exit codes: 0; 1 when it could not be done, with the reason; 2 wrong usage.';

export function addSecretCommands(program: Command, act: Act): void {
  const secret = program.command('secret').description('encrypted values for pipelines, and the keys that open them');
  addKeygen(secret, act);
  addEncrypt(secret, act);
  addDecrypt(secret, act);
  addRotate(secret, act);
  addPins(secret, act);
}

function addKeygen(secret: Command, act: Act): void {
  const command = secret
    .command('keygen')
    .description('make a private key, in a file for this user only, and print its public half')
    .argument('[file]', 'the key file', 'secrets.key')
    .option('--rsa', 'for the old format, which the scripts around OpenSSL read')
    .option('--add', 'keep the keys that are in the file, behind the new one')
    .option('--force', 'overwrite the file; what was encrypted for its keys is lost')
    .addHelpText(
      'after',
      `
Examples:
  onejob secret keygen /etc/onejob/secrets.key >secrets.public
  onejob secret keygen --add /etc/onejob/secrets.key       a new key, while values for the old one still open

The config of each host that may open secrets names the file: secrets: { key: { file: /etc/onejob/secrets.key } }
${codes}`,
    );
  does(command, act, wrongOrFailed, async (session, file: string, flags: KeygenFlags) =>
    (await import('../secret-keygen.ts')).keygen(session, file, flags),
  );
}

function addEncrypt(secret: Command, act: Act): void {
  const command = secret
    .command('encrypt')
    .description('encrypt a value for one variable of one pipeline; it is typed unseen, or comes on standard input')
    .requiredOption('--key <public>', 'public key, or a file with it')
    .requiredOption('--name <name>', 'variable the job gets it in, without SECRET_');
  pipelineOptions(command)
    .option('--seed-format', 'write the old format, for readers other than onejob; needs an RSA key')
    .option('--keep-newline', 'keep the newline that ends standard input, as files of private keys need it')
    .option('--yaml', 'print the lines for the pipeline also into a pipe')
    .addHelpText(
      'after',
      `
Examples:
  onejob secret encrypt --key age1… --name CODECOV_TOKEN --organization acme --pipeline solver
  pass show codecov | onejob secret encrypt --key secrets.public --name CODECOV_TOKEN --pipeline acme/solver --pipeline acme/docs
  onejob secret encrypt --key age1… --name DEPLOY_KEY --pipeline acme/site --keep-newline <id_ed25519
  onejob secret encrypt --key age1… --name MIRROR --organization acme --pipeline '*'

Of standard input one newline at its end is dropped; nothing else is changed. On a terminal it prints lines for the
pipeline, into a pipe the encrypted value alone. ${codes}`,
    );
  does(command, act, wrongOrFailed, async (session, flags: EncryptFlags) => (await import('../secret.ts')).encrypt(session, flags));
}

function addDecrypt(secret: Command, act: Act): void {
  const command = secret
    .command('decrypt')
    .description('print the value of an encrypted one, of either format, that comes on standard input')
    .requiredOption('--key <private>', 'file with the private key')
    .addHelpText(
      'after',
      `
Examples:
  onejob secret decrypt --key /etc/onejob/secrets.key <value.txt
  grep SECRET_CODECOV pipeline.yml | onejob secret decrypt --key /etc/onejob/secrets.key

Standard output is the value exactly; which variable and pipelines it is for is said on standard error. ${codes}`,
    );
  does(command, act, wrongOrFailed, async (session, flags: { key: string }) =>
    (await import('../secret.ts')).decrypt(session, flags),
  );
}

function addRotate(secret: Command, act: Act): void {
  const command = secret
    .command('rotate')
    .description('encrypt every value in a text for another key; everything else stays, byte for byte')
    .requiredOption('--key <private>', 'file with the keys that open what is there')
    .requiredOption('--to <public>', 'public key, or a file with it');
  pipelineOptions(command, 'of values in the old format, which do not say it: ')
    .option('--name <name>', 'of a single value that comes without its variable')
    .option('--seed-format', 'write the old format again, for another RSA key')
    .addHelpText(
      'after',
      `
Examples:
  onejob secret rotate --key secrets.key --to age1… <pipeline.yml >new.yml
  onejob secret rotate --key old.pem --to age1… --pipeline acme/solver <pipeline.yml >new.yml    from the old format

Values of the new format keep their variable and pipelines. Before you name a pipeline for old values, look whether they
are its own: whoever wrote the text could have copied them from elsewhere.
Exit codes: 0; 1 when a value was left as it is, with its line and the reason; 2 wrong usage.`,
    );
  does(command, act, wrongOrFailed, async (session, flags: RotateFlags) => (await import('../secret.ts')).rotate(session, flags));
}

function addPins(secret: Command, act: Act): void {
  const pins = secret
    .command('pins')
    .description('values of the old format that were used on this host, and which pipelines may use them')
    .addHelpText('after', '\nExample:\n  onejob secret pins --json | jq -r .fingerprint');
  does(pins, act, wrongOrFailed, async (session) => (await import('../secret-pins.ts')).listPins(session));

  const allow = secret
    .command('allow')
    .description('let one more pipeline use a value of the old format, or say whose it is before any uses it')
    .argument('[fingerprint]', 'from the job\'s message or "secret pins"');
  pipelineOptions(allow)
    .option('--value-from-stdin', 'the encrypted value is on standard input, instead of its fingerprint')
    .addHelpText(
      'after',
      `
Examples:
  onejob secret allow --pipeline acme/docs 5e95bd57c0ffee00
  onejob secret allow --pipeline acme/solver --value-from-stdin <value.txt
  grep SECRET_CODECOV pipeline.yml | onejob secret allow --pipeline acme/solver --value-from-stdin

Holds at once, on this host only. ${codes}`,
    );
  does(allow, act, wrongOrFailed, async (session, fingerprint: string | undefined, flags: PinFlags) =>
    (await import('../secret-pins.ts')).allow(session, fingerprint ?? null, flags),
  );

  const forget = secret
    .command('forget')
    .description('take back what "allow" or a first use gave')
    .argument('[fingerprint]', 'from "secret pins"');
  pipelineOptions(forget, 'default: all, so that the next to use it is its owner: ')
    .option('--value-from-stdin', 'the encrypted value is on standard input, instead of its fingerprint')
    .addHelpText(
      'after',
      `
Example:
  onejob secret forget --pipeline acme/docs 5e95bd57c0ffee00

The only pipeline of a value is not taken from it so: "allow" another one first.`,
    );
  does(forget, act, wrongOrFailed, async (session, fingerprint: string | undefined, flags: PinFlags) =>
    (await import('../secret-pins.ts')).forget(session, fingerprint ?? null, flags),
  );
}

function pipelineOptions(command: Command, lead = ''): Command {
  return command
    .option('--organization <slug>', `${lead}organisation of the pipelines; may be repeated`, collect)
    .addOption(new Option('--organisation <slug>').argParser(collect).hideHelp())
    .option('--pipeline <slug>', "its slug, or ORGANISATION/SLUG, or '*' for all; may be repeated", collect);
}
