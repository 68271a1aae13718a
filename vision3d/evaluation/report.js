// SPDX-License-Identifier: Apache-2.0
// Sorts the tables by their columns and filters their rows.
"use strict";

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column], value = cell.dataset.value;
    return value === undefined ? cell.textContent : value === "" ? NaN : Number(value);
  };
  const compare = (a, b) => {
    if (typeof a === "string") return a.localeCompare(b, "en", { numeric: true });
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    return a - b;
  };
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => {
        if (typeof a === "number" && (Number.isNaN(a) || Number.isNaN(b))) return compare(a, b);
        return down ? -compare(a, b) : compare(a, b);
      });
      body.append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

for (const input of document.querySelectorAll("input.filter")) {
  const rows = [...document.querySelector(input.dataset.table).tBodies[0].rows];
  input.addEventListener("input", () => {
    const text = input.value.toLowerCase();
    for (const row of rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(text);
  });
}
