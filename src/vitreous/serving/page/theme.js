/** Dark or light: the user's last choice here, otherwise the system's setting. Runs first, so that nothing flashes. */

const STORAGE_KEY = "vitreous-theme";

export function toggleTheme() {
  const chosen = document.documentElement.dataset.theme;
  const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = isDark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(STORAGE_KEY, theme);
  } catch {
    // storage may be forbidden: then the choice lasts as long as the page
  }
}

try {
  const stored = localStorage.getItem(STORAGE_KEY);
  if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
} catch {
  // as above
}
