// The first view: how accurate the checkpoints are, what each hyperparameter does to it, and the checkpoints one by one.

const BINS = 40;
const PAGE_ROWS = 20;

function histogramOf(accuracies) {
  const counts = new Array(BINS).fill(0);
  for (const accuracy of accuracies) counts[Math.min(BINS - 1, Math.max(0, Math.floor(accuracy * BINS)))] += 1;
  return counts.map((count, bin) => ({ from: bin / BINS, to: (bin + 1) / BINS, count }));
}

function histogramSpec(logarithmic) {
  return {
    height: 230,
    data: { name: "bins" },
    mark: { type: "bar", color: variable("--mark"), stroke: variable("--paper"), strokeWidth: 1 },
    encoding: {
      x: { field: "from", type: "quantitative", bin: "binned", title: "test accuracy", scale: { domain: [0, 1], nice: false }, axis: { format: ".1f", grid: false } },
      x2: { field: "to" },
      y: { field: "count", type: "quantitative", title: "checkpoints", scale: logarithmic ? { type: "symlog" } : {}, axis: { tickCount: 5, format: ",d", tickMinStep: 1 } },
      tooltip: [{ field: "from", title: "from", format: ".3f" }, { field: "to", format: ".3f" }, { field: "count", title: "checkpoints", format: ",d" }],
    },
  };
}

