/** Keys for one hand. They do nothing while somebody types, and can be switched off. */

interface Shortcut {
  readonly key: string;
  readonly what: string;
  /** A page, a dialog, or what the log does. */
  readonly action: string;
}

export const shortcuts: readonly Shortcut[] = [
  { key: '1', what: 'Now', action: '#/' },
  { key: '2', what: 'History', action: '#/history' },
  { key: '3', what: 'Health', action: '#/health' },
  { key: '/', what: 'Find a job', action: 'find' },
  { key: 't', what: 'Light, dark, or as the system', action: 'theme' },
  { key: 'l', what: 'In a job: search its output', action: 'l' },
  { key: 'e', what: 'In a job: first error', action: 'e' },
  { key: 'n', what: 'In a job: next match', action: 'n' },
  { key: 'p', what: 'In a job: previous match', action: 'p' },
  { key: 's', what: 'In a job: start of the output', action: 's' },
  { key: 'f', what: 'In a job: end of the output, and follow', action: 'f' },
  { key: '?', what: 'This list', action: 'help' },
];

const stored = 'onejob-keys';

/** Whether this browser uses them. */
export const usesKeys = {
  get: (): boolean => localStorage.getItem(stored) !== 'off',
  set: (on: boolean): void => localStorage.setItem(stored, on ? 'on' : 'off'),
};

/** null for a key that means nothing here. */
export function keyOf(event: KeyboardEvent): Shortcut | null {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return null;
  const on = event.target instanceof Element ? event.target : null;
  if (on?.closest('input, select, textarea, dialog, [contenteditable]')) return null;
  const found = shortcuts.find(({ key }) => key === event.key);
  return found === undefined || !usesKeys.get() ? null : found;
}
