// Weight gradients in the registers of the four consumer warps (WARP_SPECIALIZED), for a whole step: those of at most
// two blocks of the paper's dimensions.
//
// A block's six matrices are eight squares of 32×32. Consumer warp g has square g, of the attention, and square 4 + g,
// of the MLP:
//
//     square    0        1        2        3            4, 5                  6, 7
//     dW        query    key      value    output       fc1, upper and lower  fc2, left and right half
//     from      dQᵀ·x1   dKᵀ·x1   dVᵀ·x1   daᵀ·joined   d_hiddenᵀ·x2          dyᵀ·hidden
//
// Biases are the same with x = 1: fc1's belong to squares 4 and 5, fc2's to square 6. The embedding (images only)
// belongs to squares 0 and 1, the classifier to all, from the rows of the last 16 examples. Of a language model's
// unembedding consumer warp g has eight columns; its embedding does not fit (language_gradients.cuh). After the last
// example of a step the gradients are written to device memory, where every warp reads those of the weights it updates.
#pragma once
#include "register_gradients.cuh"

// Writes gradients to device memory, in the order of the flat vector.
struct Writer {
    const Thread& me;
    float* flat;

    // 16 rows × 8 columns of a matrix that starts at `start`, from `row` and `chunk` on; only the first `rows` rows.
    template <int N> DEVICE void tile(const Sums& gradient, int start, int row, int chunk, int rows = TILE) const {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = me.row + 8 * half;
            if (r >= rows) continue;
            float* const place = flat + start + (row + r) * N + 8 * chunk + me.pair;
            place[0] = left(gradient, half);
            place[1] = right(gradient, half);
        }
    }

    // 16 biases, whose gradients are in every column; only the first `count` of them.
    DEVICE void biases(const Sums& gradient, int start, int count = TILE) const {
        if (me.pair != 0) return;
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = me.row + 8 * half;
            if (i < count) flat[start + i] = left(gradient, half);
        }
    }
};

struct ConsumerGradients {
    static constexpr int PARTS = 2;                 // attention and MLP, a square each
    static constexpr int WORDS = (PARAMETERS + 3) / 4 * 4;  // of device memory
    Sums square[PARTS][BLOCKS][2][4];               // [rows 16·i][columns 8·j]
    Sums bias[BLOCKS][2];                           // squares 4-6; every column holds the same sum
    Sums embedding[3];                              // squares 0 and 1: 16 rows × (16 columns, bias)
    Sums classifier1[PARTS], classifier2[PARTS];    // as in RegisterGradients
    Sums unembedding[larger(VOCABULARY_TILES, 1)];  // 16 rows each × 8 columns

