// Accuracy or loss by the values of one hyperparameter.

function quantile(sorted, share) {
  const index = share * (sorted.length - 1);
  const low = Math.floor(index);
  return sorted[low] + (index - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
}

// Their values in groups: one per value of it, or for a column with many values one per range with equally many of them.
function groupsOf(config, name, rows) {
  const { run, label, labels, [config.ranked.label]: ranked } = config.rows;
  const column = config.hyperparameters.find((other) => other.name === name);
  const stretch = column ? Math.ceil(column.values.length / MOST_CHIPS) : 1;
  const titles = column
    ? Array.from({ length: Math.ceil(column.values.length / stretch) }, (_, index) => {
        const [first, last] = [index * stretch, Math.min((index + 1) * stretch, column.values.length) - 1].map((at) =>
          shown(column.values[at]),
        );
        return first === last ? first : `${first} – ${last}`;
      })
    : labels;
  const groups = titles.map(() => []);
  for (const row of rows)
    groups[column ? Math.floor(column.codes[run[row]] / stretch) : label[row]].push(ranked[row]);
  return groups.flatMap((values, index) => {
    if (!values.length) return [];
    values.sort((a, b) => a - b);
    const [low, lower, middle, upper, high] = [0.05, 0.25, 0.5, 0.75, 0.95].map((share) => quantile(values, share));
    return [{ value: titles[index], count: values.length, low, lower, middle, upper, high }];
  });
}

function marginalSpec(title, groups, ranked, domain) {
  const long = groups.reduce((sum, { value }) => sum + value.length + 2, 0) > 48;
  const y = (field) => ({
    field,
    type: "quantitative",
    title: ranked,
    scale: { domain, zero: false },
    axis: { tickCount: 5, format: ".1f" },
  });
  const mark = variable("--mark");
  return {
    height: 230,
    data: { name: "groups" },
    encoding: {
      x: {
        field: "value",
        type: "ordinal",
        sort: null,
        title,
        axis: { labelAngle: long ? -35 : 0, labelOverlap: false },
      },
      tooltip: [
        { field: "value", title },
        { field: "count", title: "checkpoints", format: ",d" },
        { field: "middle", title: "median", format: ".4f" },
        { field: "lower", title: "25%", format: ".4f" },
        { field: "upper", title: "75%", format: ".4f" },
        { field: "low", title: "5%", format: ".4f" },
        { field: "high", title: "95%", format: ".4f" },
      ],
    },
    layer: [
      { mark: { type: "rule", color: mark }, encoding: { y: y("low"), y2: { field: "high" } } },
      { mark: { type: "bar", color: mark, width: 9 }, encoding: { y: y("lower"), y2: { field: "upper" } } },
      {
        mark: {
          type: "point",
          shape: "circle",
          filled: true,
          fill: variable("--paper"),
          stroke: variable("--ink"),
          strokeWidth: 1.5,
          opacity: 1,
          size: 55,
        },
        encoding: { y: y("middle") },
      },
    ],
  };
}
