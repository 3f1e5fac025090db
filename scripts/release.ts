/**
 * Makes the archives of a release: onejob with production dependencies and its own Node, for each processor, with a bill of materials
 * (CycloneDX) and checksums; and, where dpkg-deb is installed, a package for Debian and Ubuntu. From the commit that is checked out, so the same commit gives the same files.
 *
 *     npm run release [-- --out DIR] [--arch x64 --arch arm64] [--sign KEY]
 *
 * `--sign` signs each archive with minisign, for hosts whose config has `upgrade.key`. minisign asks for the password of the key.
 */
import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { basename, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { makeDeb } from './deb.ts';

const sums = createRequire(import.meta.url)('./node-sums.cjs') as Readonly<Record<string, string>>;
const root = join(import.meta.dirname, '..');
const usage = 'npm run release [-- --out DIR] [--arch x64] [--arch arm64] [--sign KEY]';

const { values } = parseArgs({
  options: {
    out: { type: 'string', default: 'release' },
    arch: { type: 'string', multiple: true, default: Object.keys(sums) },
    sign: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  console.log(usage);
  process.exit(0);
}
// Before the minutes that a release takes.
if (values.sign !== undefined && !existsSync(values.sign)) {
  console.error(`Cannot sign with ${values.sign}: there is no such file. Make a key with "minisign -G -s ${values.sign}".`);
  process.exit(2);
}
const strange = values.arch.find((one) => sums[one] === undefined);
if (strange !== undefined) {
  console.error(
    `Cannot make a release for "${strange}": the checksum of its Node is unknown. Known: ${Object.keys(sums).join(', ')}.`,
  );
  process.exit(2);
}

function run(command: string, args: readonly string[], cwd: string): string {
  return execFileSync(command, args, { cwd, encoding: 'utf8', maxBuffer: 2 ** 28, stdio: ['ignore', 'pipe', 'inherit'] });
}

function sha256(file: string): string {
  return createHash('sha256').update(readFileSync(file)).digest('hex');
}

/**
 * Writes what `npm ci` installs from into `app`: without the workspace of a clone, since the tools are in the archive as they were built
 * and need only packages that onejob has.
 */
function leaveWorkspace(app: string): void {
  const { workspaces: _, ...about } = JSON.parse(readFileSync(join(app, 'package.json'), 'utf8')) as Record<string, unknown>;
  writeFileSync(join(app, 'package.json'), `${JSON.stringify(about, null, 2)}\n`);
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as {
    packages: Record<string, Record<string, unknown>>;
  };
  const kept = Object.entries(lock.packages).filter(([path, { link }]) => link !== true && !path.startsWith('tools/'));
  const { workspaces: __, ...itself } = lock.packages[''] ?? {};
  const packages = { ...Object.fromEntries(kept), '': itself };
  writeFileSync(join(app, 'package-lock.json'), JSON.stringify({ ...lock, packages }));
}

/**
 * The bill of materials of what is installed in `app`. Not by `npm sbom --omit=dev`, which also leaves out each package that a tool of
 * development could use.
 */
function materialsOf(app: string) {
  const file = join(app, 'package-lock.json');
  const { packages, ...rest } = JSON.parse(readFileSync(file, 'utf8')) as { packages: Record<string, Record<string, unknown>> };
  const kept = Object.entries(packages).filter(([, { dev }]) => dev !== true);
  const { devDependencies: _, ...itself } = packages[''] ?? {};
  writeFileSync(file, JSON.stringify({ ...rest, packages: { ...Object.fromEntries(kept), '': itself } }));
  const made = JSON.parse(run('npm', ['sbom', '--sbom-format=cyclonedx', '--package-lock-only'], app));
  // npm takes the folder's name.
  made.metadata.component.name = 'onejob';
  return made;
}

const out = resolve(values.out);
const hasDpkg = spawnSync('dpkg-deb', ['--version']).status === 0;
if (!hasDpkg) console.log('Without packages for Debian: dpkg-deb is not installed.');
const work = mkdtempSync(join(tmpdir(), 'onejob-release-'));
try {
  mkdirSync(out, { recursive: true });
  console.log('Packing');
  // In a copy of what Git knows: `dist` of a clone also has what earlier builds left in it, and others may be reading it.
  const copy = join(work, 'copy');
  mkdirSync(copy);
  writeFileSync(join(work, 'files'), run('git', ['ls-files', '-z', '--', '.', ':!test', ':!bench'], root));
  run('tar', ['-C', root, '--null', '-T', join(work, 'files'), '-cf', join(work, 'copy.tar')], work);
  run('tar', ['-C', copy, '-xf', join(work, 'copy.tar')], work);
  symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'));
  run('npm', ['pack', '--silent', '--pack-destination', work], copy);
  const tarball = readdirSync(work).find((name) => name.endsWith('.tgz')) ?? '';
  run('tar', ['-xzf', tarball], work);
  const app = join(work, 'package');
  cpSync(join(root, 'install.sh'), join(app, 'install.sh'));
  cpSync(join(copy, 'tools/import-compose/dist'), join(app, 'tools/import-compose/dist'), { recursive: true });
  leaveWorkspace(app);
  // Without scripts: what npm packs here is written in JavaScript only. Without links to programs: nobody runs them.
  run('npm', ['ci', '--omit=dev', '--ignore-scripts', '--no-bin-links', '--no-audit', '--no-fund', '--silent'], app);
  const { devDependencies, ...about } = JSON.parse(readFileSync(join(app, 'package.json'), 'utf8')) as {
    version: string;
    devDependencies: Record<string, string>;
  };
  const node = devDependencies.node ?? '';
  writeFileSync(join(app, 'package.json'), `${JSON.stringify(about, null, 2)}\n`);
  const materials = materialsOf(app);
  rmSync(join(app, 'package-lock.json'));
  // What the files of the dashboard and of the documentation contain is not installed, and yet delivered.
  const bundled = ['web', 'docs']
    .flatMap((site) => JSON.parse(readFileSync(join(app, 'dist', site, 'bundled.json'), 'utf8')) as Record<string, string>[])
    .map(({ name, version, license }) => ({
      type: 'library',
      name,
      version,
      purl: `pkg:npm/${name}@${version}`,
      licenses: [{ license: { id: license } }],
    }));
  const committed = run('git', ['log', '-1', '--format=%ct'], root).trim();
  const made: string[] = [];
  for (const arch of values.arch) {
    const name = `onejob-${about.version}-linux-${arch}`;
    console.log(`Making ${name}`);
    const folder = join(work, name);
    cpSync(app, folder, { recursive: true });
    run('npm', ['pack', '--silent', '--pack-destination', work, `node-linux-${arch}@${node}`], work);
    mkdirSync(join(work, `node-${arch}`));
    run('tar', ['-xzf', `node-linux-${arch}-${node}.tgz`, '-C', `node-${arch}`], work);
    const binary = join(work, `node-${arch}`, 'package', 'bin', 'node');
    if (sha256(binary) !== sums[arch]) throw new Error(`Node ${node} for ${arch} is not the one that scripts/node-sums.cjs names`);
    mkdirSync(join(folder, 'node_modules', 'node', 'bin'), { recursive: true });
    cpSync(binary, join(folder, 'node_modules', 'node', 'bin', 'node'));
    const license = join(work, `node-${arch}`, 'package', 'LICENSE');
    if (existsSync(license)) cpSync(license, join(folder, 'node_modules', 'node', 'LICENSE'));
    writeFileSync(join(folder, 'platform'), `linux-${arch}\n`);
    const runtime = {
      type: 'application',
      name: 'node',
      version: node,
      purl: `pkg:npm/node-linux-${arch}@${node}`,
      hashes: [{ alg: 'SHA-256', content: sums[arch] }],
    };
    const sbom = { ...materials, components: [...materials.components, ...bundled, runtime] };
    // npm writes a random number and the time; the same release is to have the same list.
    delete sbom.serialNumber;
    sbom.metadata.timestamp = new Date(Number(committed) * 1000).toISOString();
    writeFileSync(join(folder, 'sbom.cdx.json'), `${JSON.stringify(sbom, null, 2)}\n`);
    cpSync(join(folder, 'sbom.cdx.json'), join(out, `${name}.cdx.json`));
    const archive = join(out, `${name}.tar.gz`);
    const plain = ['--sort=name', `--mtime=@${committed}`, '--owner=0', '--group=0', '--numeric-owner', '--mode=u+rwX,go+rX,go-w'];
    run('tar', [...plain, '-I', 'gzip -n', '-cf', archive, name], work);
    made.push(archive, join(out, `${name}.cdx.json`));
    if (hasDpkg) made.push(makeDeb(folder, out, committed));
  }
  writeFileSync(join(out, 'SHA256SUMS'), made.map((file) => `${sha256(file)}  ${basename(file)}\n`).join(''));
  const archives = made.filter((file) => file.endsWith('.tar.gz'));
  // One that is left from before would be of other bytes.
  for (const archive of archives) rmSync(`${archive}.minisig`, { force: true });
  if (values.sign !== undefined)
    execFileSync('minisign', ['-S', '-s', resolve(values.sign), '-m', ...archives], { cwd: out, stdio: 'inherit' });
  const signatures = values.sign === undefined ? [] : archives.map((archive) => `${archive}.minisig`);
  console.log(`Made ${[...[...made, ...signatures].map((file) => basename(file)), 'SHA256SUMS'].join(', ')} in ${out}`);
} finally {
  rmSync(work, { recursive: true, force: true });
}
