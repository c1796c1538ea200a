// The picture as a file: SVG with its styles inside, or PNG drawn from that SVG.

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "paint-order", "display"];
const SHARPNESS = 2; // pixels of the PNG per pixel of the picture
const LARGEST = 8192; // pixels along a side, which browsers can draw

/** The picture as it is on the screen, in a drawing of its own with a caption. */
function standalone(picture, caption) {
  const copy = picture.cloneNode(true);
  const unseen = [...copy.querySelectorAll(".hit")];
  const originals = [picture, ...picture.querySelectorAll("*")];
  for (const [index, element] of [copy, ...copy.querySelectorAll("*")].entries()) {
    const style = getComputedStyle(originals[index]);
    element.removeAttribute("style");
    for (const name of STYLES) element.style.setProperty(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex", "role", "id", "aria-pressed", "aria-label"]) element.removeAttribute(name);
  }
  for (const hit of unseen) hit.remove();
  const [x, y, width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
  const line = width / 60;
  const background = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  const label = svg("text", { x: x + line, y: y + height + 1.6 * line, "font-size": Math.min(line, 16), "font-family": "sans-serif", fill: ink }, caption);
  fill(copy, { xmlns: SVG, viewBox: `${x} ${y} ${width} ${height + 2.6 * line}` }, [label]);
  copy.prepend(svg("title", {}, caption), svg("rect", { x, y, width, height: height + 2.6 * line, fill: background }));
  const scale = picture.width.baseVal.value / width || 1;
  fill(copy, { width: Math.round(width * scale), height: Math.round((height + 2.6 * line) * scale) }, []);
  return copy;
}

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

const asText = (drawing) => new XMLSerializer().serializeToString(drawing);

function saveSvg(picture, caption, name) {
  download(new Blob([`<?xml version="1.0" encoding="UTF-8"?>\n${asText(standalone(picture, caption))}`], { type: "image/svg+xml" }), `${name}.svg`);
  announce(`Saved ${name}.svg`);
}

function savePng(picture, caption, name) {
  const drawing = standalone(picture, caption);
  const [width, height] = [drawing.width.baseVal.value, drawing.height.baseVal.value];
  const scale = Math.min(SHARPNESS, LARGEST / Math.max(width, height));
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = el("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(blob, `${name}.png`), "image/png");
    announce(`Saved ${name}.png`);
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(asText(drawing))}`;
}

/** The two buttons, for a picture that exists when they are clicked. */
function exportButtons(picture, caption, name) {
  const button = (kind, save) => el("button", { type: "button", class: "quiet", title: `Save the picture as it is shown, as ${kind}`, onclick: () => save(picture, caption, name) }, kind);
  return el("span", { class: "export", role: "group", "aria-label": "Save the picture" }, button("SVG", saveSvg), button("PNG", savePng));
}

/** A name for a file from any text: lower case, hyphens, nothing that a path could mean. */
const slug = (words) => words.normalize("NFKD").toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60).replace(/-+$/, "");
