// The run: what was scored and how, what is exact, what to be careful with.

const GLOSS = {
  mode: { exact: "EI by factorization", lanczos: "EI by stochastic Lanczos quadrature", fast: "EI estimated from spectra of heads and moments of the rest", limit: "EI in its small-alpha form, for ranking" },
  linearization: { jacobian: "the true Jacobian of every node", frozen: "norms, attention patterns and gates held fixed" },
  residual: { edge: "one term per edge (equation 2)", joint: "one term per node: what all its parents leave unexplained", propagated: "the circuit run on its own, compared at its sinks", calibrated: "one term per node: what it writes against what is usual for what it reads" },
  parts: { nodes: "dEI subtracts every node", branches: "dEI subtracts every edge into a sink" },
  metric: { euclidean: "plain norms", relative: "each node in its own units, position by position" },
  emergence: { difference: "dEI, clipped at 0 (equation 3)", intensive: "nats per channel, not clipped" },
  positions: { all: "every token", no_sink: "from the second token on", last: "only the last token" },
  readout: { final_norm: "output of the final norm", logits: "all centred logits", tokens: "centred logits of chosen tokens" },
};

const UNUSUAL = "No single number here has been shown to predict correct answers. A suspect wrote something that the reference prompts do not lead one to expect; that does not say whether the answer is wrong, and a node with a low r2 is judged by little.";

function renderRun(run) {
  const facts = run.facts.map(([name, fact]) => [el("dt", {}, name), el("dd", {}, fact, GLOSS[name]?.[fact] ? el("small", {}, GLOSS[name][fact]) : null)]);
  const alpha = run.alpha.length ? run.alpha.slice(0, 3).map((a) => text(a)).join(", ") + (run.alpha.length > 3 ? ", …" : "") : "–";
  byId("run").replaceChildren(
    el("h2", {}, "The run"),
    el("div", { class: "columns" },
      el("div", { class: "card" }, el("dl", { class: "facts" }, facts, el("dt", {}, "alpha"), el("dd", {}, alpha, el("small", {}, run.alphaHow)))),
      el("div", { class: "card" }, el("h3", {}, "Exact or estimated"), run.exact.map((line) => el("p", {}, line)),
        el("h3", {}, "Before you trust a number"), run.warnings.length ? run.warnings.map(warning) : el("p", {}, "Nothing in the records calls for a warning."),
        el("p", { class: "dim" }, run.judged ? UNUSUAL : "No single number here has been shown to predict correct answers. A residual is what the circuit's edges leave unexplained; it does not say whether that matters.")),
    ),
  );
}

const warning = ({ title, text: explanation }) => el("p", { class: "warning" }, el("b", {}, `${title}.`), " ", explanation);

/** Names the settings in which the runs of the page differ: their numbers do not compare like with like. */
function renderMixed() {
  const box = byId("mixed");
  box.hidden = DATA.runs.length < 2;
  if (box.hidden) return;
  const names = DATA.differences.map(({ name }) => name);
  box.replaceChildren(
    el("h3", {}, `This page has ${DATA.runs.length} runs${names.length ? ` that differ in ${names.join(", ")}` : ""}`),
    el("div", { class: "frame" }, el("table", { class: "grid" }, el("caption", { class: "unseen" }, "Settings in which the runs differ"),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "setting"), DATA.runs.map((run) => el("th", { scope: "col" }, run.label)))),
      el("tbody", {}, DATA.differences.map(({ name, values }) => el("tr", {}, el("th", { scope: "row" }, name), values.map((shown) => el("td", {}, cut(shown, 60)))))))),
    el("p", { class: "dim" }, "A difference between runs may come from these settings as well as from the prompts. Comparisons across them are marked ⚠."));
}

/** Marks a comparison of records that were scored with different settings; nothing if they were scored alike. */
function acrossSettings(record, other) {
  const apart = other ? settingsApart(record, other) : [];
  const named = apart.map(([name, ours, theirs]) => `${name} ${cut(ours, 30)} against ${cut(theirs, 30)}`);
  return apart.length ? el("p", { class: "warning across" }, el("b", {}, "⚠ Scored differently: "), `${named.join("; ")}. Differences show the settings as well as the prompts.`) : null;
}
