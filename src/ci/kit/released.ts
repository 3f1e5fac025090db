/** Checksums that projects publish with their releases. */
import { OnejobError } from '../../base/errors.ts';
import { type ReceiveOptions, reasonOf, receiveText } from '../../images/receive.ts';

/**
 * SHA-256 of the file at `from`, lower-case hex, from a text at `sums` that has it alone, or in a line with its name. `program`: its
 * name, for people. @throws OnejobError E_AGENT_PACKAGE
 */
export async function releasedSum(
  { from, sums, file, program }: { readonly from: string; readonly sums: URL; readonly file: string; readonly program: string },
  options: Omit<ReceiveOptions, 'limit'>,
): Promise<string> {
  try {
    const lines = (await receiveText(sums, { ...options, limit: 2 ** 20 })).split('\n').map((line) => line.trim().split(/\s+\*?/));
    const [sum = ''] = lines.find(([, name]) => name?.replace(/^\.\//, '') === file) ?? (lines.length <= 2 ? (lines[0] ?? []) : []);
    if (/^[0-9a-f]{64}$/i.test(sum)) return sum.toLowerCase();
    throw new Error(`it has no checksum of ${file}`);
  } catch (error) {
    options.signal.throwIfAborted();
    throw new OnejobError('E_AGENT_PACKAGE', `Cannot check the runner from ${from} against ${sums}: ${reasonOf(error)}.`, {
      hint: `Check whether "curl -fLO ${sums}" works on this host, or name a program that is already there: agent: { from: /path/to/${program} }.`,
      retry: true,
      cause: error,
    });
  }
}
