// Magma, for sizes: large is dark on white and bright on black, and colour-blind readers can tell it apart.

const MAGMA = ["000004", "180f3d", "440f76", "721f81", "9e2f7f", "cd4071", "f1605d", "fd9668", "feca8d", "fcfdbf"].map((hex) =>
  [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)),
);

/** How strongly a share is shown, from 0 to 1: a square root, because most shares are small. */
const strength = (share, most) => (most > 0 ? Math.sqrt(clamp(share / most, 0, 1)) : 0);

function heat(part) {
  const at = (isDark() ? 0.38 + 0.6 * part : 0.885 - 0.785 * part) * (MAGMA.length - 1);
  const low = Math.min(Math.floor(at), MAGMA.length - 2);
  const mixed = MAGMA[low].map((first, i) => Math.round(first + (at - low) * (MAGMA[low + 1][i] - first)));
  return `rgb(${mixed.join(",")})`;
}
