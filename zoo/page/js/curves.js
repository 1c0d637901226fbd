// The second view: learning curves of chosen runs in front of all runs' middle nine tenths.

const MOST_CHOSEN = 8;

// The best, the median and the worst run among those that pass the filters, by their best checkpoint that passes.
function typicalRuns(config, filters) {
  const best = new Map();
  for (const row of passing(config, filters).rows) {
    const run = config.rows.run[row];
    best.set(run, Math.max(best.get(run) ?? -Infinity, merit(config, row)));
  }
  const order = [...best.keys()].sort((a, b) => best.get(b) - best.get(a));
  return order.length ? [...new Set([order[0], order[Math.floor(order.length / 2)], order[order.length - 1]])] : [];
}

function describeRun(config, run) {
  const varied = config.hyperparameters.filter(({ values, name }) => values.length > 1 && name !== "seed");
  const settings = varied.map(({ name, values, codes }) => `${spaced(name)} ${shown(values[codes[run]])}`).join(", ");
  return config.runs.status[run] === "completed" ? settings : `${settings}; ${config.runs.status[run]}`;
}

function curveRows(names, curves, measure) {
  return curves.flatMap((curve, index) =>
    curve[measure]
      .map((value, epoch) => ({ run: names[index], epoch: epoch + 1, value }))
      .filter(({ value }) => value !== null),
  );
}

function lastPoints(rows) {
  return [...new Map(rows.map((row) => [row.run, row])).values()];
}

function curveSpec(names, x, y, { band = false } = {}) {
  const hues = HUES[theme()];
  const { title } = y;
  const scale = (range) => ({ domain: names, range: names.map((_, index) => range[index % range.length]) });
  const color = { field: "run", type: "nominal", scale: scale(hues), legend: null };
  const behind = [
    {
      data: { name: "band" },
      mark: { type: "area", color: variable("--soft"), opacity: 0.15 },
      encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" } },
    },
    {
      data: { name: "band" },
      mark: { type: "line", color: variable("--soft"), opacity: 0.7, strokeWidth: 1 },
      encoding: { x, y: { ...y, field: "middle" } },
    },
  ];
  return {
    height: 320,
    layer: [
      ...(band ? behind : []),
      {
        data: { name: "lines" },
        mark: { type: "line", strokeWidth: 2 },
        encoding: {
          x,
          y,
          color,
          strokeDash: { field: "run", type: "nominal", scale: scale(DASHES), legend: null },
          tooltip: [{ field: "run" }, { field: "epoch" }, { field: "value", title, format: ".4g" }],
        },
      },
      {
        data: { name: "ends" },
        mark: { type: "point", filled: true, size: 70, opacity: 1 },
        encoding: {
          x,
          y,
          color,
          shape: { field: "run", type: "nominal", scale: scale(SHAPES), legend: null },
          tooltip: [{ field: "run" }, { field: "epoch" }, { field: "value", title, format: ".4g" }],
        },
      },
      {
        data: { name: "ends" },
        mark: { type: "text", align: "left", dx: 9, fontSize: 12 },
        encoding: { x, y, text: { field: "run" }, color: { value: variable("--ink") } },
      },
    ],
  };
}

function bandRows({ low, middle, high }) {
  return low
    .map((value, epoch) => ({ epoch: epoch + 1, low: value, middle: middle[epoch], high: high[epoch] }))
    .filter((row) => row.low !== null);
}

function chosenList(page, names) {
  const { config, now } = page;
  return element(
    "ul",
    { class: "chosen", "aria-label": "Chosen runs" },
    ...now.chosen.map((run, index) =>
      element(
        "li",
        { title: describeRun(config, run) },
        element("strong", {}, names[index]),
        element(
          "button",
          { type: "button", onclick: () => page.open(run, null) },
          element("code", {}, config.runs.id[run]),
        ),
        element("span", { class: "soft" }, describeRun(config, run)),
        element(
          "button",
          {
            type: "button",
            "aria-label": `remove ${config.runs.id[run]}`,
            onclick: () => {
              page.choose(run, false);
              page.show();
            },
          },
          "×",
        ),
      ),
    ),
  );
}

async function curvesView(page) {
  const { config, now, configIndex } = page;
  if (!now.chosen.length && !now.touched) now.chosen = typicalRuns(config, now.filters);
  const names = now.chosen.map((_, number) => String.fromCharCode(65 + number));
  const { label, more } = config.ranked;
  const title = spaced(label);
  const [ranked, loss] = [
    element("div", { class: "chart", id: "ranked-curves" }),
    element("div", { class: "chart", id: "loss-curves" }),
  ];
  const add = (text, runs) =>
    element(
      "button",
      {
        type: "button",
        onclick: () => {
          now.chosen = runs().slice(0, MOST_CHOSEN);
          now.touched = true;
          page.show();
        },
      },
      text,
    );
  const diverged = config.runs.status
    .map((status, run) => (status === "completed" ? -1 : run))
    .filter((run) => run >= 0);
  page.view.append(
    element(
      "p",
      {},
      `Up to ${MOST_CHOSEN} runs: tick them in the table of checkpoints, or choose typical ones among those that pass the filters. Gray: median and middle nine tenths of all ${plural(config.runs.id.length, "run")}.`,
    ),
    element(
      "div",
      { class: "actions" },
      add("Best, median, worst", () => typicalRuns(config, now.filters)),
      diverged.length ? add("Some that diverged", () => diverged.slice(0, 3)) : null,
      add("None", () => []),
    ),
    chosenList(page, names),
    element(
      "div",
      { class: "two" },
      element("section", {}, element("h2", {}, capital(title)), ranked),
      element("section", {}, element("h2", {}, "Training loss"), loss),
    ),
  );
  const curves = await Promise.all(now.chosen.map((run) => curvesOf(configIndex, run)));
  const [lines, losses] = [label, "train_loss"].map((measure) => curveRows(names, curves, measure));
  const positive = losses.filter(({ value }) => value > 0);
  const epochs = epochAxis(least([0, ...config.runs.epochs.map((count) => -count)]) * -1);
  const band = bandRows(config.band);
  const known = [...lines, ...band.flatMap(({ low, high }) => [{ value: low }, { value: high }])];
  const height = more ? accuracyAxis() : lossAxis(title, known.filter(({ value }) => value > 0));
  const what = `of ${plural(names.length, "chosen run")} over the epochs`;
  await Promise.all([
    chart(ranked, `${capital(title)} ${what}`, curveSpec(names, epochs, height, { band: true }), {
      lines,
      ends: lastPoints(lines),
      band,
    }),
    chart(loss, `Training loss ${what}`, curveSpec(names, epochs, lossAxis("training loss", positive)), {
      lines: positive,
      ends: lastPoints(positive),
    }),
  ]);
}
