/** Light, dark, or as the system: kept in this browser. */

export type Theme = 'auto' | 'light' | 'dark';
const themes: readonly Theme[] = ['auto', 'light', 'dark'];
const stored = 'onejob-theme';

export function readTheme(): Theme {
  return themes.find((theme) => theme === localStorage.getItem(stored)) ?? 'auto';
}

export function nextTheme(theme: Theme): Theme {
  return themes[(themes.indexOf(theme) + 1) % themes.length] ?? 'auto';
}

export function setTheme(theme: Theme): void {
  localStorage.setItem(stored, theme);
  show(theme);
}

/** Shows the stored theme now, and whenever the system's preference changes. */
export function startTheme(): void {
  const system = window.matchMedia('(prefers-color-scheme: dark)');
  system.addEventListener('change', () => show(readTheme()));
  show(readTheme());
}

/** The style sheet knows only `light` and `dark`. */
function show(theme: Theme): void {
  const dark = theme === 'auto' ? window.matchMedia('(prefers-color-scheme: dark)').matches : theme === 'dark';
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
}
