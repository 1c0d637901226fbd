// The learning curves of one run, with its checkpoints marked.

function runCurveSpec(x, y, measures) {
  const hues = HUES[theme()];
  const legend =
    measures.length > 1 ? { title: null, orient: "bottom-left", symbolType: "stroke", symbolSize: 400 } : null;
  const nominal = (range) => ({
    field: "measure",
    type: "nominal",
    scale: { domain: measures, range: measures.map((_, index) => range[index]) },
    legend,
  });
  return {
    height: 200,
    layer: [
      {
        data: { name: "lines" },
        mark: { type: "line", strokeWidth: 2 },
        encoding: {
          x,
          y,
          color: nominal(hues),
          strokeDash: nominal(DASHES),
          tooltip: [{ field: "measure" }, { field: "epoch" }, { field: "value", format: ".4g" }],
        },
      },
      {
        data: { name: "kept" },
        mark: { type: "rule", color: variable("--soft"), strokeDash: [2, 3] },
        encoding: { x },
      },
      {
        data: { name: "kept" },
        mark: { type: "point", shape: "diamond", filled: true, color: variable("--ink"), opacity: 1, size: 70 },
        encoding: {
          x,
          y,
          tooltip: [{ field: "label", title: "checkpoint" }, { field: "epoch" }, { field: "value", format: ".4g" }],
        },
      },
    ],
  };
}

async function drawCurves(page, rows, boxes) {
  const { config, now, configIndex } = page;
  const curves = await curvesOf(configIndex, now.run);
  const points = (measure, name) =>
    curveRows([name], [curves], measure).map(({ epoch, value }) => ({ measure: name, epoch, value }));
  const kept = (measure) =>
    rows.map((row) => ({
      label: config.rows.labels[config.rows.label[row]],
      epoch: config.rows.epoch[row],
      value: config.rows[measure][row],
    }));
  const losses = [...points("test_loss", "test"), ...points("train_loss", "training")].filter(({ value }) => value > 0);
  const keptLosses = kept("test_loss").filter(({ value }) => value > 0);
  const epochs = epochAxis(config.runs.epochs[now.run]);
  const id = config.runs.id[now.run];
  await Promise.all([
    chart(
      boxes[0],
      `Test accuracy of run ${id} over the epochs`,
      runCurveSpec(epochs, accuracyAxis(), ["test accuracy"]),
      { lines: points("test_accuracy", "test accuracy"), kept: kept("test_accuracy") },
    ),
    chart(
      boxes[1],
      `Losses of run ${id} over the epochs`,
      runCurveSpec(epochs, lossAxis("loss", [...losses, ...keptLosses]), ["test", "training"]),
      {
        lines: losses,
        kept: keptLosses,
      },
    ),
  ]);
}
