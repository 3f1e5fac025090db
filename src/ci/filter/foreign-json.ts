/** JSON that a job may have written. */

/** Far deeper than anything an agent says. */
const deepest = 64;

/**
 * Null when it is none, or is nested so deeply that it could be read but not be written again: what writes it calls itself for
 * each level.
 */
export function foreignJson(body: Buffer): unknown {
  const text = body.toString();
  if (isDeep(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A loop, since an expression would begin anew at each quote of a text that is never closed. */
function isDeep(text: string): boolean {
  let depth = 0;
  let isQuoted = false;
  for (let at = 0; at < text.length; at += 1) {
    const char = text[at];
    if (char === '"') isQuoted = !isQuoted;
    else if (isQuoted && char === '\\') at += 1;
    else if (!isQuoted && (char === '[' || char === '{')) depth += 1;
    else if (!isQuoted && (char === ']' || char === '}')) depth -= 1;
    if (depth > deepest) return true;
  }
  return false;
}
