// Colours that colour-blind readers can tell apart: magma for shares (large is dark on white and bright on black), and for
// labels those of Okabe and Ito with two greys.

const MAGMA = ["000004", "180f3d", "440f76", "721f81", "9e2f7f", "cd4071", "f1605d", "fd9668", "feca8d", "fcfdbf"].map((hex) =>
  [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)),
);
const LABELS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#a8487f", "#8a6d00", "#56b4e9", "#1d1f27", "#8c8c8c"],
  dark: ["#56b4e9", "#f0915a", "#3fc79a", "#e39ac4", "#e6c84b", "#8fa8ff", "#eceef4", "#9a9a9a"],
};
// Blue below, orange above: the pair that every kind of colour blindness keeps apart; a sign always goes with it.
const AWAY = { light: { below: [33, 102, 172], middle: [247, 247, 247], above: [179, 88, 6] }, dark: { below: [92, 167, 245], middle: [46, 51, 66], above: [248, 160, 80] } };
const THEME = "eics-theme";

const systemTheme = matchMedia("(prefers-color-scheme: dark)");
const onPaper = matchMedia("print");
const isDark = () => !onPaper.matches && (document.documentElement.dataset.theme || (systemTheme.matches ? "dark" : "light")) === "dark";

/** How strongly a share is shown, from 0 to 1: a square root, because most shares are small. */
const strength = (share, most) => (most > 0 ? Math.sqrt(clamp(share / most, 0, 1)) : 0);

function heat(part) {
  const at = (isDark() ? 0.38 + 0.6 * part : 0.885 - 0.785 * part) * (MAGMA.length - 1);
  const low = Math.min(Math.floor(at), MAGMA.length - 2);
  const mixed = MAGMA[low].map((first, i) => Math.round(first + (at - low) * (MAGMA[low + 1][i] - first)));
  return `rgb(${mixed.join(",")})`;
}

/** Black or white, whichever has the higher contrast on a colour: at least 4.5 to 1. */
function inkOn(colour) {
  const linear = colour.match(/\d+/g).map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000" : "#fff";
}

/** Colour of a deviation, from -1 (below) over 0 to 1 (above). */
function away(part) {
  const { below, middle, above } = AWAY[isDark() ? "dark" : "light"];
  const end = part < 0 ? below : above;
  const size = Math.sqrt(clamp(Math.abs(part), 0, 1));
  return `rgb(${middle.map((first, i) => Math.round(first + size * (end[i] - first))).join(",")})`;
}

/** Colour of a z, from 0 or less (as usual) to 1 (far above): linear, so that what is nearly usual stays pale. */
const aboveUsual = (part) => away(clamp(part, 0, 1) ** 2);

const gradient = (colour, from = 0) => `linear-gradient(90deg, ${[0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1].map((at) => colour(from + at * (1 - from))).join(", ")})`;

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
