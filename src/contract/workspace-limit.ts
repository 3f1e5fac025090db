/** Alone in its file: who packs a workspace should not load all schemas for it, which takes a tenth of a second. */

/** Bytes of the tar of a workspace. */
export const workspaceLimit = 2 * 2 ** 30;
