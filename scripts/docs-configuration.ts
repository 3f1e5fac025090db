/** The tables of `docs/configuration.md` and `docs/configuration/`, printed from the schema so that they cannot lie. */
import type { z } from 'zod';
import { types } from '../src/cli/types.ts';
import { show } from '../src/config/explain.ts';
import { hostFile, hostMaps, nestedKeys, poolFile, schemasOf, topFile } from '../src/config/interpret.ts';
import { peopleGroupKeys } from '../src/config/keys.ts';
import { titlesOf, titlesWith } from '../src/config/types.ts';
import type { Described } from '../src/schema/about.ts';
import { aboutOf } from '../src/schema/kinds.ts';
import { strict } from '../src/schema/strict.ts';

/** Keys that most configs have, each in one sentence; the reference has the whole of it. */
const everyday: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  'The file': {
    services: 'CI services, by a name of your choice. The own queue needs no entry.',
    defaults: 'Any key of a pool, for all pools.',
    pools: 'Pools of equal slots, by a name of your choice.',
    secrets: 'The key that decrypts [the secrets of jobs](secrets.md).',
    api: 'Serves the dashboard, the API and the metrics over TCP.',
    notify: 'Sends [a message](operating.md#messages-for-people) when something needs a person.',
    state_dir: 'Where onejob keeps its state, on a local disk.',
    keep_jobs: 'How long onejob keeps results, logs and artifacts.',
    on_stop: 'What happens to running jobs when the daemon stops.',
  },
  'A pool': {
    service: 'Whose jobs the pool runs: a key of `services`, or `own`.',
    queue: 'The queue, agent pool, organisation or repository at the CI service.',
    agents: 'How many jobs run at the same time.',
    tags: 'What the agents report that they can do.',
    devices: 'GPUs that each agent gets for itself.',
    image: 'The image of the sandbox. `auto` chooses one that suits the driver and the GPUs.',
    cpus: 'CPUs that a job may use.',
    memory: 'Memory that a job may use. A job that takes more is killed.',
    disk: 'Disk space that the files of a job may take.',
    timeout: 'How long a job may run.',
    env: 'Environment variables of every job. Never put a secret here.',
    volumes: 'Folders of the host that jobs see, read-only unless `rw` is written.',
    caches: 'Folders that outlive the job. onejob keeps those that have a name.',
    network: 'What jobs can reach: `internet` excludes this host and private networks.',
    user: 'The user that jobs run as.',
    trust: 'What jobs of forks and of other branches may do.',
    hold_failed: 'How long the files of a failed job are kept for `onejob shell`.',
  },
  '`devices` of a pool': {
    count: 'How many devices each agent gets.',
    model: 'Words in the name of the device.',
    memory: 'How much memory the device has.',
    mig: 'MIG instances instead of whole cards.',
    share: 'How many agents may hold one device at the same time.',
  },
};

const block = /(<!-- everyday keys[^>]*-->\n)[\s\S]*?(<!-- end -->)/;

/** The tables of everyday keys: what they mean is written here; types and defaults are those of the schema. */
export function withEverydayKeys(page: string): string {
  const shapes = { 'The file': topFile, 'A pool': poolFile, '`devices` of a pool': nestedKeys.devices };
  const tables = Object.entries(everyday).map(([title, meanings]) => {
    const schema: z.ZodObject | undefined = shapes[title as keyof typeof shapes];
    const rows = Object.entries(meanings).map(([name, meaning]) => {
      const type = schema?.shape[name];
      if (type === undefined) throw new Error(`${title} has no key ${name}`);
      const about = aboutOf(type);
      return row(name, { ...about, description: meaning });
    });
    return `### ${title}\n\n${table(rows)}`;
  });
  return page.replace(block, (_, begin: string, end: string) => `${begin}\n${tables.join('\n')}\n${end}`);
}

/** The reference by subject, each page as it should stand in the docs. */
export const referencePages: Readonly<Record<string, () => string>> = {
  'docs/configuration/host.md': () =>
    page('Keys of the file and the host', [
      section('Top level', '', topFile),
      ...['api', 'disk', 'join', 'notify', 'people', 'secrets'].map((name) => nested(name, '')),
      section('A group of `people`', 'See [several people on one host](people.md).', strict(peopleGroupKeys), 3),
    ]),
  'docs/configuration/pools.md': () =>
    page('Keys of a pool', [
      section('A pool, and `defaults`', 'Maps in `defaults` and in a pool merge key by key; other values are replaced.', poolFile),
      ...['benchmark', 'containers', 'devices', 'image', 'kubernetes', 'slurm', 'trust', 'unsafe'].map((name) =>
        nested(name, 'of a pool'),
      ),
    ]),
  'docs/configuration/services.md': () => page('Keys of CI services', serviceSections()),
  'docs/configuration/clouds.md': () => page('Keys of runtimes and clouds', cloudSections()),
};