    DEVICE void reset() {
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            #pragma unroll
            for (int part = 0; part < PARTS; part++) {
                clear(square[part][b][0]);
                clear(square[part][b][1]);
            }
            clear(bias[b]);
        }
        clear(embedding);
        clear(classifier1);
        clear(classifier2);
        clear(unembedding);
    }

    // Adds one group's examples, which have this many tiles together, to one part of a block. The factors of the next
    // tile are loaded while those of this one are multiplied.
    template <Part PART>
    DEVICE void add_part(const FactorAddresses& f, Example example, int block, int tiles) {
        with_all_tiles(tiles, [&](auto count) {
            if (block) add_tiles<PART, BLOCKS - 1, count.value>(f, example);
            else add_tiles<PART, 0, count.value>(f, example);
        });
    }

    // Adds one example to the gradient of the embedding; `patches` are its input.
    DEVICE void add_embedding(const Thread& me, int g, Example example, TokenRows<FEATURES> patches) {
        if (g >= 2) return;
        #pragma unroll
        for (int tile = 0; tile < TOKEN_TILES; tile++) {
            Factor a, b;
            example.d_embedded().load_left_transposed(me, a, tile * TILE, 2 * g);
            ldmatrix_transposed(b, patches.base + tile * TILE * PITCH<FEATURES> + patches.down(me));
            mma(embedding[0], a, b[0], b[1]);
            mma(embedding[1], a, b[2], b[3]);
            mma(embedding[2], a, ONES, ONES);
        }
    }

    // Adds the last 16 examples to the gradient of the classifier.
    DEVICE void add_classifier(const Thread& me, int g, RecentExamples recent) {
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
            add_to_classifier(me, 4 * part + g, recent, classifier1[part], classifier2[part]);
        }
    }

    // Adds one window to the gradient of the unembedding: dU = d_logitᵀ·x̂.
    DEVICE void add_logits(const Thread& me, int g, LogitRows rows) {
        static_assert(DIM == 8 * CONSUMER_WARPS || !CAUSAL, "each consumer warp has eight columns");
        #pragma unroll 1
        for (int tile = 0; tile < TOKEN_TILES; tile += 2) {
            Factor b;  // eight columns of 32 tokens: the right factors of two tiles
            ldmatrix_transposed(b, rows.normalized().address() + chunk_at<DIM>(tile * TILE + me.lane, g));
            #pragma unroll
            for (int i = 0; i < 2 * VOCABULARY_TILES; i++) {
                const int v = i % larger(VOCABULARY_TILES, 1), second = i / larger(VOCABULARY_TILES, 1);
                if (TOKEN_TILES % 2 && tile + second >= TOKEN_TILES) continue;
                Factor a;
                rows.d_logit(v).load_left_transposed(me, a, (tile + second) * TILE, 0);
                mma(unembedding[v], a, b[2 * second], b[2 * second + 1]);
            }
        }
    }

    DEVICE void write_out(const Thread& me, int g, float* flat) const {
        const Writer write = {me, flat};
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int s = 4 * part + g;
            #pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                const int start = b * BLOCK_STRIDE;
                #pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int first = TILE * i;
                    #pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const Sums& gradient = square[part][b][i][j];
                        if (s < 6) write.tile<DIM>(gradient, start + FLAT_QUERY, DIM * s + first, j);
                        else write.tile<HIDDEN>(gradient, start + FLAT_FC2, first, 4 * (s - 6) + j);
                    }
                    if (s == 4 || s == 5) write.biases(bias[b][i], start + FLAT_FC1_BIAS + DIM * (s - 4) + first);
                    else if (s == 6) write.biases(bias[b][i], start + FLAT_FC2_BIAS + first);
                }
            }
            if (CAUSAL) continue;
            write.tile<DIM>(classifier1[part], FLAT_CLASSIFIER1, TILE * (s / 4), s % 4);
            if (s < 4) write.tile<DIM>(classifier2[part], FLAT_CLASSIFIER2, 0, s, CLASSES);
            else if (s < 6) write.biases(classifier2[part], FLAT_CLASSIFIER1_BIAS + TILE * (s - 4));
            else if (s == 6) write.biases(classifier2[part], FLAT_CLASSIFIER2_BIAS, CLASSES);
        }
        #pragma unroll
        for (int v = 0; v < VOCABULARY_TILES; v++) {
            write.tile<DIM>(unembedding[v], FLAT_UNEMBEDDING, v * TILE, g, CLASSES - v * TILE);
        }
        if (IMAGES && g < 2) {
            write.tile<FEATURES>(embedding[0], FLAT_EMBEDDING, TILE * g, 0);
            write.tile<FEATURES>(embedding[1], FLAT_EMBEDDING, TILE * g, 1);
            write.biases(embedding[2], FLAT_EMBEDDING_BIAS + TILE * g);
        }
    }

  private:
    template <Part PART, int BLOCK, int TILES>
    DEVICE void add_tiles(const FactorAddresses& f, Example example) {
        constexpr int part = PART == MLP;
        Factor a[2][2], b[2][2];
        load_factors(a[0], b[0], f, example, 0);
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const int now = tile % 2;
            if (tile + 1 < TILES) load_factors(a[1 - now], b[1 - now], f, example, tile + 1);
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                #pragma unroll
                for (int j = 0; j < 4; j++) {
                    mma(square[part][BLOCK][i][j], a[now][i], b[now][j / 2][j % 2 * 2], b[now][j / 2][j % 2 * 2 + 1]);
                }
                if (PART == MLP) mma(bias[BLOCK][i], a[now][i], ONES, ONES);  // unused in square 7
            }
        }
    }
    static DEVICE void load_factors(
        Factor (&a)[2], Factor (&b)[2], const FactorAddresses& f, Example example, int tile
    ) {
        ldmatrix_transposed(a[0], example.start + f.left + tile * f.left_step);
        ldmatrix_transposed(b[0], example.start + f.right + tile * f.right_step);
        ldmatrix_transposed(b[1], example.start + f.right_next + tile * f.right_step);
        ldmatrix_transposed(a[1], example.start + f.left_next + tile * f.left_step);
    }
};
