// The histogram of accuracies.

const BINS = 40;

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
      x: {
        field: "from",
        type: "quantitative",
        bin: "binned",
        title: "test accuracy",
        scale: { domain: [0, 1], nice: false },
        axis: { format: ".1f", grid: false },
      },
      x2: { field: "to" },
      y: {
        field: "count",
        type: "quantitative",
        title: "checkpoints",
        scale: logarithmic ? { type: "symlog" } : {},
        axis: { tickCount: 5, format: ",d", tickMinStep: 1 },
      },
      tooltip: [
        { field: "from", title: "from", format: ".3f" },
        { field: "to", format: ".3f" },
        { field: "count", title: "checkpoints", format: ",d" },
      ],
    },
  };
}