function quantile(sorted, share) {
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  return sorted[low] + (place - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

// Accuracies in groups: one per value, or of a column with many values one per stretch with equally many of them.
function groupsOf(config, name, rows) {
  const { run, label, test_accuracy: accuracy, labels } = config.rows;
  const column = config.hyperparameters.find((other) => other.name === name);
  const stretch = column ? Math.ceil(column.values.length / MOST_CHIPS) : 1;
  const titles = column
    ? Array.from({ length: Math.ceil(column.values.length / stretch) }, (_, place) => {
      const [first, last] = [place * stretch, Math.min((place + 1) * stretch, column.values.length) - 1].map((at) => shown(column.values[at]));
      return first === last ? first : `${first} – ${last}`;
    })
    : labels;
  const groups = titles.map(() => []);
  for (const row of rows) groups[column ? Math.floor(column.codes[run[row]] / stretch) : label[row]].push(accuracy[row]);
  return groups.flatMap((values, place) => {
    if (!values.length) return [];
    values.sort((a, b) => a - b);
    const [low, lower, middle, upper, high] = [0.05, 0.25, 0.5, 0.75, 0.95].map((share) => quantile(values, share));
    return [{ value: titles[place], count: values.length, low, lower, middle, upper, high }];
  });
}

function marginalSpec(title, groups) {
  const long = groups.reduce((sum, { value }) => sum + value.length + 2, 0) > 48;
  const y = (field) => ({ field, type: "quantitative", title: "test accuracy", scale: { domain: [0, 1] }, axis: { tickCount: 5, format: ".1f" } });
  const mark = variable("--mark");
  return {
    height: 230,
    data: { name: "groups" },
    encoding: {
      x: { field: "value", type: "ordinal", sort: null, title, axis: { labelAngle: long ? -35 : 0, labelOverlap: false } },
      tooltip: [
        { field: "value", title }, { field: "count", title: "checkpoints", format: ",d" }, { field: "middle", title: "median", format: ".4f" },
        { field: "lower", title: "25%", format: ".4f" }, { field: "upper", title: "75%", format: ".4f" },
        { field: "low", title: "5%", format: ".4f" }, { field: "high", title: "95%", format: ".4f" },
      ],
    },
    layer: [
      { mark: { type: "rule", color: mark }, encoding: { y: y("low"), y2: { field: "high" } } },
      { mark: { type: "bar", color: mark, width: 9 }, encoding: { y: y("lower"), y2: { field: "upper" } } },
      { mark: { type: "point", shape: "circle", filled: true, fill: variable("--paper"), stroke: variable("--ink"), strokeWidth: 1.5, opacity: 1, size: 55 }, encoding: { y: y("middle") } },
    ],
  };
}

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
  return element("th", { scope: "col", class: className, "aria-sort": chosen ? (sort.down ? "descending" : "ascending") : null }, button);
}

function checkpointTable(page, rows) {
  const { config, now } = page;
  const { run, label, labels, epoch, test_accuracy: accuracy, test_loss: loss } = config.rows;
  const varied = config.hyperparameters.filter(({ values }) => values.length > 1);
  const part = ordered(config, rows, now.sort).slice(now.offset, now.offset + PAGE_ROWS);
  const head = element("tr", {}, element("th", { scope: "col", class: "text" }, "run"), element("th", { scope: "col" }, "curve"),
    heading(page, "label", "checkpoint", "text"), heading(page, "epoch", "epoch"), heading(page, "test_accuracy", "accuracy"), heading(page, "test_loss", "test loss"),
    ...varied.map(({ name, numeric }) => heading(page, name, spaced(name), numeric ? "" : "text")));
  const body = part.map((row) => {
    const number = run[row];
    const id = config.runs.id[number];
    const open = element("button", { type: "button", onclick: () => page.open(number, labels[label[row]]) }, element("code", {}, id));
    const box = element("input", { type: "checkbox", "aria-label": `show the curve of ${id}`, onchange: () => page.choose(number, box.checked) });
    box.checked = now.chosen.includes(number);
    return element("tr", {}, element("th", { scope: "row" }, open), element("td", {}, box), element("td", { class: "text" }, labels[label[row]]),
      element("td", {}, String(epoch[row])), element("td", {}, fixed(accuracy[row])), element("td", {}, short(loss[row])),
      ...varied.map(({ values, codes, numeric }) => element("td", { class: numeric ? "" : "text" }, shown(values[codes[number]]))));
  });
  return element("table", { id: "checkpoints", "aria-label": "Checkpoints" }, element("thead", {}, head), element("tbody", {}, ...body));
}

function pager(page, total) {
  const { now } = page;
  const step = (by) => () => { now.offset += by; page.refresh(); };
  const last = Math.min(now.offset + PAGE_ROWS, total);
  return element("div", { class: "pages" },
    element("button", { type: "button", disabled: now.offset === 0, onclick: step(-PAGE_ROWS) }, "Previous"),
    element("button", { type: "button", disabled: last >= total, onclick: step(PAGE_ROWS) }, "Next"),
    total ? `${grouped(now.offset + 1)} to ${grouped(last)} of ${grouped(total)}` : "none");
}

function accuraciesView(page) {
  const { config, now } = page;
  const count = element("p", { class: "count", id: "count", role: "status", "aria-live": "polite" });
  const [histogram, marginal] = [element("div", { class: "chart", id: "histogram" }), element("div", { class: "chart", id: "marginal" })];
  const table = element("div", { class: "scroll" });
  const names = [["checkpoint", "checkpoint"], ...config.hyperparameters.filter(({ values }) => values.length > 1).map(({ name }) => [name, spaced(name)])];
  const log = element("input", { type: "checkbox", id: "log", onchange: () => { now.log = log.checked; page.refresh(); } });
  log.checked = now.log;

  page.refresh = () => {
    const { rows, runs } = passing(config, now.filters);
    now.offset = Math.min(now.offset, Math.max(0, Math.ceil(rows.length / PAGE_ROWS) - 1) * PAGE_ROWS);
    const accuracies = rows.map((row) => config.rows.test_accuracy[row]);
    const sorted = Float64Array.from(accuracies).sort();
    const middle = sorted.length ? `; median accuracy ${fixed(quantile(sorted, 0.5))}, best ${fixed(sorted[sorted.length - 1])}` : "";
    count.replaceChildren(element("strong", {}, plural(rows.length, "checkpoint")), ` of ${plural(runs, "run")}`,
      element("span", { class: "soft" }, ` (all: ${grouped(config.rows.run.length)} of ${grouped(config.runs.id.length)})${middle}`));
    table.replaceChildren(checkpointTable(page, rows), pager(page, rows.length));
    const what = `Histogram of the test accuracy of ${plural(rows.length, "checkpoint")}${middle}`;
    const groups = groupsOf(config, now.compare, rows);
    const title = now.compare === "checkpoint" ? "checkpoint" : spaced(now.compare);
    return Promise.all([
      chart(histogram, what, histogramSpec(now.log), { bins: histogramOf(accuracies) }),
      chart(marginal, `Test accuracy by ${title}: median, middle half and middle nine tenths`, marginalSpec(title, groups), { groups }),
    ]);
  };
  const changed = () => { now.offset = 0; page.refresh(); };
  const reset = () => { now.filters = newFilters(); now.offset = 0; page.show(); document.getElementById("reset")?.focus(); };
  page.view.append(element("div", { class: "sides" },
    filterPanel(config, now.filters, changed, reset),
    element("div", {}, count,
      element("div", { class: "two" },
        element("section", {}, element("div", { class: "heading" }, element("h2", {}, "Accuracies"), element("label", {}, log, " logarithmic counts")), histogram),
        element("section", {}, element("div", { class: "heading" }, element("h2", {}, "By hyperparameter"),
          choice("compare", names, now.compare, (value) => { now.compare = value; page.refresh(); }, { id: "compare" })), marginal,
        element("p", { class: "soft" }, "Circle: median. Bar: middle half. Line: middle nine tenths."))),
      element("section", {}, element("h2", {}, "Checkpoints"), table))));
  return page.refresh();
}
