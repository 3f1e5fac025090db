import { execFileSync } from 'node:child_process';
import { createWriteStream, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { allRecordings, nvidia, recordings } from '../../test/support/gpu-recordings.ts';
import { shapes } from '../../test/support/gpu-shapes.ts';
import { scratch } from '../../test/support/scratch.ts';
import { looksLikeAmd } from './amd/smi.ts';
import { looksLikeIntel } from './intel/xpu-smi.ts';
import type { Inventory } from './inventory.ts';
import { inventoryOf, readRecording } from './recording.ts';

const read = (name: string) => readRecording(join(recordings, name));
const codes = ({ findings }: Inventory) => findings.map((each) => each.code);

describe('every recording there is', () => {
  test.each(allRecordings())('%s is read, or refused with a sentence', async (file) => {
    const found = await read(file);
    if (found.devices.length === 0) {
      expect(found.complete).toBe(false);
      expect(found.findings.length).toBeGreaterThan(0);
    }
    for (const { message, hint, code, subject } of found.findings) {
      expect(message).toMatch(/^\S.*\.$/s);
      expect(message.length).toBeLessThan(700);
      expect(hint ?? 'x').not.toBe('');
      expect(code).toMatch(/^[a-z][a-z-]+$/);
      expect(subject).not.toBe('');
    }
  });

  test.each(allRecordings().filter((file) => !file.endsWith('README.md')))(
    '%s is taken for its own vendor’s, if for any',
    (file) => {
      const text = readFileSync(join(recordings, file), 'utf8');
      const [vendor] = file.split('/');
      expect([looksLikeAmd(text), looksLikeIntel(text)]).toEqual([vendor === 'rocm-smi', vendor === 'xpu-smi']);
    },
  );

  test.each([
    ['nvidia-smi/kernel/dmesg-xid-79.log', /kernel log/],
    ['nvidia-smi/table/r550-a40-x10.txt', /an output of nvidia-smi that onejob does not read/],
    ['nvidia-smi/q/r535-a10.txt', /an output of nvidia-smi that onejob does not read/],
    ['nvidia-smi/version/r610-rtx2080super.txt', /an output of nvidia-smi that onejob does not read/],
    ['nvidia-smi/help/old-help-query-gpu.txt', /an output of nvidia-smi that onejob does not read|no report of nvidia-smi/],
    ['nvidia-smi/mig/gh200-96gb.lgip.txt', /an output of nvidia-smi that onejob does not read/],
    ['nvidia-smi/csv/gb10-unified-memory.csv', /values of "nvidia-smi --query-gpu" as CSV/],
    ['nvidia-smi/README.md', /nvidia-smi/],
  ])('%s says what it is', async (file, words) => {
    const { findings } = await read(file);
    expect(findings.map((each) => each.message).join(' ')).toMatch(words);
    expect(findings.at(-1)?.hint).toContain('nvidia-smi -q -x');
  });
});

describe('other vendors', () => {
  test.each([
    ['rocm-smi/mi100_rocm571.json', 'amd'],
    ['xpu-smi/discovery.json', 'intel'],
  ])('%s', async (file, vendor) => {
    const { devices } = await read(file);
    expect(devices.length).toBeGreaterThan(0);
    expect(devices.every((device) => device.vendor === vendor)).toBe(true);
  });
});

describe('an unknown error', () => {
  const words = 'ERROR: GPU widget handshake failed (0x42)';

  test('is the tool’s fault, in its own words', () => {
    const text = `${words}\nContact your widget vendor.\n`;
    const { findings, complete, devices } = inventoryOf([{ name: 'gpus.txt', text }]);
    expect([complete, devices]).toEqual([false, []]);
    expect(findings).toMatchObject([{ level: 'error', code: 'tool-failed', subject: 'host' }]);
    expect(findings[0]?.message).toMatch(/^The tool failed and printed no report/);
    expect(findings[0]?.message).toContain(`${words} / Contact your widget vendor.`);
  });

  test('is reported together with what other files contain', () => {
    const good = readFileSync(join(recordings, 'nvidia-smi/list/a100-80gb-x4-one-mig.txt'), 'utf8');
    const { findings } = inventoryOf([
      { name: 'gpus.txt', text: good },
      { name: 'gpus.xml', text: words },
    ]);
    expect(findings).toContainEqual(
      expect.objectContaining({ level: 'warning', code: 'tool-failed', message: expect.stringContaining(words) }),
    );
  });
});

describe('a folder', () => {
  const home = scratch();
  afterAll(() => home[Symbol.dispose]());
  const folder = (name: string, files: Readonly<Record<string, string | Buffer>>) => {
    for (const [file, content] of Object.entries(files)) {
      mkdirSync(dirname(join(home.path, name, file)), { recursive: true });
      writeFileSync(join(home.path, name, file), content);
    }
    return join(home.path, name);
  };
  const mig = nvidia('xml/r510-a100-40gb-mig.xml');
  const gpu = 'GPU-27b94a00-ed54-5c24-b1fd-1054085de32a';
  const list = `GPU 0: NVIDIA A100-SXM4-40GB (UUID: ${gpu})\n  MIG 3g.20gb Device 0: (UUID: MIG-${gpu}/1/0)\n  MIG 3g.20gb Device 1: (UUID: MIG-${gpu}/2/0)\n`;

  test('all that was recorded on one host is that host', async () => {
    const found = await readRecording(
      folder('one', {
        'gpus.xml': mig,
        'more/list.txt': list,
        'more/deeper/lost.xml': nvidia('xml/r595-l40s.xml'),
        'dmesg.log': nvidia('kernel/dmesg-xid-79.log'),
      }),
    );
    expect(shapes(found)).toEqual(['1 x NVIDIA A100-SXM4-40GB*, 40960, 8.0', '2 x MIG 3g.20gb 19968']);
    expect(found.complete).toBe(true);
    expect(found.findings).toEqual([
      expect.objectContaining({
        level: 'warning',
        code: 'recording-unused',
        message: expect.stringMatching(/^dmesg\.log contains a kernel log/),
      }),
    ]);
  });

  test('different hosts are refused, with their names', async () => {
    const found = await read('nvidia-smi/xml');
    expect(found).toMatchObject({ complete: false, devices: [] });
    expect(codes(found)).toEqual(['several-hosts']);
    expect(found.findings[0]?.message).toMatch(/r352-grid-k520\.xml \(driver 352\.99, 1 GPU\)/);
  });

  test('masked UUIDs do not make two hosts one', async () => {
    const found = await readRecording(
      folder('masked', { 'a.xml': nvidia('xml/r580-gb200-x4-arm64.xml'), 'b.xml': nvidia('xml/r580-gb300-x4.xml') }),
    );
    expect(codes(found)).toEqual(['several-hosts']);
  });

  test('each GPU asked by itself: together they are the host', async () => {
    const blocks = nvidia('xml/r580-gb200-x4-arm64.xml').split(/(?=\t<gpu id)/);
    const files = [1, 2, 3, 4].map((n) => [
      `${n}.xml`,
      `${blocks[0]}${blocks[n]?.replace('</nvidia_smi_log>', '')}</nvidia_smi_log>\n`,
    ]);
    const found = await readRecording(folder('each', Object.fromEntries(files)));
    expect(shapes(found)).toEqual(['4 x NVIDIA GB200, 189471, 10.0']);
    expect(found.complete).toBe(true);
    const three = await readRecording(folder('three', Object.fromEntries(files.slice(1))));
    expect(three).toMatchObject({ complete: false, devices: { length: 3 } });
  });

  test('two vendors in one host', async () => {
    const found = await readRecording(
      folder('both', {
        'gpus.xml': nvidia('xml/r595-l40s.xml'),
        'xpu.json':
          '{"device_list":[{"device_id":0,"device_name":"Intel(R) Graphics [0x56c0]","device_type":"GPU","pci_bdf_address":"0000:4d:00.0","pci_device_id":"0x56c0","uuid":"00000000-0000-0000-0000-020a00008086","vendor_name":"Intel(R) Corporation"}]}',
      }),
    );
    expect(found.devices.map((device) => device.vendor)).toEqual(['nvidia', 'intel']);
    expect(found.driver).toBe('595.91.07');
  });

  test('nothing in it, and nothing that is known', async () => {
    mkdirSync(join(home.path, 'empty'), { recursive: true });
    expect(codes(await readRecording(join(home.path, 'empty')))).toEqual(['recording-unknown']);
    const found = await readRecording(folder('nothing', { 'a.txt': 'hello\n', 'b.bin': Buffer.from([0, 1, 2, 255]), 'c.txt': '' }));
    expect(found).toMatchObject({ complete: false, devices: [] });
    expect(found.findings.map((each) => each.message)).toEqual([
      'a.txt has no report of nvidia-smi, amd-smi, rocm-smi or xpu-smi.',
      'b.bin has no report of nvidia-smi, amd-smi, rocm-smi or xpu-smi.',
      'c.txt is empty: the tool printed nothing.',
    ]);
  });

  test('a key is never quoted, not even from the only file', async () => {
    const key = 'AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ';
    for (const files of [{ 'secrets.key': `# onejob secret key\n${key}\n` }, { 'secrets.key': `${key}\n`, 'a.txt': 'x' }]) {
      const path = folder('keys', files);
      expect(JSON.stringify(await readRecording(path))).not.toContain('AGE-SECRET');
      expect(JSON.stringify(await readRecording(join(path, 'secrets.key')))).not.toContain('AGE-SECRET');
    }
  });

  test("what Windows' shell saved: UTF-16, with its line ends", async () => {
    const text = nvidia('xml/r536-rtx3080-windows-wddm.xml').replaceAll('\n', '\r\n');
    const file = folder('wide', { 'gpus.xml': Buffer.from(`\ufeff${text}`, 'utf16le') });
    expect(shapes(await readRecording(join(file, 'gpus.xml')))).toEqual(['1 x NVIDIA GeForce RTX 3080, 10240, 8.6']);
  });

  test('a pipe, as of another command', async () => {
    const pipe = join(home.path, 'pipe');
    execFileSync('mkfifo', [pipe]);
    const found = readRecording(pipe);
    createWriteStream(pipe).end(nvidia('xml/r595-l40s.xml'));
    expect(shapes(await found)).toEqual(['1 x NVIDIA L40S, 46068, 8.9']);
  });

  test('a path that is not there is an error of usage that names it', async () => {
    await expect(readRecording(join(home.path, 'nowhere'))).rejects.toMatchObject({
      code: 'E_USAGE',
      message: expect.stringContaining('nowhere'),
    });
  });
});

describe('texts that people paste', () => {
  const of = (text: string) => inventoryOf([{ name: 'paste', text }]);

  test('both outputs one after the other', () => {
    const xml = nvidia('xml/r595-l40s.xml');
    const [uuid] = /GPU-[0-9a-f-]+/.exec(xml) ?? [];
    const found = of(`$ nvidia-smi -L\nGPU 0: NVIDIA L40S (UUID: ${uuid})\n$ nvidia-smi -q -x\n${xml}\n`);
    expect(found).toMatchObject({ complete: true, driver: '595.91.07', devices: { length: 1 } });
  });

  test('an error', () => expect(codes(of('$ nvidia-smi\nNo devices were found\n'))).toEqual(['no-devices']));
});

test.each([
  ['index, name, uuid, memory.total [MiB]\n0, NVIDIA A100, GPU-27b94a00-ed54-5c24-b1fd-1054085de32a, 40960 MiB\n'],
  ['0, NVIDIA A100-SXM4-40GB, 40960, 12\n1, NVIDIA A100-SXM4-40GB, 40960, 0\n'],
])('values in CSV are named, with what to record instead: %j', (text) => {
  expect(inventoryOf([{ name: 'gpus.csv', text }]).findings).toMatchObject([
    {
      code: 'recording-unused',
      message: expect.stringMatching(/^gpus\.csv contains .*"nvidia-smi --query-gpu".*CSV/),
      hint: expect.stringContaining('nvidia-smi -q -x'),
    },
  ]);
});
