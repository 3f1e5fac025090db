/** `docs/configuration.md`, printed from the schema so that it cannot lie. */
import type { z } from 'zod';
import { types } from '../src/cli/types.ts';
import { show } from '../src/config/explain.ts';
import { hostFile, hostMaps, nestedKeys, poolFile, schemasOf, topFile } from '../src/config/interpret.ts';
import { titlesOf, titlesWith } from '../src/config/types.ts';
import type { Described } from '../src/schema/about.ts';
import { aboutOf } from '../src/schema/kinds.ts';

const head = `# Configuration

<!-- Printed by "npm run docs" from src/config/keys.ts: change it there. -->

One file, in YAML 1.2. onejob looks for it in this order: \`--config\`, \`ONEJOB_CONFIG\`, \`/etc/onejob/config.yml\`,
\`$XDG_CONFIG_HOME/onejob/config.yml\`. \`onejob status\` says which one is used. Without a file there is the own queue with
one pool, \`default\`, of two agents, in Docker if it is usable, otherwise as processes of this host. On a host with GPUs
there is also a pool \`gpu\` with one agent for each of them, for jobs that ask for devices (\`onejob run --devices 1\`).

- Keys that are not set have their defaults; environment variables override the file, and flags override both.
- \`onejob config check\` finds every problem at once, each with its line; \`onejob config show\` prints the values in use and where they come from, with \`--changed\` without defaults.
- Unknown keys are errors, not warnings.
- The daemon reads it once, when it starts: [changing the config](changing-the-config.md).

\`\`\`yaml
pools:
  default:
    agents: 4
    image: debian:stable-slim
    cpus: 2
    memory: 8GiB
\`\`\`

An example of a host with 18 agents is [examples/eighteen-agents.yml](examples/eighteen-agents.yml). To check it on a machine
without its secret files: \`onejob config check --no-secrets docs/examples/eighteen-agents.yml\`.

## Values

| Kind | How it is written |
|---|---|
| duration | \`500ms\`, \`90s\`, \`10m\`, \`1h30m\`, \`7d\`; never without a unit |
| size | \`512MiB\`, \`24GiB\` (B, KiB, MiB, GiB, TiB; kB, MB, GB, TB count in thousands); never without a unit |
| percentage | \`10%\` |
| path | absolute |
| secret | \`{ file: /path }\` or \`{ env: NAME }\`, with \`expires: 2027-05-01\` to get a warning in time; never the value itself |
| condition | \`">=40GiB"\`, with \`>=\`, \`<=\`, \`>\`, \`<\` or \`=\`; without one it means \`>=\` |

## Environment and flags

| Variable | Flag | Meaning |
|---|---|---|
| \`ONEJOB_CONFIG\` | \`--config\` | The config file. |
| \`ONEJOB_STATE_DIR\` | \`--state-dir\` | As \`state_dir\`; the socket is then \`onejob.sock\` in it. |
| \`ONEJOB_SOCKET\` | \`--socket\` | As \`socket\`. |
| \`ONEJOB_HOST\` | \`--host\` | For commands that talk to a daemon: [another host's](operating.md#several-hosts). |

Docker is reached as its own CLI reaches it: \`DOCKER_HOST\`, \`DOCKER_TLS_VERIFY\`, \`DOCKER_CERT_PATH\`, \`DOCKER_CONTEXT\`, \`DOCKER_CONFIG\`.
`;

/** The page as it should stand in `docs/configuration.md`. */
export function configurationPage(): string {
  const { services, runtimes, clouds } = schemasOf(types);
  const parts = [head, section('Top level', '', topFile)];
  for (const name of ['api', 'disk', 'join', 'notify', 'secrets']) parts.push(nested(name, ''));
  for (const [type, { keys, maps, needs: needed }] of Object.entries(services)) {
    const needs = needed.map((one) => [one].flat().map(code).join(' or ')).join(', and ');
    const intro =
      needs === '' ? 'The own queue, under another name. It has no other keys.' : `In addition to \`type\`, it needs ${needs}.`;
    parts.push(section(`A service of type \`${type}\``, intro, keys));
    for (const [name, inner] of Object.entries(maps))
      parts.push(section(`\`${name}\` of a service of type \`${type}\``, '', inner, 3));
  }
  const merging = 'Maps in `defaults` and in a pool merge key by key; other values are replaced.';
  parts.push(section('A pool, and `defaults`', merging, poolFile));
  for (const name of ['devices', 'image', 'kubernetes', 'slurm', 'trust', 'unsafe']) parts.push(nested(name, 'of a pool'));
  for (const [type, { keys }] of Object.entries(runtimes))
    parts.push(section(`A runtime of type \`${type}\``, `See [its page](runtimes/${type}.md).`, keys));
  for (const [type, { keys, maps, needs }] of Object.entries(clouds)) {
    const intro = `In addition to \`type\`, it needs ${needs.map(code).join(', ')}. See [its page](cloud/${type}.md).`;
    parts.push(section(`A cloud of type \`${type}\``, intro, keys));
    for (const [name, inner] of Object.entries(maps))
      parts.push(section(`\`${name}\` of a cloud of type \`${type}\``, '', inner, 3));
  }
  parts.push(section('An entry of `hosts`', 'It needs `cloud`, `types` and `pools`. See [cloud.md](cloud.md).', hostFile));
  for (const [name, inner] of Object.entries(hostMaps)) parts.push(section(`\`${name}\` of an entry of \`hosts\``, '', inner, 3));
  return parts.join('\n');
}

function nested(name: string, owner: string): string {
  const keys = nestedKeys[name];
  if (keys === undefined) throw new Error(`no nested keys: ${name}`);
  return section(`\`${name}\` ${owner}`.trim(), '', keys, 3);
}

function section(title: string, intro: string, keys: z.ZodObject, level = 2): string {
  const lines = [`${'#'.repeat(level)} ${title}`, ''];
  if (intro !== '') lines.push(intro, '');
  const rows = Object.entries(keys.shape).map(([name, type]) => {
    const about = aboutOf(type);
    const { kind, description, example, shown = shownDefault(about) } = about;
    const cells = [
      code(name),
      kind,
      /[`']/.test(shown) || shown === '' ? shown : code(shown),
      described(description),
      code(`${name}: ${example}`),
    ];
    return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
  });
  if (rows.length > 0) lines.push('| Key | Type | Default | Meaning | Example |', '|---|---|---|---|---|', ...rows, '');
  return lines.join('\n');
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
