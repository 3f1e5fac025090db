/**
 * Which test belongs to which lane, for `vitest.config.ts` and for what judges red tests. docs/testing.md says what the lanes are for.
 *
 * `unit` and `sim` are the deterministic part, so a red test there is a bug and never runs again. `unit` starts no process and no
 * server, which `support/no-outside.ts` sees to; what `sim` starts are its own players.
 */
import { matchesGlob } from 'node:path';

/** Everything that sits beside what it tests. */
const beside = [
  'src/**/*.test.ts',
  'scripts/**/*.test.ts',
  'bench/**/*.test.ts',
  'tools/**/*.test.ts',
  'test/cuts/**/*.test.ts',
  'test/hosts/setups.test.ts',
  'test/kit/**/*.test.ts',
  'test/mutants/**/*.test.ts',
  'test/properties/**/*.test.ts',
  'test/standins/**/*.test.ts',
  'test/support/**/*.test.ts',
  'web/src/**/*.test.ts',
];

/** What the agent of a stand-in does at real services' pace. */
const agents = 'test/standins/*/agent/**/*.test.ts';

/** Of what sits beside: the files that start processes or servers, and so depend on how busy the machine is. */
const processes = [
  'scripts/{ci-count,install,launcher,link-bin,promtool}.test.ts',
  'src/api/{api,devices,events,people,raw-requests,secrets,shell,sockets,tunnel,web,web-limits}.test.ts',
  'src/ci/azure-pipelines/{caller,client,client.contract,cloud-placeholders,contract,doctor,ended-jobs,exchange,job-records,look,look-inside}.test.ts',
  'src/ci/azure-pipelines/{placeholder,principal,register,registrar,script,service,sweep,watch}.test.ts',
  'src/ci/buildkite/api.test.ts',
  'src/ci/buildkite/{agent/script,doctor/doctor,doctor/doctor-inside,jobs/recipe-class,stacks/stacks}.test.ts',
  'src/ci/filter/{cache-calls,doors,filter,server}.test.ts',
  'src/ci/{github,gitlab}/script.test.ts',
  'src/ci/github/{before-job,elsewhere,shared-files,webhook}.test.ts',
  'src/ci/kit/{agent-program,released,rest}.test.ts',
  'src/ci/own-queue/script.test.ts',
  'src/cli/{caches,cli,completion,connect,control,dashboard,devices,first-run,follow,gitlab-scripts,gpu-leases,gpus,image,images}.test.ts',
  'src/cli/init/{azure-drop-in,azure-pipelines,buildkite,gitea,github,gitlab}.test.ts',
  'src/cli/{jobs,logs,named-config,program,report,secret-pins,service,service-jobs,status-all,upgrade}.test.ts',
  'src/machines/boot/boot.test.ts',
  'src/machines/join/{machine,server,tunnel}.test.ts',
  'src/config/{host-places,load}.test.ts',
  'src/runtimes/engine/{call,image,spoken}.test.ts',
  'src/clouds/command/program.test.ts',
  'src/http/connections.test.ts',
  'src/gpu/{host-facts,kernel-reader,lock,probe,processes,recording,run}.test.ts',
  'src/gpu/{amd,intel}/query.test.ts',
  'src/images/{agent-package,engine-limits,prune}.test.ts',
  'src/logs/log-file.test.ts',
  'src/manager/{actions/probe-sandbox,caches/cache-tree,caches/disk-watch,caches/state-room,devices/repair}.test.ts',
  'src/notices/send.test.ts',
  'src/runtimes/{choose,gate}.test.ts',
  'src/runtimes/docker/{agent-engine,archive,containers,devices,docker,docker.contract,events,exits}.test.ts',
  'src/runtimes/docker/{facts,foreign,image-store,inputs,learning,logs,networks,prepare,with-engines,witness,workspace}.test.ts',
  'src/runtimes/process/{bad-disk,crash,devices,holding,isolation,network,process,supervisor}.test.ts',
  'src/runtimes/kubernetes/{bad-days,client,kubeconfig,networks,probe-script,releases,script,streams,tails,waiting,watch}.test.ts',
  'src/runtimes/slurm/{damaged,programs}.test.ts',
  'src/runtimes/slurm/script.test.ts',
  'src/secrets/seed-format.test.ts',
  'src/store/store.test.ts',
  'src/system/{file-server,foreign-tree}.test.ts',
  'src/workspace/{ignore,pack}.test.ts',
  'test/standins/**/*.test.ts',
  'test/support/census.test.ts',
];

/** Short ones that take a minute or more together: acceptance has them, and the gate stays small. */
const slow = [
  'web/test/{daemon,dashboard,docs,impostor}.test.ts',
  'test/e2e/{cloud-command,cloud-program,hold,hosts,kept-port}.test.ts',
  'test/mutants/main.test.ts',
];

/** Long tests that decide about a change beside the end-to-end ones: a real Engine, real kills, real grants, real clients. Few on purpose. */
const real = ['test/long/{cloud-aws,cloud-azure,cloud-gcp,containers,github-clients,gpu-grants,jobs,kills}.test.ts'];

/**
 * Long tests that need the machine to themselves: they start Engines and end them, build and remove images, change the firewall,
 * or say how long something may take. The others wait for most of their time, and have only what carries their own owner's label.
 */
const alone = [
  'test/long/{ansible,auto-image,built-images,containers-*,gpu-tool,image-builder,images,internet-network,job-containers,private-engine,service}.test.ts',
  'test/long/{docker-*,engine*,podman.*}.test.ts',
];

interface Files {
  readonly include: string[];
  readonly exclude: string[];
}

/** The files of each lane; every test is in exactly one. */
export const lanes = {
  unit: { include: beside, exclude: [agents, ...processes, ...slow] },
  sim: { include: ['test/sim/**/*.test.ts'], exclude: [] },
  process: { include: processes, exclude: [agents] },
  e2e: { include: ['test/e2e/**/*.test.ts'], exclude: slow },
  real: { include: real, exclude: [] },
  long: { include: ['test/long/**/*.test.ts', agents, ...slow], exclude: [...alone, ...real] },
  'long-alone': { include: alone, exclude: [] },
  engines: { include: ['test/engines/**/*.test.ts'], exclude: [] },
  hosts: { include: ['test/hosts/**/*.test.ts'], exclude: ['test/hosts/setups.test.ts'] },
} satisfies Record<string, Files>;

export type LaneName = keyof typeof lanes;

/** The lane of a test file, by its path from the root; null when no lane has it. */
export function laneOf(file: string): LaneName | null {
  const matches = (globs: readonly string[]): boolean => globs.some((glob) => matchesGlob(file, glob));
  const found = Object.entries(lanes).find(([, { include, exclude }]) => matches(include) && !matches(exclude));
  return (found?.[0] as LaneName | undefined) ?? null;
}

/** True when a red test of the file is a bug, whatever a second run says. */
export function isDeterministic(file: string): boolean {
  const lane = laneOf(file);
  return lane === 'unit' || lane === 'sim';
}
