// A matrix of shares or weights as a table: tokens along the axes, a cell's colour and its number say the same.

const ROWS = 24; // rows before a "show all" button

/**
 * @param {{id: string, caption: string, corner: string, columns: {name: string, title: string}[], most: number,
 *   rows: {name: string, title?: string, cells: number[], choose?: () => void, selected?: boolean}[]}} options
 */
function matrix(options) {
  const body = el("tbody");
  const digits = options.most < 0.01 ? 2 : options.most < 0.1 ? 1 : 0;
  const more = el("button", { type: "button", class: "quiet more", onclick: () => show(options.rows.length) }, `Show all ${options.rows.length} rows`);

  function cell(number) {
    if (missing(number) || number === 0) return el("td", { class: "void", "data-value": number === 0 ? 0 : null });
    const part = strength(Math.abs(number), options.most);
    return el("td", { "data-value": Number(number.toPrecision(4)), title: percent(number), style: { background: heat(part), color: inkOn(heat(part)) } }, inHundredths(number, digits));
  }

  function row({ name, title, cells, choose, selected }) {
    const head = choose ? el("button", { type: "button", class: "bare", onclick: choose }, name) : name;
    return el("tr", { "aria-selected": selected ? "true" : null }, el("th", { scope: "row", title: title ?? null }, head), cells.map(cell));
  }

  function show(count) {
    body.replaceChildren(...options.rows.slice(0, count).map(row));
    more.hidden = count >= options.rows.length;
  }

  show(ROWS);
  return el("div", { class: "frame matrix", id: options.id, tabindex: 0, role: "region", "aria-label": options.caption },
    el("table", {}, el("caption", { class: "unseen" }, options.caption),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, options.corner), options.columns.map(({ name, title }) => el("th", { scope: "col", title }, el("span", {}, cut(name, 14)))))), body), more);
}

/** A part of the whole in hundredths, without the sign of percent: there are many, and the corner names the unit. */
function inHundredths(number, digits) {
  const shown = (number * 100).toFixed(digits);
  return Number(shown) === 0 ? "·" : tidy(shown);
}
