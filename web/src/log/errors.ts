/** Which line of a log is the first one that a person looks for. */

const bad =
  /\b(?:fatal|panic(?:ked)?|segmentation fault|core dumped|out of memory|traceback|assertion failed|unhandled|undefined reference|no such file or directory|command not found|permission denied)\b|\b(?:error|exception)s?\b|\b(?:failed|failure|FAIL|FAILURES?)\b|✗|✘|❌/i;
// As names of classes are written.
const named = /\w(?:Error|Exception)s?\b/;
// Words for errors that count none, switch something on, or are part of a file's name.
const harmless =
  /\b(?:0|no|without|zero) (?:errors?|failures?|failed|exceptions?)\b|\b(?:errors?|failures?|failed|fatal)[:=] ?0\b|\b0 failed\b|-W(?:no-)?error|--[\w-]{0,40}(?:error|fail)\S*|set -e\b|errors?\.(?:c|cc|cpp|go|h|hpp|js|o|py|rs|ts|txt)\b(?!:\d)|continue-on-error|error_?handl|errorlevel/gi;

/** Characters of a line that are looked at: lines are foreign, and may be made to take long. */
const looked = 1_000;

/** Whether a line, without its colours, says that something went wrong. A guess. */
export function looksLikeError(line: string): boolean {
  const isBad = (text: string) => bad.test(text) || named.test(text);
  const start = line.slice(0, looked);
  return isBad(start) && isBad(start.replace(harmless, ' '));
}
