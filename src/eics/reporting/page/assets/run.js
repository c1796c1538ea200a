// The run: what was scored and how, what is exact, what to beware of.

const GLOSS = {
  mode: { exact: "EI by factorization", lanczos: "EI by stochastic quadrature", fast: "EI in its small-alpha form, for ranking" },
  linearization: { jacobian: "the true Jacobian of every node", frozen: "norms, attention patterns and gates held as observed" },
  residual: { edge: "one term for each edge (equation 2)", joint: "one term for each node: what all its parents explain", propagated: "the circuit run by itself, compared at its sinks" },
  parts: { nodes: "dEI subtracts every node", branches: "dEI subtracts every edge into a sink" },
  metric: { euclidean: "plain norms", relative: "each node in its own units, position by position" },
  emergence: { difference: "dEI, clipped at 0 (equation 3)", intensive: "nats for each channel, not clipped" },
  positions: { all: "every token", no_sink: "from the second token on", last: "the last token alone" },
  readout: { final_norm: "after the final norm", logits: "all centred logits", tokens: "centred logits of chosen tokens" },
};

function renderRun(run) {
  const facts = run.facts.map(([name, said]) => [el("dt", {}, name), el("dd", {}, said, GLOSS[name]?.[said] ? el("small", {}, GLOSS[name][said]) : null)]);
  const alpha = run.alpha.length ? run.alpha.slice(0, 3).map((a) => text(a)).join(", ") + (run.alpha.length > 3 ? ", …" : "") : "–";
  byId("run").replaceChildren(
    el("h2", {}, "The run"),
    el("div", { class: "columns" },
      el("div", { class: "card" }, el("dl", { class: "facts" }, facts, el("dt", {}, "alpha"), el("dd", {}, alpha, el("small", {}, run.alphaHow)))),
      el("div", { class: "card" }, el("h3", {}, "Exact or estimated"), run.exact.map((line) => el("p", {}, line)),
        el("h3", {}, "Before you believe a number"), run.warnings.length ? run.warnings.map(warning) : el("p", {}, "Nothing in the records calls for a warning."),
        el("p", { class: "dim" }, "No scalar here has been shown to predict correct answers. A residual says what is not explained along the circuit, not whether that matters.")),
    ),
  );
}

const warning = ({ title, text: said }) => el("p", { class: "warning" }, el("b", {}, `${title}.`), " ", said);

function renderNotes() {
  const box = byId("notes");
  box.hidden = DATA.notes.length === 0;
  box.replaceChildren(el("h3", {}, "Not everything could be read"), el("ul", {}, DATA.notes.map((note) => el("li", {}, note))));
}
