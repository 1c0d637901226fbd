// Weight gradients that are spilled to device memory between rounds (SPILL_GRADIENTS): for transformers whose gradients
// do not fit into the registers of eight warps for a whole step.
//
// Every matrix is cut into square pieces: warp p % 8 computes piece p. After a block's backward pass the warp reads the
// sums over the step's earlier examples (or starts from zero), adds the new ones, and writes the sums back. A lane
// writes and reads back its own numbers, so no barrier is needed, and examples are added in the same order however many
// there are at a time. At the end of a step the warp updates the weights of its pieces in device memory; then all are
// reloaded.
#pragma once
#include "backward.cuh"
#include "classifier.cuh"
#include "update.cuh"
#include "warps.cuh"

// Operands of a product dW = dyᵀ·x: for this lane, where columns 0-15 and 16-31 of a piece's factor start, and the
// bytes from 16 rows to the next 16.
struct Source {
    u32 start, next, step;

    // Columns from the even chunk `chunk` on; `pattern` is Matrix<M, N>::across of dy, down of x.
    template <int N> DEVICE static Source at(u32 matrix, u32 pattern, int chunk) {
        const u32 lane = pattern ^ (16 * chunk);
        return {matrix + lane, matrix + (lane ^ 32u), TILE * PITCH<N>};
    }
    // The same in an example that starts at this address.
    DEVICE Source behind(u32 example) const { return {example + start, example + next, step}; }
};

// One piece of a matrix: its offset in the flat vector, and its two factors.
struct PieceSource {
    Source left, right;
    int flat, columns;    // first weight, and the length of a row of its matrix
    int bias;             // first bias in the flat vector, for pieces at the left border
    bool biased;
};

// SIDE × SIDE sums of a warp, and the sums of the biases.
template <int SIDE> struct Piece {
    static constexpr int TILES = SIDE / TILE, SUMS = 2 * TILES * TILES + TILES, WORDS = SUMS * 4 * WARP;
    Sums square[TILES][2 * TILES], bias[TILES];

    DEVICE void clear_all() {
        #pragma unroll
        for (int i = 0; i < TILES; i++) clear(square[i]);
        clear(bias);
    }
    DEVICE void read(const u32* place, bool biased) {
        place += 4 * (thread_index() % WARP);
        #pragma unroll
        for (int i = 0; i < 2 * TILES * TILES; i++) {
            read_words(square[i / (2 * TILES)][i % (2 * TILES)], place + i * 4 * WARP);
        }
        clear(bias);
        #pragma unroll
        for (int i = 0; i < TILES; i++) {
            if (biased) read_words(bias[i], place + (2 * TILES * TILES + i) * 4 * WARP);
        }
    }
    DEVICE void write(u32* place, bool biased) const {
        place += 4 * (thread_index() % WARP);
        #pragma unroll
        for (int i = 0; i < 2 * TILES * TILES; i++) {
            write_words(place + i * 4 * WARP, square[i / (2 * TILES)][i % (2 * TILES)]);
        }
        #pragma unroll
        for (int i = 0; i < TILES; i++) {
            if (biased) write_words(place + (2 * TILES * TILES + i) * 4 * WARP, bias[i]);
        }
    }

    // Sums over the step's earlier examples; the first ones start from zero.
    DEVICE void start(const u32* place, bool biased, bool first) {
        if (first) clear_all();
        else read(place, biased);
    }

    // Adds 16 rows at a time, of which `tiles` hold tokens.
    DEVICE void add(const Source& left, const Source& right, bool biased, int tiles) {
        #pragma unroll
        for (int tile = 0; tile < GROUP_WARPS; tile++) {
            if (tile >= tiles) break;
            Factor a[2], b[2];
            ldmatrix_transposed(a[0], left.start + tile * left.step);
            ldmatrix_transposed(b[0], right.start + tile * right.step);
            if (TILES == 2) {
                ldmatrix_transposed(a[1], left.next + tile * left.step);
                ldmatrix_transposed(b[1], right.next + tile * right.step);
            }
            #pragma unroll
            for (int i = 0; i < TILES; i++) {
                #pragma unroll
                for (int j = 0; j < 2 * TILES; j++) {
                    mma(square[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
                }
                if (biased) mma(bias[i], a[i], ONES, ONES);
            }
        }
    }

    // Updates its weights, in device memory; only the first `rows` rows exist.
    DEVICE void apply(const Thread& me, const Optimizer& optimizer, const PieceSource& from, int rows = SIDE) const {
        #pragma unroll
        for (int i = 0; i < TILES; i++) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = TILE * i + me.row + 8 * half;
                if (row >= rows) continue;
                #pragma unroll
                for (int j = 0; j < 2 * TILES; j++) {
                    const int index = from.flat + row * from.columns + 8 * j + me.pair;
                    optimizer.step(index, left(square[i][j], half));
                    optimizer.step(index + 1, right(square[i][j], half));
                }
                if (from.biased && me.pair == 0) optimizer.step(from.bias + row, left(bias[i], half));
            }
        }
    }
};

