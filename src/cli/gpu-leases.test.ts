/** What a daemon adds to `onejob gpus`, which also works without one. */
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { testContext } from '../../test/support/cli-context.ts';
import { gpu } from '../../test/support/devices.ts';
import { createFakeManager, type FakeManager } from '../../test/support/fake-manager.ts';
import { type Scratch, scratch } from '../../test/support/scratch.ts';
import { type ApiServer, startApi } from '../api/server.ts';
import { OnejobError } from '../base/errors.ts';
import type { DeviceView } from '../contract/schema.ts';
import { noGpus } from '../gpu/inventory.ts';
import type { Probe } from '../gpu/probe.ts';
import { askLeases, showGpus } from './gpus.ts';
import { createOutput } from './output.ts';
import type { Session } from './session.ts';

let dir: Scratch;
let manager: FakeManager;
let server: ApiServer;

beforeEach(async () => {
  dir = scratch();
  manager = createFakeManager();
  server = await startApi({ manager, socket: { path: join(dir.path, 'onejob.sock'), access: 'owner' }, version: '1.0.0' });
});
afterEach(async () => {
  await server.close();
  dir[Symbol.dispose]();
});

function session(json: boolean, own = 'onejob.sock', system: string | null = null) {
  const { context, stdout } = testContext(json ? ['--json'] : [], dir.path);
  const [socket, systemSocket] = [own, system].map((name) => (name === null ? null : join(dir.path, name)));
  const place = async () => ({
    stateDir: dir.path,
    socket: socket ?? '',
    isSocketNamed: false,
    systemSocket: systemSocket ?? null,
  });
  const flags = {};
  const made: Session = { context, output: createOutput(context, json), flags, version: '1.0.0', remote: null, place };
  return { session: made, stdout };
}

const probe: Probe = {
  near: () => 0,
  isLooking: false,
  look: async () => ({ ...noGpus, devices: [gpu(0), gpu(1)] }),
  [Symbol.dispose]() {},
};
const asked = { watch: false, every: 1 };
const view: DeviceView = {
  uuid: 'GPU-0000',
  kind: 'gpu',
  model: 'NVIDIA A100-SXM4-40GB',
  pciId: null,
  index: 0,
  memoryMiB: 40_960,
  profile: null,
  parent: null,
  state: 'reserved',
  slot: 'lab/1',
  agents: ['a7'],
  why: 'GPU-0000 is reserved by alice until 18:02',
  since: 1,
  until: 2,
  retryAt: null,
  hint: 'Type "onejob gpus return GPU-0000" to give it back.',
  use: null,
};

test('the table says what jobs use each device for', async () => {
  manager.deviceViews = [view, { ...view, uuid: 'GPU-0001', state: 'free', slot: null, why: null, hint: null }];
  const here = session(false);
  expect(await showGpus(here.session, asked, probe)).toBe(0);
  const text = here.stdout();
  expect(text).toMatch(/^GPU-0000 .* lab\/1, reserved +-$/m);
  expect(text).toMatch(/^GPU-0001 .* free +-$/m);
  expect(text).toContain('! GPU-0000 is reserved by alice until 18:02\n  -> Type "onejob gpus return GPU-0000" to give it back.\n');
});

test('--json has the same in each device, and nothing else changes', async () => {
  manager.deviceViews = [view];
  const here = session(true);
  await showGpus(here.session, asked, probe);
  const { why, state, slot, agents, until } = view;
  expect(JSON.parse(here.stdout())).toEqual({
    ...noGpus,
    devices: [{ ...gpu(0), lease: { state, slot, agents, why, until } }, gpu(1)],
  });
});

describe('shows the host without an answer from a daemon', () => {
  const expectBare = async (here: ReturnType<typeof session>) => {
    expect(await askLeases(here.session)).toEqual(new Map());
    expect(await showGpus(here.session, asked, probe)).toBe(0);
    expect(here.stdout()).not.toContain('FOR JOBS');
    expect(here.stdout()).toMatch(/^GPU-0000 /m);
  };

  test('no daemon', () => expectBare(session(false, 'nobody.sock')));

  test('a daemon without devices', async () => {
    manager.devices = () => {
      throw new OnejobError('E_DEVICE_UNKNOWN', 'No pool of this daemon has devices, so it manages none.');
    };
    await expectBare(session(false));
  });

  test('does not wait long for a silent daemon', async () => {
    const silent = createServer((socket) => socket.on('error', () => {}));
    silent.listen(join(dir.path, 'silent.sock'));
    await once(silent, 'listening');
    await using _ = { [Symbol.asyncDispose]: async () => void silent.close() };
    expect(await askLeases(session(false, 'silent.sock').session, 50)).toEqual(new Map());
  });
});

test("asks the system's daemon if the user has none", async () => {
  manager.deviceViews = [view];
  expect((await askLeases(session(false, 'nobody.sock', 'onejob.sock').session)).get('GPU-0000')).toEqual(view);
});
