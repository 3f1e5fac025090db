/** AMD's cards from the JSON of `rocm-smi` and `amd-smi`. No text makes it throw. */
import { finding, printed } from '../finding.ts';
import type { Inventory } from '../inventory.ts';
import { jsonIn } from '../said.ts';
import { amdSmiCards, readAmdSmi } from './amd-smi.ts';
import { amdHost, askAgain } from './host.ts';
import { type AmdReading, readingOf } from './reading.ts';
import { isRocmSmi, readRocmSmi } from './rocm-smi.ts';

/** Banners and errors of AMD's tools, and how a card begins in what they print without `--json`, which is not read. */
const ours =
  /ROCm System Management Interface|^AMD System Management Interface|amdgpu not found in modules|AMDSMI_STATUS_|\bamdsmi\b|^GPU(?:\[\d+\]\s*: |: \d+\s*\n {2,}\w+:)/im;

/** Whether a text is the output of one of AMD's tools, complete or not. */
export function looksLikeAmd(text: string): boolean {
  if (ours.test(text)) return true;
  const { values, torn } = jsonIn(text);
  if (values.some((value) => isRocmSmi(value) || amdSmiCards(value) !== null)) return true;
  return torn && /"card\d+":\s*\{|"gpu_data":\s*\[|"asic":\s*\{/.test(text);
}

/** The host whose AMD tools printed `texts`. A text that is not understood gives a finding, and the set is not complete. */
export function amdInventory(texts: readonly string[]): Inventory {
  return amdHost(texts.flatMap(readAmd));
}

export function readAmd(text: string): readonly AmdReading[] {
  const { values, torn } = jsonIn(text);
  const readings = values.flatMap((value): AmdReading[] => {
    const cards = amdSmiCards(value);
    if (cards !== null) return [readAmdSmi(cards)];
    return isRocmSmi(value) ? [readRocmSmi(value)] : [];
  });
  if (torn) readings.push(trouble('output-torn', 'The output of an AMD tool is incomplete: it ends early.', askAgain));
  if (readings.length > 0) return readings;
  if (/not found in modules|driver not (initialized|loaded|found)|DRIVER_NOT_LOADED/i.test(text)) {
    const message = 'The AMD driver amdgpu is not loaded, so no AMD card can be used.';
    return [trouble('driver-not-loaded', message, 'Type "modprobe amdgpu", or search dmesg for amdgpu.')];
  }
  if (values.some((value) => Array.isArray(value)) || /no json data|no (amd )?gpus?\b.*(found|detected)/i.test(text))
    return [{ ...trouble('no-devices', 'The AMD tool lists no cards.', 'Search dmesg for amdgpu.'), complete: true }];
  if (/required groups|NO_PERM|permission denied/i.test(text)) {
    const hint = 'Add the user to the groups "render" and "video".';
    return [trouble('insufficient-permissions', 'The AMD tool has no permission to query the driver.', hint)];
  }
  return [trouble('not-understood', `The AMD tool printed ${printed(text)}.`, askAgain)];
}

/** A reading without cards, with the reason. */
function trouble(code: string, message: string, hint: string): AmdReading {
  return { ...readingOf('amd-smi', null, []), findings: [finding('error', code, 'host', message, hint)], complete: false };
}
