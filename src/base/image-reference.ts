/** Names of images, as the Engine takes them. Pure. */

/**
 * A reference (github.com/distribution/reference): host with port, path, then tag and digest. Only registry and tag have upper case.
 * Ids of images count, too. Longer names are refused by the Engine.
 */
export const imageReference =
  /^(?![^@]{256})(?:[A-Za-z0-9.-]+(?::\d+)?\/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[a-f0-9]{64})?$/;
