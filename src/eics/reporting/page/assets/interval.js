// Numbers of one node: a list of them, and estimates with their intervals.

/** An estimate with the ends of its interval in small type. */
function estimate(interval, show = (number) => text(number, 3)) {
  if (!interval || missing(interval[0])) return "–";
  const [value, low, high] = interval;
  return [show(value), " ", missing(low) || missing(high) ? null : el("small", { class: "ends" }, `${show(low)} to ${show(high)}`)];
}

const sizeOf = (given) => (missing(given) ? null : Math.abs(given));
const estimateColumn = (name, of, title, show) => ({ name, title: `${title}; sorted by size`, number: true, of: (row) => sizeOf(of(row)?.[0]), show: (row) => estimate(of(row), show) });

const detailList = (lines) => el("dl", {}, lines.filter(Boolean).map(([name, shown]) => [el("dt", {}, name), el("dd", {}, shown)]));
