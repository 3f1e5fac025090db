/** Names of images that onejob makes on an Engine. No registry may serve them: anyone could have such a name at one. */

/** Names that the Engine takes for the same image as the rest of the name. */
const sameAs = /^(?:(?:docker\.io|index\.docker\.io|localhost)\/)?(?:library\/)?/;

/** Without what the Engine leaves out. */
export function plainName(reference: string): string {
  return reference.trim().toLowerCase().replace(sameAs, '');
}

/** `onejob/TYPE:HASH` of a recipe, `onejob-held:AGENT` of a held job. */
export function isOwnName(reference: string): boolean {
  return /^onejob(-held)?([/:@]|$)/.test(plainName(reference));
}
