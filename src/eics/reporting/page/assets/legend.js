// The legend of a colour scale: its name, the colours, what its ends mean.

const colourKey = (title, background, ends, note) => el("div", { class: `scale${note?.length > 80 ? " broad" : ""}` }, el("span", {}, title), el("i", { style: { background } }), el("small", {}, ends.map((end) => el("span", {}, end))), note ? el("small", {}, note) : null);
