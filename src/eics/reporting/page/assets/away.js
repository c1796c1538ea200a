// Deviations: below, none, above.

// Blue below, orange above: the pair that every kind of colour blindness keeps apart; a sign always goes with it.
const AWAY = { light: { below: [33, 102, 172], middle: [247, 247, 247], above: [179, 88, 6] }, dark: { below: [92, 167, 245], middle: [46, 51, 66], above: [248, 160, 80] } };

/** Colour of a deviation, from -1 (below) over 0 to 1 (above). */
function away(part) {
  const { below, middle, above } = AWAY[isDark() ? "dark" : "light"];
  const end = part < 0 ? below : above;
  const size = Math.sqrt(clamp(Math.abs(part), 0, 1));
  return `rgb(${middle.map((first, i) => Math.round(first + size * (end[i] - first))).join(",")})`;
}
