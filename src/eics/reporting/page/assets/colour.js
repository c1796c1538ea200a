// Colours that colour-blind readers can tell apart: magma for shares (large is dark on white and bright on black), and for
// labels those of Okabe and Ito with two greys.

const MAGMA = ["000004", "180f3d", "440f76", "721f81", "9e2f7f", "cd4071", "f1605d", "fd9668", "feca8d", "fcfdbf"].map((hex) =>
  [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)),
);
const LABELS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#a8487f", "#8a6d00", "#56b4e9", "#1d1f27", "#8c8c8c"],
  dark: ["#56b4e9", "#f0915a", "#3fc79a", "#e39ac4", "#e6c84b", "#8fa8ff", "#eceef4", "#9a9a9a"],
};
const THEME = "eics-theme";

const systemTheme = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (systemTheme.matches ? "dark" : "light")) === "dark";

/** How strongly a share is shown, from 0 to 1: a square root, because most shares are small. */
const strength = (share, most) => (most > 0 ? Math.sqrt(clamp(share / most, 0, 1)) : 0);

function heat(part) {
  const at = (isDark() ? 0.38 + 0.6 * part : 0.885 - 0.785 * part) * (MAGMA.length - 1);
  const low = Math.min(Math.floor(at), MAGMA.length - 2);
  const mixed = MAGMA[low].map((first, i) => Math.round(first + (at - low) * (MAGMA[low + 1][i] - first)));
  return `rgb(${mixed.join(",")})`;
}

/** Black or white, whichever is readable on `heat(part)`. */
const onHeat = (part) => (isDark() === part > 0.36 ? "#000" : "#fff");

const labelColour = (index) => LABELS[isDark() ? "dark" : "light"][index];

function storeTheme(theme) {
  try {
    localStorage.setItem(THEME, theme);
  } catch {
    // A page opened from a file may have no storage.
  }
}

function storedTheme() {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}
