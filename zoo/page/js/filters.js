// The filters of the checkpoints. A filter with nothing chosen lets everything through.

const MOST_CHIPS = 12;

function newFilters() {
  return { labels: new Set(), splits: new Set(), values: new Map(), ranges: new Map(), ranked: [null, null] };
}

const codesOf = (filters, name) => filters.values.get(name) ?? filters.values.set(name, new Set()).get(name);
const rangeOf = (filters, name) => filters.ranges.get(name) ?? filters.ranges.set(name, [null, null]).get(name);
const within = (value, [low, high]) => (low === null || value >= low) && (high === null || value <= high);

function runMask(config, filters) {
  const mask = new Uint8Array(config.runs.id.length).fill(1);
  const keep = (test) =>
    mask.forEach((kept, run) => {
      if (kept && !test(run)) mask[run] = 0;
    });
  if (filters.splits.size) keep((run) => filters.splits.has(config.runs.split[run]));
  for (const { name, values, codes } of config.hyperparameters) {
    const wanted = filters.values.get(name);
    if (wanted?.size) keep((run) => wanted.has(codes[run]));
    const range = filters.ranges.get(name);
    if (range) keep((run) => within(values[codes[run]], range));
  }
  return mask;
}

// The numbers of the checkpoints that pass, and how many runs they are of.
function passing(config, filters) {
  const mask = runMask(config, filters);
  const { run, label, [config.ranked.label]: ranked } = config.rows;
  // labels are in single precision: 0.9482 keeps the rows that show 0.9482
  const range = filters.ranked.map((end) => (end === null ? null : Math.fround(end)));
  const rows = [];
  const runs = new Set();
  for (let row = 0; row < run.length; row++) {
    if (!mask[run[row]]) continue;
    if (filters.labels.size && !filters.labels.has(label[row])) continue;
    if (!within(Math.fround(ranked[row]), range)) continue;
    rows.push(row);
    runs.add(run[row]);
  }
  return { rows, runs: runs.size };
}

function toggle(set, value, onchange) {
  return (event) => {
    if (event.target.checked) set.add(value);
    else set.delete(value);
    onchange();
  };
}

function chips(legend, options, set, onchange) {
  const made = options.map(([value, text]) =>
    chip("checkbox", legend, text, set.has(value), toggle(set, value, onchange)),
  );
  return element("fieldset", {}, element("legend", {}, legend), element("div", { class: "chips" }, ...made));
}

function bounds(legend, range, onchange, attributes) {
  const input = (index, word) => {
    const made = element("input", {
      type: "number",
      step: "any",
      "aria-label": `${legend}, ${word}`,
      placeholder: word,
      ...attributes,
    });
    made.value = range[index] ?? "";
    made.addEventListener("input", () => {
      range[index] = made.value === "" || Number.isNaN(made.valueAsNumber) ? null : made.valueAsNumber;
      onchange();
    });
    return made;
  };
  return element(
    "fieldset",
    {},
    element("legend", {}, legend),
    element("div", { class: "range" }, input(0, "at least"), "–", input(1, "at most")),
  );
}

function filterPanel(config, filters, onchange, onreset) {
  const panel = element("form", {
    class: "filters",
    "aria-label": "Filters",
    onsubmit: (event) => event.preventDefault(),
  });
  panel.append(
    chips(
      "checkpoint",
      config.rows.labels.map((label, index) => [index, label]),
      filters.labels,
      onchange,
    ),
  );
  const { label, more } = config.ranked;
  panel.append(bounds(spaced(label), filters.ranked, onchange, more ? { min: 0, max: 1 } : {}));
  for (const { name, values, numeric } of config.hyperparameters) {
    if (values.length < 2) continue;
    if (values.length <= MOST_CHIPS) {
      panel.append(
        chips(
          spaced(name),
          values.map((value, code) => [code, shown(value)]),
          codesOf(filters, name),
          onchange,
        ),
      );
    } else if (numeric) panel.append(bounds(spaced(name), rangeOf(filters, name), onchange));
  }
  const splits = ["train", "validation", "test"].filter((split) => config.runs.split.includes(split));
  if (splits.length > 1)
    panel.append(
      chips(
        "split",
        splits.map((split) => [split, split]),
        filters.splits,
        onchange,
      ),
    );
  panel.append(element("button", { type: "button", id: "reset", onclick: onreset }, "Reset filters"));
  return panel;
}
