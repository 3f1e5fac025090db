/**
 * Images for tests of Buildkite's agents, made without any registry and without a network: the default image, with this host's Git
 * on top. Kept by content hash. Also a command: `node test/support/buildkite-images.ts [socket]`.
 */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { Readable } from 'node:stream';
import { buffer, text } from 'node:stream/consumers';
import { pack } from 'tar-stream';
import { realAgent } from './buildkite-agent.ts';
import { engineAt, machineSocket } from './engine-http.ts';
import { defaultImage } from './require.ts';

/** Every image, and what it is there to show. */
export const buildkiteImages = {
  /** All that the agent needs of an image, as a base has it that somebody else made. */
  git: 'onejob-test/bk-git:1',
  /** The same for `builder` (1000:1000), who it runs as, with an entrypoint and a command that would break a gate. */
  user: 'onejob-test/bk-user:1',
  /** The agent in it, where a package would have put it. */
  baked: 'onejob-test/bk-baked:1',
} as const;

/** Why they cannot be made here; null when they can. */
export function lacksGit(): string | null {
  return existsSync('/usr/bin/git') && existsSync('/usr/lib/git-core') ? null : 'this host has no Git to put into images';
}

const label = 'onejob-test.hash';

interface Entry {
  readonly path: string;
  readonly body: Buffer;
  readonly mode: number;
}

const link = (to: string, ...names: readonly string[]): string => names.map((name) => `ln -sf ${to} ${name}`).join(' && ');
const core = '/usr/lib/git-core';

/** Makes those that are missing on the Engine behind `socket`. @throws Error with what the Engine said */
export async function ensureBuildkiteImages(socket = machineSocket): Promise<typeof buildkiteImages> {
  const scripts = ['git-sh-setup', 'git-sh-i18n', 'git-sh-i18n--envsubst', 'git-submodule'];
  const git: Entry[] = [
    { path: 'git', body: readFileSync('/usr/bin/git'), mode: 0o755 },
    ...scripts.map((name) => ({ path: name, body: readFileSync(`${core}/${name}`), mode: 0o755 })),
  ];
  await ensure(socket, buildkiteImages.git, git, [
    `FROM ${defaultImage}`,
    'COPY git /usr/bin/git',
    `COPY ${scripts.join(' ')} ${core}/`,
    `RUN ${link('/usr/bin/git', '/usr/bin/git-upload-pack', `${core}/git`)} && git --version`,
    // Looked for, and read by nothing in these tests.
    'RUN mkdir -p /etc/ssl/certs && echo none >/etc/ssl/certs/ca-certificates.crt',
  ]);
  await ensure(
    socket,
    buildkiteImages.user,
    [],
    [
      `FROM ${buildkiteImages.git}`,
      'RUN useradd --uid 1000 --create-home builder',
      'USER builder',
      'WORKDIR /home/builder',
      'ENTRYPOINT ["/bin/false", "entry"]',
      'CMD ["command"]',
    ],
  );
  const agent = realAgent();
  if (agent !== null) {
    await ensure(
      socket,
      buildkiteImages.baked,
      [{ path: 'agent', body: readFileSync(agent), mode: 0o755 }],
      [`FROM ${buildkiteImages.git}`, 'COPY agent /usr/bin/buildkite-agent'],
    );
  }
  return buildkiteImages;
}

async function ensure(socket: string, name: string, files: readonly Entry[], lines: readonly string[]): Promise<void> {
  using engine = engineAt(socket);
  const hash = createHash('sha256').update(JSON.stringify(lines));
  const [, base = ''] = (lines[0] ?? '').split(' ');
  hash.update(JSON.stringify(((await engine.ok('GET', `/images/${base}/json`)) as { readonly Id: string }).Id));
  for (const { body } of files) hash.update(body);
  const wanted = hash.digest('hex').slice(0, 16);
  const seen = await engine.call('GET', `/images/${name}/json`);
  if (seen.status === 200 && JSON.stringify(seen.body).includes(`"${label}":"${wanted}"`)) return;
  const tar = pack();
  for (const { path, body, mode } of files) tar.entry({ name: path, mode, mtime: new Date(0) }, body);
  tar.entry({ name: 'Dockerfile' }, [...lines, `LABEL ${label}=${wanted}`, ''].join('\n'));
  tar.finalize();
  const context = Readable.from([await buffer(tar)]);
  const query = new URLSearchParams({ t: name, rm: 'true', forcerm: 'true', networkmode: 'none' });
  const said = await text(await engine.stream('POST', `/build?${query}`, context));
  if (said.includes('"errorDetail"')) throw new Error(`Cannot make ${name}: ${said.slice(-2000)}`);
  // What is replaced would stay without a name; what a container still uses is refused, and stays.
  if (seen.status === 200) await engine.call('DELETE', `/images/${(seen.body as { readonly Id: string }).Id}`);
}

if (import.meta.main) {
  await ensureBuildkiteImages(process.argv[2]);
  console.log(Object.values(buildkiteImages).join('\n'));
}
