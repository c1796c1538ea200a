// What the page shows, as Python wrote it.

const DATA = JSON.parse(document.getElementById("data").textContent);
