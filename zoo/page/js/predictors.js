// The third view: predicted accuracies or losses beside measured ones.

const ACCURACY_TICKS = [0.1, 0.6, 0.85, 0.95, 1];
// Most runs of a zoo lie above 0.9 and, on a straight axis, in one corner.
const stretched = (accuracy) => -Math.log10(1.01 - Math.min(1, Math.max(0, accuracy)));

function scatterSpec(hollow, accuracies) {
  const scale = accuracies ? { domain: [stretched(0), stretched(1)], nice: false } : { zero: false };
  const ticks = {
    values: ACCURACY_TICKS.map(stretched),
    labelExpr: "format(1.01 - pow(10, -datum.value), '.2~f')",
    labelOverlap: true,
  };
  const axis = accuracies ? ticks : { tickCount: 5 };
  const x = { field: "x", type: "quantitative", scale, axis, title: "measured" };
  const y = { field: "y", type: "quantitative", scale, axis, title: "predicted" };
  const mark = variable("--mark");
  return {
    height: 210,
    layer: [
      {
        data: { name: "diagonal" },
        mark: { type: "line", color: variable("--soft"), strokeDash: [4, 3], strokeWidth: 1 },
        encoding: { x, y },
      },
      {
        data: { name: "points" },
        mark: {
          type: "point",
          shape: hollow ? "diamond" : "circle",
          filled: !hollow,
          color: mark,
          opacity: 0.55,
          size: 18,
          strokeWidth: 1,
          aria: false,
        },
        encoding: {
          x,
          y,
          tooltip: [
            { field: "measured", format: ".4f" },
            { field: "predicted", format: ".4f" },
          ],
        },
      },
    ],
  };
}

function tauSpec(count) {
  const y = {
    field: "predictor",
    type: "nominal",
    sort: null,
    title: null,
    axis: { labelLimit: 220, labelFontSize: 12, ticks: false, domain: false },
  };
  const x = {
    field: "tau",
    type: "quantitative",
    title: "Kendall's τ, 95% interval",
    scale: { zero: false },
    axis: { tickCount: 6 },
  };
  const tooltip = [
    { field: "predictor" },
    { field: "tau", title: "τ", format: ".3f" },
    { field: "low", format: ".3f" },
    { field: "high", format: ".3f" },
  ];
  const [mark, ink, paper] = ["--mark", "--ink", "--paper"].map(variable);
  const reads = (yes, no) => ({ condition: { test: "datum.reads", value: yes }, value: no });
  return {
    height: 30 * count,
    data: { name: "taus" },
    encoding: { y, tooltip },
    layer: [
      {
        mark: { type: "rule", color: mark, strokeWidth: 1.5 },
        encoding: { x: { ...x, field: "low" }, x2: { field: "high" } },
      },
      {
        mark: { type: "point", filled: true, stroke: mark, strokeWidth: 1.5, opacity: 1, size: 90 },
        encoding: { x, shape: reads("circle", "diamond"), fill: reads(mark, paper) },
      },
      {
        mark: { type: "text", dy: -11, fontSize: 11, color: ink },
        encoding: { x, text: { field: "tau", format: ".3f" } },
      },
    ],
  };
}

function noPredictions() {
  return [
    element(
      "p",
      { id: "no-predictions" },
      "There are no predictions for this config. To add them, make the page with",
    ),
    element(
      "pre",
      {},
      "python -m benchmarks.page ZOO OUT                 # with the predictors of the tables\npython -m zoo.page ZOO OUT --predictions FILE     # with your own",
    ),
  ];
}

async function predictorsView(page) {
  const known = head.predictions.filter(({ config }) => config === page.config.name);
  const sources = [...new Set(known.map(({ data }) => data))];
  if (!sources.length) {
    page.view.append(...noPredictions());
    return;
  }
  if (!sources.includes(page.now.source)) [page.now.source] = sources;
  const entries = known.filter(({ data }) => data === page.now.source).sort((a, b) => (b.tau ?? -2) - (a.tau ?? -2));
  const rated = entries.filter(({ tau }) => tau !== null);
  const { more } = page.config.ranked;
  const overview = element("div", { class: "chart", id: "taus" });
  const boxes = entries.map(() => element("div", { class: "chart scatter" }));
  const choose = (source) => {
    page.now.source = source;
    page.show("#source");
  };
  page.view.append(
    element(
      "p",
      {},
      `${capital(rankedBy(page.config))} predicted from a checkpoint, against the ${rankedBy(page.config)} measured: `,
      sources.length > 1
        ? choice(
            "",
            sources.map((source) => [source, source]),
            page.now.source,
            choose,
            { id: "source", "aria-label": "Checkpoints that were predicted" },
          )
        : `${sources[0]}.`,
    ),
    element(
      "p",
      { class: "soft" },
      `Filled circles read weights, hollow diamonds do not. The dashed line is where prediction and measurement agree${more ? "; both axes are stretched toward 1" : ""}. Where a predictor was fitted several times, τ is the mean, and the points are those of one fit.`,
    ),
  );
  if (rated.length)
    page.view.append(element("section", { class: "narrow" }, element("h2", {}, "How well each ranks"), overview));
  page.view.append(
    element(
      "section",
      {},
      element("h2", {}, "Predicted against measured"),
      element(
        "div",
        { class: "many" },
        ...entries.map((entry, index) =>
          element(
            "figure",
            {},
            element("h3", {}, entry.predictor),
            element("p", { class: "soft" }, rating(entry)),
            boxes[index],
          ),
        ),
      ),
    ),
  );
  await Promise.all([
    rated.length ? drawTaus(overview, rated) : null,
    ...entries.map((entry, index) => drawScatter(boxes[index], entry, page.config)),
  ]);
}

function drawTaus(box, rated) {
  const taus = rated.map(({ predictor, tau, interval, reads_weights: reads }) => ({
    predictor,
    tau,
    reads,
    low: interval?.[0] ?? tau,
    high: interval?.[1] ?? tau,
  }));
  return chart(box, `Kendall's tau of ${plural(rated.length, "predictor")}`, tauSpec(rated.length), { taus });
}

function drawScatter(box, entry, config) {
  const { more } = config.ranked;
  const place = more ? stretched : (loss) => loss;
  const points = entry.predicted.map((predicted, index) => ({
    predicted,
    measured: entry.measured[index],
    x: place(entry.measured[index]),
    y: place(predicted),
  }));
  const ends = more ? [0, 1] : [least(entry.measured), -least(entry.measured.map((loss) => -loss))];
  const diagonal = ends.map((end) => ({ x: place(end), y: place(end) }));
  return chart(
    box,
    `${entry.predictor}: predicted against measured ${rankedBy(config)}; ${rating(entry)}`,
    scatterSpec(!entry.reads_weights, more),
    { points, diagonal },
  );
}

function rating({ tau, interval, count, predicted }) {
  const sampled = predicted.length < count ? `, ${grouped(predicted.length)} of them shown` : "";
  const between = interval ? ` [${fixed(interval[0], 3)}, ${fixed(interval[1], 3)}]` : "";
  return `${tau === null ? "" : `τ ${fixed(tau, 3)}${between}, `}n = ${grouped(count)}${sampled}`;
}
