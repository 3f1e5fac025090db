/** Keys of the config for machines in clouds: an entry of `hosts`, what all entries of `clouds` have, and `join`. */
import { key, sha256 } from './key.ts';

export const hostKeys = {
  cloud: key((v) => v.text('the name of a cloud', v.word), undefined, 'name', {
    description: 'Where onejob creates its machines: a key of `clouds`.',
    example: 'aws',
  }),
  types: key((v) => v.z.array(v.text('a type of machine', v.oneLine)), undefined, 'list', {
    description: 'Types of machines, in order of preference. onejob requests the next one if the cloud has none of the first.',
    example: '[g6.xlarge, g5.xlarge, g4dn.xlarge]',
  }),
  spot: key((v) => v.oneOf(['never', 'prefer', 'only']), 'never', {
    description:
      'Whether the cloud may take its machines back at any time, for a lower price. `prefer`: onejob tries all `types` that way first. A job that runs when the cloud takes a machine back counts as failed by infrastructure.',
    example: 'prefer',
  }),
  min: key((v) => v.integer(0, 1000), 0, { description: 'How many machines there are without any job.', example: '1' }),
  max: key((v) => v.integer(1, 1000), 1, { description: 'How many machines there are at most.', example: '4' }),
  idle: key((v) => v.duration(60_000, '1m'), 600_000, {
    description: 'How long a machine stays after its last job.',
    example: '10m',
  }),
  lifetime: key((v) => v.duration(900_000, '15m'), 6 * 3_600_000, {
    description:
      'How long a machine lives at most. The cloud itself ends it then, whatever happens to onejob. It takes no new jobs in the last tenth of it, at most 15 minutes.',
    example: '6h',
  }),
  boot: key((v) => v.duration(60_000, '1m'), 1_200_000, {
    description:
      'How long a machine may take until it has joined, and how long it may then be unable to work without a job. After that another one replaces it.',
    example: '20m',
  }),
  budget: key((v) => v.strict(budgetKeys), undefined, {
    description:
      'What its machines may cost, by estimate. When it is used up, onejob creates no further machine; existing ones continue.',
    example: '{ per_day: 40 USD }',
  }),
  prices: key((v) => v.z.record(v.z.string(), v.numeric(0, 10_000)), undefined, 'map', {
    description: 'USD per hour by type, instead of the list prices that onejob knows.',
    example: '{ g6.xlarge: 0.62 }',
    shown: 'list prices, see the page of the cloud',
  }),
  image: key((v) => v.either(v.isMap, v.strict(cloudImageKeys), v.oneOf(['auto'])), 'auto', '`auto` or map', {
    description: 'What its machines boot from. `auto`: an image of the cloud with a driver, see its page.',
    example: '{ from: ami-0abc1234def567890, has: everything }',
  }),
  disk: key((v) => v.size(10 * 2 ** 30, '10GiB'), 100 * 2 ** 30, {
    description: 'Size of the boot disk, which also has images and sandboxes.',
    example: '200GiB',
  }),
  opengl: key((v) => v.oneOf(['none', 'egl', 'glx']), 'none', {
    description:
      'OpenGL for jobs. `egl`: off screen. `glx`: an X server on the machine, which all its jobs share; mount `/tmp/.X11-unix`.',
    example: 'egl',
  }),
  setup: key((v) => v.z.array(v.text('a command', v.oneLine)), [] as never[], 'list', {
    description: 'Shell commands that each machine runs as root before it joins. They must contain no secret.',
    example: '["mkdir -p /data && mount -t nfs files:/data /data"]',
  }),
  pools: key((v) => v.z.record(v.z.string(), v.z.unknown()), undefined, 'map', {
    description: 'Pools of each machine, as `pools` of the top level has them; `defaults` apply.',
    example: '{ gpu: { agents: per-device, devices: 1 } }',
  }),
};

export const budgetKeys = {
  per_day: key((v) => v.money, undefined, 'amount', { description: 'USD per day, from 00:00 UTC.', example: '40 USD' }),
};

export const cloudImageKeys = {
  from: key((v) => v.text('an image of the cloud', v.oneLine), undefined, {
    description: 'The image, as the cloud names it; see the page of the cloud.',
    example: 'ami-0abc1234def567890',
  }),
  has: key((v) => v.oneOf(['everything', 'driver', 'nothing']), 'everything', {
    description:
      'What the image contains; the machine installs the rest when it boots. `everything`: driver, Docker and the NVIDIA container toolkit.',
    example: 'driver',
  }),
};

/** Of an entry of `clouds`, whatever its type. */
export const cloudKeys = {
  owner: key((v) => v.text('letters, digits, "-" and "_" in lower case', /^[a-z0-9][a-z0-9_-]{0,62}$/), undefined, {
    description:
      'Who owns the machines, in the tags of everything that onejob creates. `onejob cloud sweep` and a pipeline without state find machines by their owner, so each installation needs its own.',
    example: 'acme-ci',
    shown: 'the id of the installation',
  }),
};

export const joinKeys = {
  through: key((v) => v.oneOf(['cloud']), undefined, {
    description:
      'Instead of `listen` and `url`: how machines join if they cannot reach this daemon. `cloud`: they write to their console, and read what the cloud keeps for them. `package` must then be a URL.',
    example: 'cloud',
  }),
  listen: key((v) => v.listen, undefined, '`ADDRESS:PORT`', {
    description: 'Where machines in clouds reach this daemon, see `url`. Machines only open connections; they accept none.',
    example: '"0.0.0.0:7718"',
  }),
  url: key((v) => v.text('an address such as "https://ci.example.org:7718"', /^https?:\/\/[^\s/?#]+(\/[^\s?#]*)?$/), undefined, {
    description: 'The address of `listen` as machines see it. It must be https, because credentials of services travel over it.',
    example: '"https://ci.example.org:7718"',
  }),
  tls_cert: key((v) => v.absolute, undefined, {
    description: 'Certificate for TLS, with the chain, in PEM. Without it a proxy in front of `listen` must encrypt.',
    example: '/etc/onejob/tls.pem',
  }),
  tls_key: key((v) => v.absolute, undefined, {
    description: 'The key of the certificate, in PEM.',
    example: '/etc/onejob/tls.key',
  }),
  ca: key((v) => v.absolute, undefined, {
    description: 'Certificate of your own authority, or the self-signed one of `tls_cert`, in PEM. Machines then accept only that.',
    example: '/etc/onejob/ca.pem',
    shown: 'public authorities',
  }),
  package: key((v) => v.text('a path or an https address', /^(\/|https:\/\/)\S+$/), undefined, 'path or address', {
    description: 'The release archive of onejob that machines install. onejob serves a file of this host to them.',
    example: '/srv/onejob-0.1.0-linux-x64.tar.gz',
  }),
  sha256: sha256('Checksum of the archive at an address.', 'that of the file'),
};