function page(title: string, sections: readonly string[]): string {
  const head = `# ${title}

<!-- Printed by "npm run docs" from the schema of the config: change it there. -->

[Configuration](configuration.md) says how values are written, and which keys most configs have.
`;
  // Descriptions have links as seen from docs/.
  return [head, ...sections].join('\n').replaceAll(/\]\((?=[\w/-]+\.md)/g, '](../');
}

function serviceSections(): string[] {
  return Object.entries(schemasOf(types).services).flatMap(([type, { keys, maps, needs: needed }]) => {
    const needs = needed.map((one) => [one].flat().map(code).join(' or ')).join(', and ');
    const intro =
      needs === '' ? 'The own queue, under another name. It has no other keys.' : `In addition to \`type\`, it needs ${needs}.`;
    return [section(`A service of type \`${type}\``, intro, keys), ...mapSections(maps, `a service of type \`${type}\``)];
  });
}

function cloudSections(): string[] {
  const { runtimes, clouds } = schemasOf(types);
  return [
    ...Object.entries(runtimes).map(([type, { keys }]) =>
      section(`A runtime of type \`${type}\``, `See [its page](runtimes/${type}.md).`, keys),
    ),
    ...Object.entries(clouds).flatMap(([type, { keys, maps, needs }]) => {
      const intro = `In addition to \`type\`, it needs ${needs.map(code).join(', ')}. See [its page](cloud/${type}.md).`;
      return [section(`A cloud of type \`${type}\``, intro, keys), ...mapSections(maps, `a cloud of type \`${type}\``)];
    }),
    section('An entry of `hosts`', 'It needs `cloud`, `types` and `pools`. See [machines in clouds](cloud.md).', hostFile),
    ...mapSections(hostMaps, 'an entry of `hosts`'),
  ];
}

function mapSections(maps: Readonly<Record<string, z.ZodObject>>, owner: string): string[] {
  return Object.entries(maps).map(([name, inner]) => section(`\`${name}\` of ${owner}`, '', inner, 3));
}

function nested(name: string, owner: string): string {
  const keys = nestedKeys[name];
  if (keys === undefined) throw new Error(`no nested keys: ${name}`);
  return section(`\`${name}\` ${owner}`.trim(), '', keys, 3);
}

function section(title: string, intro: string, keys: z.ZodObject, level = 2): string {
  const lines = [`${'#'.repeat(level)} ${title}`, ''];
  if (intro !== '') lines.push(intro, '');
  const rows = Object.entries(keys.shape).map(([name, type]) => row(name, aboutOf(type)));
  if (rows.length > 0) lines.push(table(rows));
  return lines.join('\n');
}

function table(rows: readonly string[]): string {
  return ['| Key | Type | Default | Meaning | Example |', '|---|---|---|---|---|', ...rows, ''].join('\n');
}

function row(name: string, about: Described): string {
  const { kind, description, example, shown = shownDefault(about) } = about;
  const cells = [
    code(name),
    kind,
    /[`']/.test(shown) || shown === '' ? shown : code(shown),
    described(description),
    code(`${name}: ${example}`),
  ];
  return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
}

function shownDefault({ kind, default: usual, defaultInImages }: Described): string {
  // The section of a map has the defaults of its keys; null is "none" where the file may say so.
  if (usual === undefined || (usual === null ? !kind.includes('none') : typeof usual === 'object')) return '';
  const text = (value: unknown) => (typeof value === 'string' ? value : show(kind, value));
  if (defaultInImages === undefined) return text(usual);
  return `${code(text(usual))}; ${code(text(defaultInImages))} with ${titlesOf(types, ({ agent }) => agent !== null)}`;
}

/** `{trust}` and the like stand for the services whose pools have that key. */
function described(text: string): string {
  return text.replaceAll(/\{(trust|hooks|plugins)\}/g, (_, key: 'trust' | 'hooks' | 'plugins') => titlesWith(types, key));
}

function code(text: string): string {
  return `\`${text}\``;
}
