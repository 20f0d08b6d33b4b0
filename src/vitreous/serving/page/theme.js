/** Dark or light: what the person chose here before, else what their system says. Runs first, so nothing flashes. */

const KEPT = "vitreous-theme";

/** @returns {"dark" | "light"} */
export function currentTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen === "dark" || chosen === "light") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

export function toggleTheme() {
  const theme = currentTheme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEPT, theme);
  } catch {
    // storage may be forbidden: then the choice lasts as long as the page
  }
}

try {
  const kept = localStorage.getItem(KEPT);
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
} catch {
  // as above
}
