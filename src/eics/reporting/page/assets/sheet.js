// A table of a study: its controls above, its count beside them, its rows filtered and sorted as the state says.

/**
 * @param {{caption: string, columns: Object[], rows: Object[], keep: (row) => boolean, key: (row) => string, choose: (row) => void,
 *   state: Object, sort: string, controls: (changed: () => void) => any[], saved: () => void, chosen: () => string, noun: string, none: string}} options
 */
function makeSheet(options) {
  const { state, sort, rows, noun } = options;
  const count = el("span", { class: "dim count", role: "status" });
  const none = el("p", { class: "empty", hidden: true }, options.none);
  const sorting = sortingOf(state[sort]);
  const holder = el("div");
  let table = null;

  function build(columns) {
    table = makeTable({ caption: options.caption, columns, sorting, key: options.key, choose: options.choose, sorted: () => {
      state[sort] = sortKey(sorting);
      options.saved();
    } });
    holder.replaceChildren(table.frame);
    filterRows();
  }

  function filterRows() {
    const kept = rows.filter(options.keep);
    table.set(kept);
    table.mark(options.chosen(), false);
    table.frame.hidden = kept.length === 0;
    none.hidden = kept.length > 0;
    count.textContent = kept.length === rows.length ? `${rows.length} ${noun}` : `${kept.length} of ${rows.length} ${noun}`;
  }

  const changed = () => {
    filterRows();
    options.saved();
  };
  const tools = el("div", { class: "tools" }, options.controls(changed), count);
  build(options.columns);
  return { element: [tools, holder, none], build, mark: (into = true) => table.mark(options.chosen(), into) };
}
