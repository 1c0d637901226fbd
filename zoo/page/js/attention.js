// The attention of a checkpoint's heads on an example: patches of an image, words or characters.

const EVERY_TOKEN = "mean";
const MOST_ACROSS = 4;

// The attention of one token, or the mean over all of them, for one head of one block.
function attended(attention, tokens, at, query) {
  const weights = new Array(tokens).fill(0);
  const from = query === EVERY_TOKEN ? [...Array(tokens).keys()] : [Number(query)];
  for (const token of from)
    for (let other = 0; other < tokens; other++)
      weights[other] += attention[(at * tokens + token) * tokens + other] / 255 / from.length;
  return weights;
}

// From the background color to that of marks: darker is more on white, lighter is more on black.
const shades = () => ["--panel", "--mark"].map(variable);

function mapSpec(width, height) {
  const axis = { axis: null, type: "quantitative", scale: { domain: [0, width], nice: false, zero: false } };
  const down = { ...axis, scale: { ...axis.scale, domain: [0, height], reverse: true } };
  return {
    width: 165,
    height: Math.round((165 * height) / width),
    autosize: { type: "pad" },
    layer: [
      {
        data: { name: "patches" },
        mark: { type: "rect", stroke: variable("--line"), strokeWidth: 0.5 },
        encoding: {
          x: { field: "x", ...axis },
          x2: { field: "x2" },
          y: { field: "y", ...down },
          y2: { field: "y2" },
          color: {
            field: "weight",
            type: "quantitative",
            scale: { range: shades(), domainMin: 0 },
            legend: null,
          },
          tooltip: [{ field: "row" }, { field: "column" }, { field: "weight", title: "attention", format: ".3f" }],
        },
      },
      {
        data: { name: "ink" },
        mark: { type: "rect", aria: false, color: variable("--ink"), tooltip: null },
        encoding: {
          x: { field: "x", ...axis },
          x2: { field: "x2" },
          y: { field: "y", ...down },
          y2: { field: "y2" },
          opacity: { field: "share", type: "quantitative", scale: null },
        },
      },
      {
        data: { name: "patches" },
        transform: [{ filter: "datum.query" }],
        mark: { type: "rect", fill: null, stroke: variable("--focus"), strokeWidth: 3 },
        encoding: { x: { field: "x", ...axis }, x2: { field: "x2" }, y: { field: "y", ...down }, y2: { field: "y2" } },
      },
    ],
  };
}

function inkRows(pixels, opacity) {
  return pixels.flatMap((line, y) =>
    line.flatMap((value, x) => (value > 40 ? [{ x, x2: x + 1, y, y2: y + 1, share: (value / 255) * opacity }] : [])),
  );
}

function patchRows(weights, query, side, grid) {
  return weights.map((weight, index) => {
    const [row, column] = [Math.floor(index / grid), index % grid];
    return {
      row: row + 1,
      column: column + 1,
      weight,
      query: String(index) === query,
      x: column * side,
      x2: (column + 1) * side,
      y: row * side,
      y2: (row + 1) * side,
    };
  });
}

function wordsSpec(heads, labelAngle) {
  return {
    height: 26 * heads,
    data: { name: "cells" },
    encoding: {
      x: {
        field: "word",
        type: "nominal",
        sort: null,
        title: null,
        axis: { labelAngle, orient: "top", ticks: false, domain: false, labelFontSize: 12 },
      },
      y: {
        field: "head",
        type: "nominal",
        sort: null,
        title: null,
        axis: { ticks: false, domain: false, labelFontSize: 12 },
      },
      tooltip: [{ field: "head" }, { field: "word" }, { field: "weight", title: "attention", format: ".3f" }],
    },
    layer: [
      {
        mark: { type: "rect", stroke: variable("--paper"), strokeWidth: 1.5 },
        encoding: {
          color: {
            field: "weight",
            type: "quantitative",
            scale: { range: shades(), domainMin: 0 },
            legend: { title: "attention", orient: "right", gradientLength: 80 },
          },
        },
      },
    ],
  };
}

function headNames({ blocks, heads }) {
  return Array.from(
    { length: blocks * heads },
    (_, at) => `block ${Math.floor(at / heads) + 1}, head ${(at % heads) + 1}`,
  );
}

function verdict({ probabilities }, { label, names }) {
  const best = probabilities.reduce((top, value, index) => (value > probabilities[top] ? index : top), 0);
  const probability = `(probability ${fixed(probabilities[best], 3)})`;
  if (names) return `Next, this checkpoint predicts ${names[best]} ${probability}; the text has ${names[label]}.`;
  const truth = label === null ? "" : `, its label is ${label}`;
  return `This checkpoint predicts class ${best} ${probability}${truth}.`;
}

async function drawAttention(page, found, container) {
  const { spec, example } = page.config;
  const { tokens } = found;
  const unit = example.names ? "character" : "word";
  const attention = bytesOf(found.attention);
  const names = headNames(spec);
  const across = example.words ? tokens : example.pixels[0].length / spec.patch_size;
  const token = (number) =>
    example.words
      ? `${number + 1}. ${example.words[number]}`
      : `patch in row ${Math.floor(number / across) + 1}, column ${(number % across) + 1}`;
  const options = [
    [EVERY_TOKEN, `all ${example.words ? `${unit}s` : "patches"}, on average`],
    ...Array.from({ length: tokens }, (_, number) => [String(number), token(number)]),
  ];
  const boxes = names.map(() => element("div", { class: "chart map" }));
  const captions = names.map(() => element("figcaption", { class: "soft" }));
  const words = element("div", { class: "chart", id: "words" });
  const draw = (query) => {
    const weights = names.map((_, at) => attended(attention, tokens, at, query));
    if (example.words) {
      const texts = example.words.map((_, number) => token(number));
      const cells = names.flatMap((name, at) =>
        weights[at].map((weight, number) => ({ head: name, word: texts[number], weight })),
      );
      const spec = wordsSpec(names.length, example.names ? 0 : -40);
      return chart(words, `Attention to each ${unit} by block and head`, spec, { cells });
    }
    const [height, width] = [example.pixels.length, example.pixels[0].length];
    captions.forEach((caption, at) => {
      caption.textContent = `up to ${fixed(Math.max(...weights[at]), 2)}`;
    });
    return Promise.all(
      names.map((name, at) =>
        chart(boxes[at], `Attention of ${name} to the patches of the example`, mapSpec(width, height), {
          patches: patchRows(weights[at], query, spec.patch_size, across),
          ink: inkRows(example.pixels, 0.5),
        }),
      ),
    );
  };
  container.append(
    element(
      "p",
      {},
      verdict(found, example),
      element(
        "span",
        { class: "soft" },
        ` Example: ${example.source}. ${theme() === "dark" ? "Lighter" : "Darker"} is more attention${example.words ? "" : "; each head has its own scale"}.`,
      ),
    ),
    element(
      "div",
      { class: "actions" },
      choice(
        "Attention of",
        options,
        page.now.query,
        (query) => {
          page.now.query = query;
          draw(query);
        },
        { id: "query" },
      ),
    ),
    example.words
      ? words
      : element(
          "div",
          { class: "maps", style: `--across: ${Math.min(MOST_ACROSS, spec.heads)}` },
          ...boxes.map((box, at) => element("figure", {}, element("h3", {}, names[at]), box, captions[at])),
        ),
  );
  if (!options.some(([key]) => key === page.now.query)) page.now.query = EVERY_TOKEN;
  return draw(page.now.query);
}
