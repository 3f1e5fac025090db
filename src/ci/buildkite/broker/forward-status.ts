/** Whether a status is one that an answer may end with. Node reads any number there, and throws when it is to write most of them. */
export function isStatus(status: number): boolean {
  return status >= 200 && status <= 599;
}
