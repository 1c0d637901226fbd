// The fourth view: one run opened. Its hyperparameters, its curves, the pictures of one checkpoint, how to load it.

function rowsOfRun(config, run) {
  return config.rows.run.flatMap((other, row) => (other === run ? [row] : []));
}

function settingsList(config, run) {
  const { runs } = config;
  const pairs = [
    ["status", runs.status[run]],
    ["split", runs.split[run]],
    ["epochs", String(runs.epochs[run])],
    ...config.hyperparameters.map(({ name, values, codes }) => [spaced(name), shown(values[codes[run]])]),
  ];
  return element(
    "dl",
    { id: "settings" },
    ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]),
  );
}

function measuredTable(page, rows) {
  const { label, labels, epoch, run: _, test_accuracy: accuracy, ...losses } = page.config.rows;
  const names = ["checkpoint", "epoch", "accuracy", ...Object.keys(losses).map(spaced)];
  const head = names.map((text, index) =>
    element("th", { scope: "col", class: index ? "" : "text" }, text),
  );
  const body = rows.map((row) =>
    element(
      "tr",
      {},
      element(
        "th",
        { scope: "row" },
        chip("radio", "label", labels[label[row]], labels[label[row]] === page.now.label, () => {
          page.now.label = labels[label[row]];
          page.show(`[name="label"]:checked`);
        }),
      ),
      element("td", {}, String(epoch[row])),
      element("td", {}, fixed(accuracy[row])),
      ...Object.values(losses).map((loss) => element("td", {}, short(loss[row]))),
    ),
  );
  return element(
    "table",
    { "aria-label": "Checkpoints of this run" },
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
}

// The pictured run next to this one in the list.
function nearest(config, run) {
  return config.pictured.reduce(
    (best, other) => (best === null || Math.abs(other - run) < Math.abs(best - run) ? other : best),
    null,
  );
}

// If no run was chosen, the best of those with pictures.
function bestPictured(config) {
  const pictured = new Set(config.pictured);
  const { run } = config.rows;
  const rows = run.map((_, row) => row).filter((row) => pictured.has(run[row]));
  return rows.length ? run[rows.reduce((best, row) => (merit(config, row) > merit(config, best) ? row : best))] : null;
}

async function drawInsides(page, container) {
  const { config, now } = page;
  if (!config.pictured.includes(now.run)) {
    const other = nearest(config, now.run);
    container.append(
      element(
        "p",
        { class: "soft" },
        `Filters and attention are in this page for ${grouped(config.pictured.length)} of ${plural(config.runs.id.length, "run")}, and not for this one. `,
        other === null
          ? null
          : element(
              "button",
              { type: "button", onclick: () => page.open(other, now.label) },
              `Open ${config.runs.id[other]}`,
            ),
      ),
    );
    return;
  }
  const found = (await picturesOf(page.configIndex, now.run))[now.label];
  const filters = element("div", { class: "chart", id: "filters" });
  const attention = element("section", { id: "attention" }, element("h2", {}, "Attention on an example"));
  const drawing = [];
  if (found.filters) {
    const side = config.spec.patch_size;
    const lines = Math.ceil(found.filters.length / FILTER_COLUMNS);
    const more = found.filters.length < config.spec.dim ? ` The first ${found.filters.length} are shown.` : "";
    container.classList.add("two");
    container.append(
      element(
        "section",
        {},
        element("h2", {}, "Patch filters"),
        element(
          "p",
          { class: "soft" },
          `The weights that turn a patch of ${side} × ${side} pixels into ${config.spec.dim} numbers. Dark is negative, light positive.${more}`,
        ),
        filters,
      ),
    );
    drawing.push(
      chart(filters, `${found.filters.length} patch filters as gray squares`, filterSpec(side, FILTER_COLUMNS, lines), {
        weights: filterRows(found.filters, side),
      }),
    );
  }
  container.append(attention);
  if (found.attention) drawing.push(drawAttention(page, found, attention));
  else
    attention.append(
      element(
        "p",
        { class: "soft", id: "no-example" },
        `No picture: ${config.example.missing ?? "there is none for this checkpoint"}.`,
      ),
    );
  await Promise.all(drawing);
}

function runChooser(page) {
  const { config, now } = page;
  const list = element(
    "datalist",
    { id: "ids" },
    ...config.pictured.slice(0, 200).map((run) => element("option", { value: config.runs.id[run] })),
  );
  const input = element("input", {
    type: "text",
    id: "run",
    list: "ids",
    size: "22",
    spellcheck: "false",
    autocomplete: "off",
  });
  input.value = config.runs.id[now.run] ?? "";
  const wrong = element("span", { role: "alert", class: "soft" });
  const open = (event) => {
    event.preventDefault();
    const wanted = input.value.trim();
    const found = config.runs.id.findIndex((id) => id === wanted);
    const run = found >= 0 ? found : config.runs.id.findIndex((id) => wanted && id.startsWith(wanted));
    if (run >= 0) page.open(run, now.label, "#run");
    else wrong.textContent = "no run has an id that begins like this";
  };
  const step = (by) => () =>
    page.open((now.run + by + config.runs.id.length) % config.runs.id.length, now.label, by < 0 ? "#before" : "#after");
  return element(
    "form",
    { class: "actions", onsubmit: open },
    element("label", {}, "Run ", input),
    list,
    element("button", { type: "submit" }, "Open"),
    element("button", { type: "button", id: "before", onclick: step(-1) }, "Previous run"),
    element("button", { type: "button", id: "after", onclick: step(1) }, "Next run"),
    wrong,
  );
}

async function checkpointView(page) {
  const { config, now } = page;
  if (!config.runs.id.length) {
    page.view.append(element("p", {}, "This config has no runs."));
    return;
  }
  now.run ??= bestPictured(config) ?? 0;
  const rows = rowsOfRun(config, now.run);
  const labels = rows.map((row) => config.rows.labels[config.rows.label[row]]);
  if (!labels.includes(now.label)) now.label = labels[labels.length - 1] ?? null;
  const boxes = [
    element("div", { class: "chart", id: "run-accuracy" }),
    element("div", { class: "chart", id: "run-loss" }),
  ];
  const inside = element("div", { id: "insides" });
  page.view.append(
    runChooser(page),
    element("h2", { id: "opened" }, "Run ", element("code", {}, config.runs.id[now.run])),
    element(
      "div",
      { class: "facts" },
      element("section", {}, element("h3", {}, "Hyperparameters"), settingsList(config, now.run)),
      element(
        "section",
        {},
        element("h3", {}, "Checkpoints"),
        rows.length
          ? measuredTable(page, rows)
          : element("p", { class: "soft" }, "This run diverged: its curves are kept, its weights are not."),
      ),
    ),
    element(
      "div",
      { class: "two" },
      ...rankedFirst(config, [
        element("section", {}, element("h3", {}, "Test accuracy"), boxes[0]),
        element("section", {}, element("h3", {}, "Losses"), boxes[1]),
      ]),
    ),
    inside,
    element("section", {}, element("h2", {}, "Load it"), codeBlock(loadingCode(config, now.run, now.label))),
  );
  page.remember();
  await Promise.all([drawCurves(page, rows, boxes), rows.length ? drawInsides(page, inside) : null]);
}
