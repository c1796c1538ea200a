// Zoom and pan of a picture: wheel, pinch, drag, buttons and keys all move the same window over it.

const CLOSEST = 12;
const PAN = 0.15; // part of the window that a key moves

/**
 * Makes a picture zoomable. `view` is {scale, x, y} with x and y in the picture's units; it is changed in place.
 * @param {{scale: number, x: number, y: number}} view
 */
function zoomable(picture, width, height, view, changed) {
  const fingers = new Map();
  let dragged = false;

  function apply() {
    view.scale = clamp(view.scale || 1, 1, CLOSEST);
    view.x = clamp(view.x || 0, 0, width - width / view.scale);
    view.y = clamp(view.y || 0, 0, height - height / view.scale);
    picture.setAttribute("viewBox", [view.x, view.y, width / view.scale, height / view.scale].map((number) => Number(number.toFixed(2))).join(" "));
    picture.classList.toggle("zoomed", view.scale > 1);
  }

  function done() {
    apply();
    changed();
  }

  /** Zooms by a factor and keeps the point at the given part of the window in its place. */
  function by(factor, across = 0.5, down = 0.5) {
    const scale = clamp(view.scale * factor, 1, CLOSEST);
    view.x += across * (width / view.scale - width / scale);
    view.y += down * (height / view.scale - height / scale);
    view.scale = scale;
    done();
  }

  function pan(across, down) {
    view.x += (across * width) / view.scale;
    view.y += (down * height) / view.scale;
    done();
  }

  function reset() {
    Object.assign(view, { scale: 1, x: 0, y: 0 });
    done();
  }

  const partOf = ({ clientX, clientY }) => {
    const box = picture.getBoundingClientRect();
    return [(clientX - box.left) / box.width, (clientY - box.top) / box.height];
  };

  picture.addEventListener("wheel", (event) => {
    // A page must scroll past a picture that nobody has touched; a pinch on a touchpad comes as Ctrl and wheel.
    if (!event.ctrlKey && !event.metaKey && !picture.contains(document.activeElement)) return;
    event.preventDefault();
    by(Math.exp(-clamp(event.deltaY, -120, 120) / 300), ...partOf(event));
  }, { passive: false });
  picture.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    fingers.set(event.pointerId, partOf(event));
    dragged = false;
  });
  picture.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = partOf(event);
    const [across, down] = [now[0] - before[0], now[1] - before[1]];
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const apart = ([x, y]) => Math.hypot((x - other[0]) * width, (y - other[1]) * height) || 1;
      fingers.set(event.pointerId, now);
      by(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else if (view.scale > 1 && (dragged || Math.hypot(across, down) > 0.006)) {
      if (!dragged) picture.setPointerCapture(event.pointerId);
      dragged = true;
      fingers.set(event.pointerId, now);
      pan(-across, -down);
    }
  });
  for (const name of ["pointerup", "pointercancel", "pointerleave"]) picture.addEventListener(name, (event) => fingers.delete(event.pointerId));
  // The click that ends a drag selects nothing.
  picture.addEventListener("click", (event) => {
    if (dragged) event.stopImmediatePropagation();
    dragged = false;
  }, true);
  picture.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-PAN, 0], ArrowRight: [PAN, 0], ArrowUp: [0, -PAN], ArrowDown: [0, PAN] };
    const run = event.shiftKey && moves[event.key] ? () => pan(...moves[event.key]) : { "+": () => by(1.4), "=": () => by(1.4), "-": () => by(1 / 1.4), 0: reset }[event.key];
    if (!run || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    run();
  }, true);
  apply();

  const button = (name, label, act) => el("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick: act }, name);
  const buttons = el("span", { class: "zoom", role: "group", "aria-label": "Zoom" }, button("−", "Zoom out", () => by(1 / 1.4)), button("+", "Zoom in", () => by(1.4)), button("fit", "Show the whole circuit", reset));
  return { buttons };
}

// The window in an address.
const viewKey = ({ scale, x, y }) => (scale > 1 ? [scale.toFixed(4), x.toFixed(2), y.toFixed(2)].join(",") : null);

function viewAt(key) {
  const [scale, x, y] = (key ?? "").split(",").map(Number);
  return [scale, x, y].every(Number.isFinite) ? { scale, x, y } : { scale: 1, x: 0, y: 0 };
}
