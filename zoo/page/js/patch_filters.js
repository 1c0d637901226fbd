// The filters that turn a patch of an image into numbers, as gray squares.

const FILTER_COLUMNS = 8;

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
      color: {
        field: "weight",
        type: "quantitative",
        scale: { scheme: "greys", reverse: true, domainMid: 0 },
        legend: { title: "weight", orient: "right", gradientLength: 90 },
      },
      tooltip: [{ field: "filter" }, { field: "row" }, { field: "column" }, { field: "weight", format: ".3f" }],
    },
  };
}

function filterRows(filters, side) {
  return filters.flatMap((weights, number) =>
    weights.map((weight, index) => {
      const [row, column] = [Math.floor(index / side), index % side];
      return {
        filter: number + 1,
        row: row + 1,
        column: column + 1,
        weight,
        x: (number % FILTER_COLUMNS) * (side + 1) + column,
        y: Math.floor(number / FILTER_COLUMNS) * (side + 1) + row,
      };
    }),
  );
}
