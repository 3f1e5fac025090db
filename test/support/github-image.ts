/**
 * What sandboxes of GitHub tests are made of, without a registry: a base with Bash and Node.js, and a package as GitHub's runner comes in,
 * in which the listener is github-act-runner.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { azureImages, ensureBuild, ensureImport, nodeRoot, tarOf, withLibraries } from './azure-images.ts';
import { githubPrograms } from './github-programs.ts';

const base = 'onejob-test/github-base:1';

/** Version that the package says it is. */
export const packedVersion = '2.336.0';

/** Makes the base image if it is missing. Its name. */
export async function ensureGithubBase(socket = '/var/run/docker.sock'): Promise<string> {
  const below = await ensureImport(socket, azureImages.base, await nodeRoot());
  const bash = (await withLibraries('/bin/bash')).map((file) => ({ ...file, path: `bash/${file.path}` }));
  await ensureBuild(socket, base, below, bash, ['COPY bash /']);
  return base;
}

/** Writes the package into a folder. Its path. `before`: shell that runs before the runner, in the sandbox. */
export async function writeRunnerPackage(dir: string, before = ':'): Promise<string> {
  const listener = `#!/bin/sh
case $1 in
  --version) echo ${packedVersion} ;;
  *) ${before} || exit 1; exec "\${0%/*}/github-act-runner" "$@" ;;
esac
`;
  const tar = await tarOf([
    { path: 'bin/Runner.Listener', body: Buffer.from(listener), mode: 0o755 },
    { path: 'bin/github-act-runner', body: await readFile(githubPrograms.runner), mode: 0o755 },
  ]);
  const path = join(dir, `actions-runner-linux-x64-${packedVersion}.tar.gz`);
  await writeFile(path, gzipSync(tar, { level: 1 }));
  return path;
}
