// The address after "#": a link shows to others what one sees.

const AFTER = 120; // ms without a change before the address follows; browsers forbid to change it too often

let waiting = null;

/** Writes the view into the address once nothing has changed for a moment. */
function writeHash(view) {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    try {
      history.replaceState(null, "", `#${view()}`);
    } catch {
      // A page inside another one may not change its address.
    }
  }, AFTER);
}

const readHash = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
