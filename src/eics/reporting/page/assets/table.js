// A table that sorts by any column and whose rows can be selected by mouse or keyboard.

const PAGE = 200; // rows before a "more" button

/**
 * `sorting` holds the column to sort by; it outlives the table, so that the next one is sorted the same way.
 * @param {{caption: string, columns: {name: string, title?: string, of: (row) => any, show?: (row) => any,
 *   number?: boolean, wide?: boolean, side?: boolean}[], sorting: {name?: string, down?: boolean}, key: (row) => any,
 *   choose: (row) => void, hover?: (row|null) => void, sorted?: () => void}} options
 */
function makeTable(options) {
  const { columns, sorting } = options;
  const state = { rows: [], shown: [], most: PAGE, current: null };
  const head = el("tr");
  const body = el("tbody");
  const more = el("button", { type: "button", class: "quiet more", hidden: true, onclick: () => show((state.most += PAGE)) });
  const table = el("table", { class: "grid" }, el("caption", { class: "unseen" }, options.caption), el("thead", {}, head), body);
  const frame = el("div", { class: "frame" }, table, more);

  for (const column of columns) {
    const sort = () => {
      Object.assign(sorting, { name: column.name, down: sorting.name === column.name ? !sorting.down : Boolean(column.number) });
      show();
      options.sorted?.();
    };
    const button = el("button", { type: "button", onclick: sort, title: column.title || null }, column.name, el("i", { "aria-hidden": "true" }));
    head.append(el("th", { scope: "col", class: classes(column) }, button));
  }

  function sorted() {
    const by = columns.find((column) => column.name === sorting.name);
    if (!by) return state.rows;
    const side = sorting.down ? -1 : 1;
    // Missing values come last in both directions.
    return state.rows.map((row) => [row, by.of(row)]).sort(([, a], [, b]) => {
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return side * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    }).map(([row]) => row);
  }

  function show() {
    for (const [index, cell] of [...head.children].entries())
      cell.setAttribute("aria-sort", columns[index].name !== sorting.name ? "none" : sorting.down ? "descending" : "ascending");
    state.shown = sorted();
    const rows = state.shown.slice(0, state.most);
    body.replaceChildren(...rows.map(makeRow));
    const left = state.shown.length - rows.length;
    more.hidden = left === 0;
    more.textContent = `Show ${Math.min(left, PAGE)} of ${left} more rows`;
    mark(state.current, false);
  }

  function makeRow(row) {
    const cells = columns.map((column) => el("td", { class: classes(column) }, column.show ? column.show(row) : column.of(row)));
    return el("tr", {
      "data-key": String(options.key(row)), tabindex: "-1",
      onclick: () => options.choose(row),
      onmouseenter: () => options.hover?.(row), onmouseleave: () => options.hover?.(null),
    }, cells);
  }

  /** Marks the selected row, at which the keyboard enters the table. */
  function mark(key, into = true) {
    state.current = key;
    const index = state.shown.findIndex((row) => options.key(row) === key);
    if (into && index >= state.most) {
      state.most = index + 1;
      show();
    }
    for (const row of body.children) {
      row.setAttribute("aria-selected", "false");
      row.tabIndex = -1;
    }
    const selected = body.children[index];
    selected?.setAttribute("aria-selected", "true");
    const entry = selected || body.firstElementChild;
    if (entry) entry.tabIndex = 0;
    if (selected && into) reveal(frame, selected);
  }

  body.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const current = event.target.closest("tr");
    if (!current || (!step && event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    const next = step ? (step > 0 ? current.nextElementSibling : current.previousElementSibling) : current;
    if (!next) return;
    options.choose(state.shown[[...body.children].indexOf(next)]);
    [...body.children].find((row) => row.dataset.key === next.dataset.key)?.focus({ preventScroll: true });
  });

  return {
    frame, mark,
    set(rows) {
      state.rows = rows;
      show();
    },
    shown: () => state.shown,
  };
}

/** How a column looks: `side` ones give way on a phone. */
const classes = (column) => ["number", "wide", "side"].filter((name) => column[name]).join(" ") || null;

/** Scrolls only the frame until a row is visible below the sticky head. */
function reveal(frame, row) {
  const top = row.offsetTop - 34;
  if (top < frame.scrollTop) frame.scrollTop = top;
  else if (row.offsetTop + row.offsetHeight > frame.scrollTop + frame.clientHeight) frame.scrollTop = row.offsetTop + row.offsetHeight - frame.clientHeight;
}
