// The fourth view: one run opened. Its hyperparameters, its curves, the pictures of one checkpoint, and how to load it.

const EVERY_TOKEN = "mean";
const FILTER_COLUMNS = 8;
const MOST_ACROSS = 4;

function rowsOfRun(config, run) {
  return config.rows.run.flatMap((other, row) => (other === run ? [row] : []));
}

function settingsList(config, run) {
  const { runs } = config;
  const pairs = [["status", runs.status[run]], ["split", runs.split[run]], ["epochs", String(runs.epochs[run])],
    ...config.hyperparameters.map(({ name, values, codes }) => [spaced(name), shown(values[codes[run]])])];
  return element("dl", { id: "settings" }, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function measuredTable(page, rows) {
  const { label, labels, epoch, test_accuracy: accuracy, test_loss: loss, train_loss: training } = page.config.rows;
  const head = ["checkpoint", "epoch", "accuracy", "test loss", "training loss"].map((text, place) => element("th", { scope: "col", class: place ? "" : "text" }, text));
  const body = rows.map((row) => element("tr", {},
    element("th", { scope: "row" }, chip("radio", "label", labels[label[row]], labels[label[row]] === page.now.label, () => { page.now.label = labels[label[row]]; page.show(`[name="label"]:checked`); })),
    element("td", {}, String(epoch[row])), element("td", {}, fixed(accuracy[row])), element("td", {}, short(loss[row])), element("td", {}, short(training[row]))));
  return element("table", { "aria-label": "Checkpoints of this run" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

const quoted = (text) => (/^[\w.\-/]+$/.test(text) ? `"${text}"` : JSON.stringify(text));

function loadingCode(config, run, label) {
  const inner = (text) => (/^[\w.-]+$/.test(text) ? `'${text}'` : JSON.stringify(text));
  const where = `run_id == ${inner(config.runs.id[run])}${label === null ? "" : ` and checkpoint == ${inner(label)}`}`;
  const lines = ["import zoo", "", `reader = zoo.open(${quoted(head.open)}, ${quoted(config.name)}, split=${quoted(config.runs.split[run])})`];
  if (label === null) lines.push(`reader.runs[reader.runs["run_id"] == ${quoted(config.runs.id[run])}]`);
  else lines.push(`rows = reader.rows(${where.includes('"') ? JSON.stringify(where) : `"${where}"`})`, "weights = reader.weights(rows)[0]", "model = zoo.build_model(reader.spec, weights)    # a torch module in eval mode");
  return lines.join("\n");
}

function codeBlock(text) {
  const code = element("pre", { id: "code", tabindex: "0", "aria-label": "Python code that loads this checkpoint" }, text);
  const done = element("span", { role: "status", class: "soft" });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    done.textContent = "copied";
  };
  return element("div", {}, code, element("div", { class: "actions" }, element("button", { type: "button", id: "copy", onclick: copy }, "Copy"), done));
}

function runCurveSpec(title, measures, logarithmic) {
  const hues = HUES[theme()];
  const y = { field: "value", type: "quantitative", title, scale: logarithmic ? { type: "log" } : { domain: [0, 1] }, axis: { tickCount: 5, grid: !logarithmic } };
  const x = { field: "epoch", type: "quantitative", title: "epoch", scale: { nice: false }, axis: { grid: false, tickMinStep: 1 } };
  const legend = measures.length > 1 ? { title: null, orient: "bottom-left", symbolType: "stroke", symbolSize: 400 } : null;
  const nominal = (range) => ({ field: "measure", type: "nominal", scale: { domain: measures, range: measures.map((_, place) => range[place]) }, legend });
  return {
    height: 200,
    layer: [
      { data: { name: "lines" }, mark: { type: "line", strokeWidth: 2 }, encoding: { x, y, color: nominal(hues), strokeDash: nominal(DASHES), tooltip: [{ field: "measure" }, { field: "epoch" }, { field: "value", format: ".4g" }] } },
      { data: { name: "kept" }, mark: { type: "rule", color: variable("--soft"), strokeDash: [2, 3] }, encoding: { x } },
      { data: { name: "kept" }, mark: { type: "point", shape: "diamond", filled: true, color: variable("--ink"), opacity: 1, size: 70 }, encoding: { x, y, tooltip: [{ field: "label", title: "checkpoint" }, { field: "epoch" }, { field: "value", format: ".4g" }] } },
    ],
  };
}

async function drawCurves(page, rows, boxes) {
  const { config, now, place } = page;
  const curves = await curvesOf(place, now.run);
  const points = (measure, name) => curveRows([name], [curves], measure).map(({ epoch, value }) => ({ measure: name, epoch, value }));
  const kept = (measure) => rows.map((row) => ({ label: config.rows.labels[config.rows.label[row]], epoch: config.rows.epoch[row], value: config.rows[measure][row] }));
  const losses = [...points("test_loss", "test"), ...points("train_loss", "training")].filter(({ value }) => value > 0);
  const id = config.runs.id[now.run];
  await Promise.all([
    chart(boxes[0], `Test accuracy of run ${id} over the epochs`, runCurveSpec("test accuracy", ["test accuracy"], false), { lines: points("test_accuracy", "test accuracy"), kept: kept("test_accuracy") }),
    chart(boxes[1], `Losses of run ${id} over the epochs`, runCurveSpec("loss", ["test", "training"], true), { lines: losses, kept: kept("test_loss").filter(({ value }) => value > 0) }),
  ]);
}

function filterSpec(side, columns, lines) {
  const axis = { type: "ordinal", axis: null };
  return {
    width: Math.min(560, columns * (side + 1) * 11),
    height: lines * (side + 1) * 11,
    autosize: { type: "pad" },
    data: { name: "weights" },
    mark: { type: "rect", aria: false },
    encoding: {
      x: { field: "x", ...axis, scale: { domain: [...Array(columns * (side + 1)).keys()], paddingInner: 0.06 } },
      y: { field: "y", ...axis, scale: { domain: [...Array(lines * (side + 1)).keys()], paddingInner: 0.06 } },
      color: { field: "weight", type: "quantitative", scale: { scheme: "greys", reverse: true, domainMid: 0 }, legend: { title: "weight", orient: "right", gradientLength: 90 } },
      tooltip: [{ field: "filter" }, { field: "row" }, { field: "column" }, { field: "weight", format: ".3f" }],
    },
  };
}

function filterRows(filters, side) {
  return filters.flatMap((weights, number) => weights.map((weight, place) => {
    const [row, column] = [Math.floor(place / side), place % side];
    return { filter: number + 1, row: row + 1, column: column + 1, weight, x: (number % FILTER_COLUMNS) * (side + 1) + column, y: Math.floor(number / FILTER_COLUMNS) * (side + 1) + row };
  }));
}

// What one token attends to, or all of them on average, for one head of one block.
function attended(attention, tokens, at, query) {
  const weights = new Array(tokens).fill(0);
  const from = query === EVERY_TOKEN ? [...Array(tokens).keys()] : [Number(query)];
  for (const token of from) for (let other = 0; other < tokens; other++) weights[other] += attention[(at * tokens + token) * tokens + other] / 255 / from.length;
  return weights;
}

function mapSpec(pixels) {
  const axis = { axis: null, type: "quantitative", scale: { domain: [0, pixels], nice: false, zero: false } };
  const down = { ...axis, scale: { ...axis.scale, reverse: true } };
  return {
    width: 165,
    height: 165,
    autosize: { type: "pad" },
    layer: [
      {
        data: { name: "patches" },
        mark: { type: "rect", stroke: variable("--line"), strokeWidth: 0.5 },
        encoding: {
          x: { field: "x", ...axis }, x2: { field: "x2" }, y: { field: "y", ...down }, y2: { field: "y2" },
          color: { field: "weight", type: "quantitative", scale: { scheme: "blues", reverse: theme() === "dark", domainMin: 0 }, legend: null },
          tooltip: [{ field: "row" }, { field: "column" }, { field: "weight", title: "attention", format: ".3f" }],
        },
      },
      { data: { name: "ink" }, mark: { type: "rect", aria: false, color: variable("--ink"), tooltip: null }, encoding: { x: { field: "x", ...axis }, x2: { field: "x2" }, y: { field: "y", ...down }, y2: { field: "y2" }, opacity: { field: "share", type: "quantitative", scale: null } } },
      { data: { name: "patches" }, transform: [{ filter: "datum.query" }], mark: { type: "rect", fill: null, stroke: variable("--focus"), strokeWidth: 3 }, encoding: { x: { field: "x", ...axis }, x2: { field: "x2" }, y: { field: "y", ...down }, y2: { field: "y2" } } },
    ],
  };
}

function inkRows(pixels, opacity) {
  return pixels.flatMap((line, y) => line.flatMap((value, x) => (value > 40 ? [{ x, x2: x + 1, y, y2: y + 1, share: (value / 255) * opacity }] : [])));
}

function patchRows(weights, query, side) {
  const grid = Math.sqrt(weights.length);
  return weights.map((weight, place) => {
    const [row, column] = [Math.floor(place / grid), place % grid];
    return { row: row + 1, column: column + 1, weight, query: String(place) === query, x: column * side, x2: (column + 1) * side, y: row * side, y2: (row + 1) * side };
  });
}

function wordsSpec(words, heads) {
  return {
    height: 26 * heads.length,
    data: { name: "cells" },
    encoding: {
      x: { field: "word", type: "nominal", sort: words, title: null, axis: { labelAngle: -40, orient: "top", ticks: false, domain: false, labelFontSize: 12 }, scale: { domain: words } },
      y: { field: "head", type: "nominal", sort: heads, title: null, axis: { ticks: false, domain: false, labelFontSize: 12 } },
      tooltip: [{ field: "head" }, { field: "word" }, { field: "weight", title: "attention", format: ".3f" }],
    },
    layer: [
      { mark: { type: "rect", stroke: variable("--paper"), strokeWidth: 1.5 }, encoding: { color: { field: "weight", type: "quantitative", scale: { scheme: "blues", reverse: theme() === "dark", domainMin: 0 }, legend: { title: "attention", orient: "right", gradientLength: 80 } } } },
    ],
  };
}

function headNames({ blocks, heads }) {
  return Array.from({ length: blocks * heads }, (_, at) => `block ${Math.floor(at / heads) + 1}, head ${(at % heads) + 1}`);
}

function verdict({ probabilities }, label) {
  const best = probabilities.reduce((top, value, place) => (value > probabilities[top] ? place : top), 0);
  const truth = label === null ? "" : `, its label is ${label}`;
  return `This checkpoint says class ${best} (probability ${fixed(probabilities[best], 3)})${truth}.`;
}

async function drawAttention(page, found, place) {
  const { spec, example } = page.config;
  const { tokens } = found;
  const attention = bytesOf(found.attention);
  const names = headNames(spec);
  const token = (number) => (example.words ? `${number + 1}. ${example.words[number]}` : `patch in row ${Math.floor(number / Math.sqrt(tokens)) + 1}, column ${(number % Math.sqrt(tokens)) + 1}`);
  const options = [[EVERY_TOKEN, `all ${example.words ? "words" : "patches"}, on average`], ...Array.from({ length: tokens }, (_, number) => [String(number), token(number)])];
  const boxes = names.map(() => element("div", { class: "chart map" }));
  const captions = names.map(() => element("figcaption", { class: "soft" }));
  const words = element("div", { class: "chart", id: "words" });
  const draw = (query) => {
    const weights = names.map((_, at) => attended(attention, tokens, at, query));
    if (example.words) {
      const texts = example.words.map((_, number) => token(number));
      const cells = names.flatMap((name, at) => weights[at].map((weight, number) => ({ head: name, word: texts[number], weight })));
      return chart(words, "Attention to each word by block and head", wordsSpec(texts, names), { cells });
    }
    const side = example.pixels.length;
    captions.forEach((caption, at) => { caption.textContent = `up to ${fixed(Math.max(...weights[at]), 2)}`; });
    return Promise.all(names.map((name, at) => chart(boxes[at], `Attention of ${name} to the patches of the example`, mapSpec(side),
      { patches: patchRows(weights[at], query, side / Math.sqrt(tokens)), ink: inkRows(example.pixels, 0.75) })));
  };
  place.append(element("p", {}, verdict(found, example.label), element("span", { class: "soft" }, ` Example: ${example.source}. ${theme() === "dark" ? "Lighter" : "Darker"} is more attention${example.words ? "" : "; each head has its own scale"}.`)),
    element("div", { class: "actions" }, choice("Attention of", options, page.now.query, (query) => { page.now.query = query; draw(query); }, { id: "query" })),
    example.words ? words : element("div", { class: "maps", style: `--across: ${Math.min(MOST_ACROSS, spec.heads)}` }, ...boxes.map((box, at) => element("figure", {}, element("h3", {}, names[at]), box, captions[at]))));
  if (!options.some(([key]) => key === page.now.query)) page.now.query = EVERY_TOKEN;
  return draw(page.now.query);
}

// The pictured run whose place in the list is next to this one.
function nearest(config, run) {
  return config.pictured.reduce((best, other) => (best === null || Math.abs(other - run) < Math.abs(best - run) ? other : best), null);
}

async function drawInsides(page, place) {
  const { config, now } = page;
  if (!config.pictured.includes(now.run)) {
    const other = nearest(config, now.run);
    place.append(element("p", { class: "soft" }, `Filters and attention are in this page for ${grouped(config.pictured.length)} of ${plural(config.runs.id.length, "run")}, and not for this one. `,
      other === null ? null : element("button", { type: "button", onclick: () => page.open(other, now.label) }, `Open ${config.runs.id[other]}`)));
    return;
  }
  const found = (await picturesOf(page.place, now.run))[now.label];
  const filters = element("div", { class: "chart", id: "filters" });
  const attention = element("section", { id: "attention" }, element("h2", {}, "Attention on an example"));
  const drawing = [];
  if (found.filters) {
    const side = config.spec.patch_size;
    const lines = Math.ceil(found.filters.length / FILTER_COLUMNS);
    const more = found.filters.length < config.spec.dim ? ` The first ${found.filters.length} are shown.` : "";
    place.classList.add("two");
    place.append(element("section", {}, element("h2", {}, "Patch filters"),
      element("p", { class: "soft" }, `The weights that turn a patch of ${side} × ${side} pixels into ${config.spec.dim} numbers. Dark is negative, light positive.${more}`), filters));
    drawing.push(chart(filters, `${found.filters.length} patch filters as gray squares`, filterSpec(side, FILTER_COLUMNS, lines), { weights: filterRows(found.filters, side) }));
  }
  place.append(attention);
  if (found.attention) drawing.push(drawAttention(page, found, attention));
  else attention.append(element("p", { class: "soft", id: "no-example" }, `No picture: ${config.example.missing ?? "there is none for this checkpoint"}.`));
  await Promise.all(drawing);
}

function runChooser(page) {
  const { config, now } = page;
  const list = element("datalist", { id: "ids" }, ...config.pictured.slice(0, 200).map((run) => element("option", { value: config.runs.id[run] })));
  const input = element("input", { type: "text", id: "run", list: "ids", size: "22", spellcheck: "false", autocomplete: "off" });
  input.value = config.runs.id[now.run] ?? "";
  const wrong = element("span", { role: "alert", class: "soft" });
  const open = (event) => {
    event.preventDefault();
    const wanted = input.value.trim();
    const found = config.runs.id.findIndex((id) => id === wanted);
    const run = found >= 0 ? found : config.runs.id.findIndex((id) => wanted && id.startsWith(wanted));
    if (run >= 0) page.open(run, now.label, "#run");
    else wrong.textContent = "no run has an id that begins so";
  };
  const step = (by) => () => page.open((now.run + by + config.runs.id.length) % config.runs.id.length, now.label, by < 0 ? "#before" : "#after");
  return element("form", { class: "actions", onsubmit: open }, element("label", {}, "Run ", input), list, element("button", { type: "submit" }, "Open"),
    element("button", { type: "button", id: "before", onclick: step(-1) }, "Previous run"), element("button", { type: "button", id: "after", onclick: step(1) }, "Next run"), wrong);
}

async function checkpointView(page) {
  const { config, now } = page;
  if (!config.runs.id.length) {
    page.view.append(element("p", {}, "This config has no runs."));
    return;
  }
  now.run ??= config.pictured[config.pictured.length - 1] ?? 0;
  const rows = rowsOfRun(config, now.run);
  const labels = rows.map((row) => config.rows.labels[config.rows.label[row]]);
  if (!labels.includes(now.label)) now.label = labels[labels.length - 1] ?? null;
  const boxes = [element("div", { class: "chart", id: "run-accuracy" }), element("div", { class: "chart", id: "run-loss" })];
  const inside = element("div", { id: "insides" });
  page.view.append(runChooser(page),
    element("h2", { id: "opened" }, "Run ", element("code", {}, config.runs.id[now.run])),
    element("div", { class: "facts" },
      element("section", {}, element("h3", {}, "Hyperparameters"), settingsList(config, now.run)),
      element("section", {}, element("h3", {}, "Checkpoints"), rows.length ? measuredTable(page, rows) : element("p", { class: "soft" }, "This run diverged: its curves are kept, its weights are not."))),
    element("div", { class: "two" }, element("section", {}, element("h3", {}, "Test accuracy"), boxes[0]), element("section", {}, element("h3", {}, "Losses"), boxes[1])),
    inside,
    element("section", {}, element("h2", {}, "Load it"), codeBlock(loadingCode(config, now.run, now.label))));
  page.remember();
  await Promise.all([drawCurves(page, rows, boxes), rows.length ? drawInsides(page, inside) : null]);
}
