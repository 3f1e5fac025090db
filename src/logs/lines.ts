/** What an agent says itself, line by line, while its log is kept. */
import type { LogFile } from './log-file.ts';

/** Characters of one line that are told; the rest of it is left out. */
const longest = 4_096;

/** Tells each line of standard error, from the first that is kept to the last before the log is closed. @throws OnejobError E_STATE_* */
export async function tellLines(file: Pick<LogFile, 'read'>, tell: (line: string) => void): Promise<void> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const { stream, bytes } of file.read({ follow: true })) {
    if (stream !== 'stderr') continue;
    const lines = (rest + decoder.decode(bytes, { stream: true })).split('\n');
    rest = (lines.pop() ?? '').slice(0, longest);
    for (const line of lines) tell(line.slice(0, longest));
  }
  if (rest !== '') tell(rest);
}
