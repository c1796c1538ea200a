// Shares in percent.

/** A share in percent, with about two significant digits. */
function percent(share) {
  if (missing(share)) return "–";
  const size = Math.abs(share * 100);
  if (size === 0) return "0%";
  if (size < 0.01) return share < 0 ? "−<0.01%" : "<0.01%";
  return `${tidy((share * 100).toFixed(size < 1 ? 2 : 1))}%`;
}
