// The histogram of accuracies or losses.

const BINS = 40;

function histogramOf(values, [low, high]) {
  const counts = new Array(BINS).fill(0);
  const bin = (value) => Math.floor(((value - low) / (high - low)) * BINS);
  for (const value of values) counts[Math.min(BINS - 1, Math.max(0, bin(value)))] += 1;
  const edge = (number) => low + ((high - low) * number) / BINS;
  return counts.map((count, number) => ({ from: edge(number), to: edge(number + 1), count }));
}

function histogramSpec(logarithmic, title, domain) {
  return {
    height: 230,
    data: { name: "bins" },
    mark: { type: "bar", color: variable("--mark"), stroke: variable("--paper"), strokeWidth: 1 },
    encoding: {
      x: {
        field: "from",
        type: "quantitative",
        bin: "binned",
        title,
        scale: { domain, nice: false, zero: false },
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
