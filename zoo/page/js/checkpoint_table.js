// The checkpoints that pass the filters as a table: sorted, some at a time, each with a button that opens its run.

const PAGE_ROWS = 20;

function ordered(config, rows, { key, down }) {
  const column = config.hyperparameters.find(({ name }) => name === key);
  const value = column ? (row) => column.codes[config.rows.run[row]] : (row) => config.rows[key][row];
  return rows.slice().sort((a, b) => (value(a) - value(b)) * (down ? -1 : 1) || a - b);
}

function heading(page, key, text, className) {
  const { sort } = page.now;
  const chosen = sort.key === key;
  const arrow = chosen ? (sort.down ? " ↓" : " ↑") : "";
  const onclick = () => {
    page.now.sort = { key, down: chosen ? !sort.down : key === "test_accuracy" };
    page.now.offset = 0;
    page.refresh();
    document.querySelector(`[data-sort="${CSS.escape(key)}"]`)?.focus();
  };
  const button = element("button", { type: "button", onclick, "data-sort": key }, text + arrow);
  return element(
    "th",
    { scope: "col", class: className, "aria-sort": chosen ? (sort.down ? "descending" : "ascending") : null },
    button,
  );
}

function checkpointTable(page, rows) {
  const { config, now } = page;
  const { run, label, labels, epoch, test_accuracy: accuracy, test_loss: loss } = config.rows;
  const varied = config.hyperparameters.filter(({ values }) => values.length > 1);
  const part = ordered(config, rows, now.sort).slice(now.offset, now.offset + PAGE_ROWS);
  const head = element(
    "tr",
    {},
    element("th", { scope: "col", class: "text" }, "run"),
    element("th", { scope: "col" }, "curve"),
    heading(page, "label", "checkpoint", "text"),
    heading(page, "epoch", "epoch"),
    ...rankedFirst(config, [heading(page, "test_accuracy", "accuracy"), heading(page, "test_loss", "test loss")]),
    ...varied.map(({ name, numeric }) => heading(page, name, spaced(name), numeric ? "" : "text")),
  );
  const body = part.map((row) => {
    const number = run[row];
    const id = config.runs.id[number];
    const open = element(
      "button",
      { type: "button", onclick: () => page.open(number, labels[label[row]]) },
      element("code", {}, id),
    );
    const box = element("input", {
      type: "checkbox",
      "aria-label": `show the curve of ${id}`,
      onchange: () => page.choose(number, box.checked),
    });
    box.checked = now.chosen.includes(number);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, open),
      element("td", {}, box),
      element("td", { class: "text" }, labels[label[row]]),
      element("td", {}, String(epoch[row])),
      ...rankedFirst(config, [element("td", {}, fixed(accuracy[row])), element("td", {}, short(loss[row]))]),
      ...varied.map(({ values, codes, numeric }) =>
        element("td", { class: numeric ? "" : "text" }, shown(values[codes[number]])),
      ),
    );
  });
  return element(
    "table",
    { id: "checkpoints", "aria-label": "Checkpoints" },
    element("thead", {}, head),
    element("tbody", {}, ...body),
  );
}

function pager(page, total) {
  const { now } = page;
  const step = (by) => () => {
    now.offset += by;
    page.refresh();
  };
  const last = Math.min(now.offset + PAGE_ROWS, total);
  return element(
    "div",
    { class: "pages" },
    element("button", { type: "button", disabled: now.offset === 0, onclick: step(-PAGE_ROWS) }, "Previous"),
    element("button", { type: "button", disabled: last >= total, onclick: step(PAGE_ROWS) }, "Next"),
    total ? `${grouped(now.offset + 1)} to ${grouped(last)} of ${grouped(total)}` : "none",
  );
}
