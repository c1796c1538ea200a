// Compared with usual: percentiles of a calibration, and how far a node's share lies from its usual one.

const FAR = 3; // standard deviations at which a colour ends
const ENOUGH = 8; // prompts that define what is usual in a run

const spreads = new Map();

/** Median and robust standard deviation of every node's share over the scored prompts of a run. */
function spreadOf(run) {
  if (!spreads.has(run)) {
    const lists = recordsOf(run).filter(scored).map((record) => ofNodes(record, "share"));
    spreads.set(run, DATA.circuits[DATA.runs[run].circuit].nodes.map((_, index) => {
      const shares = lists.map((list) => list[index]).filter((share) => !missing(share));
      const middle = median(shares);
      return { middle, width: 1.4826 * median(shares.map((share) => Math.abs(share - middle))) };
    }));
  }
  return spreads.get(run);
}

function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : NaN;
}

/** Deviations of the nodes in standard deviations, from the calibration or from this run's own prompts. */
function deviations(record, scale) {
  if (scale === "usual") return unpack(record).nodeZ;
  const spread = spreadOf(record.run);
  return ofNodes(record, "share").map((share, index) => (spread[index].width > 0 ? (share - spread[index].middle) / spread[index].width : NaN));
}

const BY_Z = {
  title: "node colour: z", colour: aboveUsual, from: 0, ends: ["0 or less: usual", `▲ ${FAR}σ or more: unusual`],
  note: "z: how far a write is from what the node’s reading leads one to expect, in standard deviations above the mean of the calibration prompts",
};

/** The colour scales that a record has, the one to start with first. */
function scalesOf(record) {
  return [
    unpack(record).nodeZ.length && { key: "usual", name: "compared with usual", title: "node colour: compared with usual", note: "standard deviations from the calibration's reference prompts", ...(judged(record) ? BY_Z : {}) },
    { key: "share", name: `share of ${sheafName(record)}`, title: `node colour: share of ${sheafName(record)}` },
    recordsOf(record.run).filter(scored).length >= ENOUGH && { key: "run", name: "compared with this run's prompts", title: "node colour: compared with this run’s prompts", note: "robust standard deviations from the median of the run" },
  ].filter(Boolean);
}

const scaleOf = (record, chosen) => scalesOf(record).find(({ key }) => key === chosen) ?? scalesOf(record)[0];

const signed = (number, show) => (missing(number) ? "–" : number > 0 ? `▲ ${show(number)}` : number < 0 ? `▼ ${show(-number)}` : "0");
const inSigmas = (number) => `${number.toFixed(1)}σ`;

/** How to paint the nodes of a record on a scale: a function from a node to its colours and its label, and the key. */
function paintNodes(record, chosen) {
  const scale = scaleOf(record, chosen);
  if (scale.key === "share") {
    const shares = unpack(record).nodeShare;
    const most = Math.max(0, ...shares.filter((share) => !missing(share)));
    const paint = (index) => {
      const part = strength(shares[index], most);
      return missing(shares[index]) || !(most > 0) ? {} : { fill: heat(part), ink: inkOn(heat(part)), note: shares[index] >= 0.05 ? percent(shares[index]) : null, value: shares[index] };
    };
    return { paint, key: most > 0 ? colourKey(scale.title, gradient(heat), [0, most / 4, most].map(percent)) : null };
  }
  const far = deviations(record, scale.key);
  const { colour = away, from = -1 } = scale;
  const paint = (index) => {
    const part = far[index] / FAR;
    return missing(part) ? {} : { fill: colour(part), ink: inkOn(colour(part)), note: (from < 0 ? Math.abs(far[index]) : far[index]) >= 1 ? signed(far[index], inSigmas) : null, value: far[index] };
  };
  const ends = scale.ends ?? [`▼ ${FAR}σ below`, "usual", `▲ ${FAR}σ above`];
  return { paint, key: colourKey(scale.title, gradient(colour, from), ends, scale.note) };
}

const ordinal = (number) => `${number}${["th", "st", "nd", "rd"][number % 100 > 10 && number % 100 < 14 ? 0 : number % 10] ?? "th"}`;

/** A percentile among the reference prompts of a calibration, in words and in colour. */
function chip(percentile, long = false) {
  const part = (percentile - 50) / 50;
  const sign = percentile > 90 ? "▲ " : percentile < 10 ? "▼ " : "";
  return el("span", { class: "chip", "data-percentile": percentile, style: { background: away(part), color: inkOn(away(part)) }, title: `higher than ${text(percentile, 3)}% of the calibration's reference prompts` },
    `${sign}${ordinal(Math.round(percentile))}${long ? " percentile" : ""}`);
}
