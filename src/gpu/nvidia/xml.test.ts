import { describe, expect, test } from 'vitest';
import { nvidia } from '../../../test/support/gpu-recordings.ts';
import { looksLikeXml, readXml } from './xml.ts';

const whole = nvidia('xml/r580-h100-x8.xml');
const uuids = (text: string) => readXml(text).gpus.map((gpu) => gpu.facts.uuid);
const all = uuids(whole);

const small = (inner: string) => `<?xml version="1.0" ?>
<nvidia_smi_log>
\t<driver_version>550.54.14</driver_version>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:01:00.0">
\t\t<uuid>GPU-11111111-1111-1111-1111-111111111111</uuid>
${inner}
\t</gpu>
</nvidia_smi_log>
`;

describe('torn', () => {
  test.each([0.1, 0.3, 0.5, 0.7, 0.9, 0.999])('at %d of its length: not whole, and the whole blocks are kept', (part) => {
    const cut = whole.slice(0, Math.floor(whole.length * part));
    const blocks = cut.split('</gpu>').length - 1;
    const read = readXml(cut);
    expect(read.whole).toBe(false);
    expect(read.gpus.map((gpu) => gpu.facts.uuid)).toEqual(all.slice(0, blocks));
    expect(read).toMatchObject({ driver: '580.105.08', cuda: '13.0', attached: 8 });
  });

  test('without its beginning', () => {
    const cut = whole.slice(whole.indexOf('</gpu>') + 6);
    expect(readXml(cut)).toMatchObject({ whole: false });
    expect(uuids(cut)).toEqual(all.slice(1));
  });

  test('in the middle: the block around the damage is left out', () => {
    const at = whole.indexOf('<fan_speed>', whole.indexOf('GPU-00000002'));
    expect(uuids(`${whole.slice(0, at)}<<&${whole.slice(at)}`)).toEqual(all.filter((_, index) => index !== 2));
  });

  test('lines lost between two GPUs make neither of them', () => {
    const from = whole.indexOf('<fan_speed>');
    const to = whole.indexOf('<persistence_mode>', from);
    const read = readXml(whole.slice(0, from) + whole.slice(to));
    expect(read.whole).toBe(false);
    expect(read.gpus.map((gpu) => gpu.facts.uuid)).toEqual(all.slice(2));
  });

  test.each(['', 'hello', '<html></html>', '<nvidia_smi_log', '</nvidia_smi_log>', '<gpu id="', '\u0000\u0001'])(
    'nothing in %j',
    (text) => expect(readXml(text)).toMatchObject({ gpus: [], whole: false }),
  );
});

test('what is printed around it is handed on', () => {
  const read = readXml(`warning: before\n${small('')}Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n`);
  expect(read.whole).toBe(true);
  expect(read.rest).toContain('warning: before');
  expect(read.rest).toContain('Unable to determine');
});

test('an unknown element is passed over, a missing one is missing', () => {
  const read = readXml(small('<quantum_mode><total>5 MiB</total></quantum_mode>'));
  expect(read.whole).toBe(true);
  expect(read.gpus[0]?.facts).toEqual({ pciId: '00000000:01:00.0', uuid: 'GPU-11111111-1111-1111-1111-111111111111' });
});

test('the same name below another parent is another thing', () => {
  const read = readXml(
    small('<bar1_memory_usage><total>7 MiB</total></bar1_memory_usage><fb_memory_usage><total>9 MiB</total></fb_memory_usage>'),
  );
  expect(read.gpus[0]?.facts.memoryTotal).toBe('9 MiB');
});

test('newer names of the versions come first', () => {
  const text = small('').replace(
    '<attached_gpus>',
    '<cuda_version>13.3 [Deprecated]</cuda_version><kmd_version>610.57.04</kmd_version><cuda_umd_version>13.3</cuda_umd_version><attached_gpus>',
  );
  expect(readXml(text)).toMatchObject({ driver: '610.57.04', cuda: '13.3' });
  expect(readXml(text.replace('610.57.04', 'N/A'))).toMatchObject({ driver: '550.54.14' });
});

describe('a job chooses the name of its process', () => {
  const process = (name: string) => `\t\t<processes>
\t\t\t<process_info>
\t\t\t\t<pid>42</pid>
\t\t\t\t<type>C</type>
\t\t\t\t<process_name>${name}</process_name>
\t\t\t\t<used_memory>1 MiB</used_memory>
\t\t\t</process_info>
\t\t</processes>`;
  const evil =
    '</process_name></process_info></processes></gpu><gpu id="1"><uuid>GPU-66666666-6666-6666-6666-666666666666</uuid></gpu><gpu><a>';

  test.each([
    evil,
    'a <b> & c',
    'python \u0001\u001b[2J',
    '&bogus;',
    '</gpu>',
    '<nvidia_smi_log>',
    '</nvidia_smi_log>',
    '<!--',
    '<![CDATA[',
  ])('%j tears nothing and adds nothing', (name) => {
    const read = readXml(small(process(name)));
    expect(read.whole).toBe(true);
    expect(read.gpus.map((gpu) => gpu.facts.uuid)).toEqual(['GPU-11111111-1111-1111-1111-111111111111']);
    expect(read.gpus[0]?.processes).toHaveLength(1);
  });

  test('and keeps it where it is harmless', () =>
    expect(readXml(small(process('/opt/a&amp;b --x=1'))).gpus[0]?.processes?.[0]?.name).toBe('/opt/a&b --x=1'));

  test('a name is not a trouble of the card', () => expect(readXml(small(process('GPU is lost'))).gpus[0]?.trouble).toBeNull());
});

test('it is known by what it holds', () => {
  expect(looksLikeXml(whole)).toBe(true);
  expect(looksLikeXml(whole.slice(-3000))).toBe(true);
  expect(looksLikeXml(nvidia('q/r535-a10.txt'))).toBe(false);
});
