"use strict";
// The table of parameters: a click on the head of a column sorts by it, and the search
// field hides the rows whose name does not hold what was typed.
const table = document.getElementById("parameter-table");
if (table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, i) => {
    const text = row.cells[i].textContent;
    const number = Number(text.replace("−", "-"));
    return i === 0 || Number.isNaN(number) ? text : number;
  };
  heads.forEach((head, i) => {
    head.firstElementChild.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const down = before ? before !== "descending" : i > 0;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const rows = [...body.rows].map((row) => [value(row, i), row]);
      const order = (a, b) => {
        // What is not a number comes last, whichever way the numbers go.
        if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
        if (typeof a === "number") return sign * (a - b);
        return sign * a.localeCompare(b, "en", { numeric: true });
      };
      rows.sort((a, b) => order(a[0], b[0]));
      body.append(...rows.map((pair) => pair[1]));
    });
  });
  const shown = document.getElementById("shown");
  document.getElementById("search").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase();
    let count = 0;
    for (const row of body.rows) {
      const hit = row.cells[0].textContent.toLowerCase().includes(words);
      row.hidden = !hit;
      count += hit;
    }
    shown.textContent = words ? `${count} of ${body.rows.length}` : "";
  });
}