struct SpilledGradients {
    static constexpr int SIDE = DIM % 32 || INNER % 32 || HIDDEN % 32 ? 16 : 32;
    static constexpr int DIM_PIECES = DIM / SIDE, INNER_PIECES = INNER / SIDE, HIDDEN_PIECES = HIDDEN / SIDE;
    // pieces of a block: query, key and value, output, fc1, fc2; and 16 × 16 pieces of the other matrices
    static constexpr int PROJECTIONS = 3 * INNER_PIECES * DIM_PIECES;
    static constexpr int OUTPUT_END = PROJECTIONS + DIM_PIECES * INNER_PIECES;
    static constexpr int FC1_END = OUTPUT_END + HIDDEN_PIECES * DIM_PIECES;
    static constexpr int BLOCK_PIECES = FC1_END + DIM_PIECES * HIDDEN_PIECES;
    static constexpr int DIM_TILES = DIM / TILE, FEATURE_TILES = FEATURES / TILE;
    static constexpr int EMBEDDING_TILES = IMAGES ? DIM_TILES * FEATURE_TILES : 0;
    static constexpr int CLASSIFIER1_TILES = DIM_TILES * DIM_TILES, CLASSIFIER_TILES = CLASSIFIER1_TILES + DIM_TILES;
    static constexpr int OTHERS = BLOCKS * BLOCK_PIECES * Piece<SIDE>::WORDS;
    static constexpr int WORDS = OTHERS + (EMBEDDING_TILES + CLASSIFIER_TILES) * Piece<TILE>::WORDS;
    u32* start;  // of the model's WORDS

    DEVICE explicit SpilledGradients(u32* place) : start(place) {}
    DEVICE void reset() const {}  // the first examples of a step start from zero

    DEVICE u32* block_piece(int block, int piece) const {
        return start + (block * BLOCK_PIECES + piece) * Piece<SIDE>::WORDS;
    }
    DEVICE u32* embedding_tile(int piece) const { return start + OTHERS + piece * Piece<TILE>::WORDS; }
    DEVICE u32* classifier_tile(int piece) const { return embedding_tile(EMBEDDING_TILES + piece); }

    // Addresses in an example that starts at 0.
    DEVICE static PieceSource block_source(const Thread& me, int block, int piece) {
        constexpr int chunks = SIDE / 8;
        const u32 across = TokenRows<DIM>::across(me), down = TokenRows<DIM>::down(me);
        const int flat = block * BLOCK_STRIDE;
        if (piece < PROJECTIONS) {
            const int row = piece / DIM_PIECES, column = piece % DIM_PIECES;
            const u32 gradients = Example::QUERIES + row / INNER_PIECES * TokenRows<INNER>::BYTES;
            return {
                Source::at<INNER>(gradients, TokenRows<INNER>::across(me), chunks * (row % INNER_PIECES)),
                Source::at<DIM>(BlockRows::X1, down, chunks * column),
                flat + FLAT_QUERY + SIDE * (row * DIM + column), DIM, 0, false,
            };
        }
        if (piece < OUTPUT_END) {
            const int row = (piece - PROJECTIONS) / INNER_PIECES, column = (piece - PROJECTIONS) % INNER_PIECES;
            return {
                Source::at<DIM>(Example::DA, across, chunks * row),
                Source::at<INNER>(BlockRows::JOINED, TokenRows<INNER>::down(me), chunks * column),
                flat + FLAT_OUTPUT + SIDE * (row * INNER + column), INNER, 0, false,
            };
        }
        if (piece < FC1_END) {
            const int row = (piece - OUTPUT_END) / DIM_PIECES, column = (piece - OUTPUT_END) % DIM_PIECES;
            return {
                Source::at<HIDDEN>(Example::D_HIDDEN, TokenRows<HIDDEN>::across(me), chunks * row),
                Source::at<DIM>(BlockRows::X2, down, chunks * column),
                flat + FLAT_FC1 + SIDE * (row * DIM + column), DIM, flat + FLAT_FC1_BIAS + SIDE * row, column == 0,
            };
        }
        const int row = (piece - FC1_END) / HIDDEN_PIECES, column = (piece - FC1_END) % HIDDEN_PIECES;
        return {
            Source::at<DIM>(Example::DY, across, chunks * row),
            Source::at<HIDDEN>(BlockRows::HIDDEN_ROWS, TokenRows<HIDDEN>::down(me), chunks * column),
            flat + FLAT_FC2 + SIDE * (row * HIDDEN + column), HIDDEN, flat + FLAT_FC2_BIAS + SIDE * row, column == 0,
        };
    }

    // Addresses in an example and its patches, both starting at 0.
    DEVICE static PieceSource embedding_source(const Thread& me, int piece) {
        const int row = piece / FEATURE_TILES, column = piece % FEATURE_TILES;
        return {
            Source::at<DIM>(Example::D_JOINED, TokenRows<DIM>::across(me), 2 * row),
            Source::at<FEATURES>(0, TokenRows<FEATURES>::down(me), 2 * column),
            FLAT_EMBEDDING + TILE * (row * FEATURES + column), FEATURES, FLAT_EMBEDDING_BIAS + TILE * row, column == 0,
        };
    }

