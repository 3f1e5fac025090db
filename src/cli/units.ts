/** Times and sizes as people read them: rounded, unlike those of the config. */

/** `4s`, `2m 05s`, `3h 07m`, `2d 4h`. */
export function formatAge(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const two = (count: number) => String(count).padStart(2, '0');
  if (seconds < 60) return `${seconds}s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)}h ${two(Math.floor(seconds / 60) % 60)}m`;
  return `${Math.floor(seconds / 86_400)}d ${Math.floor(seconds / 3_600) % 24}h`;
}

export function formatBytes(bytes: number): string {
  const names = ['B', 'KiB', 'MiB', 'GiB'];
  let value = bytes;
  let at = 0;
  for (; value >= 1024 && at < names.length - 1; at += 1) value /= 1024;
  return `${at === 0 ? value : value.toFixed(1)} ${names[at]}`;
}
