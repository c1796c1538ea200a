// The box that follows the mouse.

/** Shows these elements beside the mouse, or hides the box if there are none. */
function showTip(children, event) {
  const box = byId("tip");
  box.hidden = !children;
  if (box.hidden) return;
  box.replaceChildren(...children.flat(9).filter(Boolean));
  const left = event.clientX + 16 + box.offsetWidth > innerWidth ? event.clientX - 12 - box.offsetWidth : event.clientX + 16;
  Object.assign(box.style, { left: `${Math.max(4, left)}px`, top: `${clamp(event.clientY + 14, 4, innerHeight - box.offsetHeight - 4)}px` });
}