    // Addresses in recent examples that start at 0.
    DEVICE static PieceSource classifier_source(const Thread& me, int piece) {
        const u32 across = Matrix<RECENT, DIM>::across(me), down = Matrix<RECENT, DIM>::down(me);
        const int column = piece % DIM_TILES;
        if (piece < CLASSIFIER1_TILES) {
            const int row = piece / DIM_TILES;
            return {
                Source::at<DIM>(RecentExamples::DZ, across, 2 * row),
                Source::at<DIM>(0, down, 2 * column),
                FLAT_CLASSIFIER1 + TILE * (row * DIM + column), DIM, FLAT_CLASSIFIER1_BIAS + TILE * row, column == 0,
            };
        }
        return {
            Source::at<TILE>(RecentExamples::D_LOGIT, Matrix<RECENT, TILE>::across(me), 0),
            Source::at<DIM>(RecentExamples::ACTIVE, down, 2 * column),
            FLAT_CLASSIFIER2 + TILE * column, DIM, FLAT_CLASSIFIER2_BIAS, column == 0,
        };
    }

    // Adds the examples of a round to the gradients of a block or of a part of it, and to the embedding's after the
    // first block.
    template <Part PART, class Memory>
    DEVICE void add_examples(
        const Thread& me, const Memory& memory, int block, int first_pack, const PerGroup<int>& tiles, int stage
    ) const {
        constexpr int first = PART == MLP ? OUTPUT_END : 0, end = PART == ATTENTION ? OUTPUT_END : BLOCK_PIECES;
        #pragma unroll 1
        for (int piece = first + (me.warp + WARPS - first % WARPS) % WARPS; piece < end; piece += WARPS) {
            const PieceSource from = block_source(me, block, piece);
            u32* const place = block_piece(block, piece);
            Piece<SIDE> sums;
            sums.start(place, from.biased, first_pack == 0);
            #pragma unroll 1
            for (int group = 0; group < GROUPS; group++) {
                const u32 example = memory.example(group).start;
                const int count = group ? tiles[1] : tiles[0];
                sums.add(from.left.behind(example), from.right.behind(example), from.biased, count);
            }
            sums.write(place, from.biased);
        }
        if (!IMAGES || block || PART == MLP) return;
        #pragma unroll 1
        for (int piece = me.warp; piece < EMBEDDING_TILES; piece += WARPS) {
            const PieceSource from = embedding_source(me, piece);
            u32* const place = embedding_tile(piece);
            Piece<TILE> sums;
            sums.start(place, from.biased, first_pack == 0);
            #pragma unroll 1
            for (int group = 0; group < GROUPS; group++) {
                const Source left = from.left.behind(memory.example(group).start);
                const Source right = from.right.behind(memory.inputs(group)[stage].address());
                sums.add(left, right, from.biased, TOKEN_TILES);
            }
            sums.write(place, from.biased);
        }
    }

    // Adds the last 16 examples to the gradient of the classifier; the `first` in a step start from zero.
    DEVICE void add_classifier(const Thread& me, RecentExamples recent, bool first) const {
        #pragma unroll 1
        for (int piece = me.warp; piece < CLASSIFIER_TILES; piece += WARPS) {
            const PieceSource from = classifier_source(me, piece);
            u32* const place = classifier_tile(piece);
            Piece<TILE> sums;
            sums.start(place, from.biased, first);
            sums.add(from.left.behind(recent.start), from.right.behind(recent.start), from.biased, RECENT / TILE);
            sums.write(place, from.biased);
        }
    }

    template <int SIZE>
    DEVICE static void apply_piece(
        const Thread& me, const Optimizer& optimizer, const u32* place, const PieceSource& from, int rows = SIZE
    ) {
        Piece<SIZE> sums;
        sums.read(place, from.biased);
        sums.apply(me, optimizer, from, rows);
    }

    // Updates every weight whose gradient this warp computes, and reloads all weights.
    DEVICE void apply(const Thread& me, const Optimizer& optimizer, const Weights& weights) const {
        #pragma unroll 1
        for (int block = 0; block < BLOCKS; block++) {
            #pragma unroll 1
            for (int piece = me.warp; piece < BLOCK_PIECES; piece += WARPS) {
                apply_piece<SIDE>(me, optimizer, block_piece(block, piece), block_source(me, block, piece));
            }
        }
        #pragma unroll 1
        for (int piece = me.warp; piece < EMBEDDING_TILES; piece += WARPS) {
            apply_piece<TILE>(me, optimizer, embedding_tile(piece), embedding_source(me, piece));
        }
        #pragma unroll 1
        for (int piece = me.warp; !CAUSAL && piece < CLASSIFIER_TILES; piece += WARPS) {
            const int rows = piece < CLASSIFIER1_TILES ? TILE : CLASSES;
            apply_piece<TILE>(me, optimizer, classifier_tile(piece), classifier_source(me, piece), rows);
        }
        thread_block_barrier();  // all weights are updated
        load_weights(optimizer.weights, weights, {thread_index(), WARPS * WARP});
    }
};
