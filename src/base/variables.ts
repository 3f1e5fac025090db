/** The variables of a process, as `process.env` has them. */
export type Variables = Readonly<Record<string, string | undefined>>;
