/** Which line of a log is the first one that a person looks for. */

const bad =
  /\b(?:fatal|panic(?:ked)?|segmentation fault|core dumped|out of memory|traceback|assertion failed|unhandled|undefined reference|no such file or directory|command not found|permission denied)\b|\b(?:error|exception)s?\b|\b(?:failed|failure|FAIL|FAILURES?)\b|✗|✘|❌/i;
// As names of classes are written.
const named = /\w(?:Error|Exception)s?\b/;
// Words for errors that count none, switch something on, or are part of a file's name.
const harmless =
  /\b(?:0|no|without|zero) (?:errors?|failures?|failed|exceptions?)\b|\b(?:errors?|failures?|failed|fatal)[:=] ?0\b|\b0 failed\b|-W(?:no-)?error|--\S*(?:error|fail)\S*|set -e\b|\w*errors?\.(?:c|cc|cpp|go|h|hpp|js|o|py|rs|ts|txt)\b(?!:\d)|continue-on-error|error_?handl|errorlevel/gi;

/** Whether a line, without its colours, says that something went wrong. A guess. */
export function looksLikeError(line: string): boolean {
  const isBad = (text: string) => bad.test(text) || named.test(text);
  return isBad(line) && isBad(line.replace(harmless, ' '));
}
