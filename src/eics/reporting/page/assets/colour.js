// What every colour scale needs: the theme, type that stays readable on a colour, and gradients for legends.

const systemTheme = matchMedia("(prefers-color-scheme: dark)");
const onPaper = matchMedia("print");
const isDark = () => !onPaper.matches && (document.documentElement.dataset.theme || (systemTheme.matches ? "dark" : "light")) === "dark";

/** Black or white, whichever has the higher contrast on a colour: at least 4.5 to 1. */
function inkOn(colour) {
  const linear = colour.match(/\d+/g).map((part) => (part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.179 ? "#000" : "#fff";
}

const gradient = (colour, from = 0) => `linear-gradient(90deg, ${[0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1].map((at) => colour(from + at * (1 - from))).join(", ")})`;
