/** Names of images, as the Engine takes them. Pure. */

/**
 * A reference (github.com/distribution/reference): host with port, path, then tag and digest. Only registry and tag have upper case.
 * Ids of images count, too. Longer names are refused by the Engine.
 */
export const imageReference =
  /^(?![^@]{256})(?:[A-Za-z0-9.-]+(?::\d+)?\/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[a-f0-9]{64})?$/;

/** Names that the Engine takes for the same image as the rest of the name. */
const sameAs = /^(?:(?:docker\.io|index\.docker\.io|localhost)\/)?(?:library\/)?/;

/** Without what the Engine leaves out. */
export function plainName(reference: string): string {
  return reference.trim().toLowerCase().replace(sameAs, '');
}

/**
 * Names of images that onejob makes: `onejob/TYPE:HASH` of a recipe, `onejob-held:AGENT` of a held job. No registry may serve them:
 * anyone could have such a name at one.
 */
export function isOwnName(reference: string): boolean {
  return /^onejob(-held)?([/:@]|$)/.test(plainName(reference));
}
