// Gradients of a language model's matrices outside its blocks: unembedding, token vectors and positions.
//
//     dU = d_logitᵀ·x̂      dE = onehot(token)ᵀ·dX      dP = Σ over windows of dX
//
// dX is the gradient of the embedded tokens. All three are products of the matrix units, so sums over equal tokens have
// a fixed order: the one-hot rows are made in registers, from the tokens, and dP's left factor is the identity.
//
// 16 rows of a matrix are a piece, which belongs to one warp. Its sums are spilled to device memory, in the order of
// the flat vector, where the lane that wrote them reads them back.
#pragma once
#include "language.cuh"
#include "update.cuh"
#include "warps.cuh"

struct LanguageGradients {
    static constexpr int WORDS = CAUSAL && !WARP_SPECIALIZED ? (PARAMETERS + 3) / 4 * 4 : 0;  // consumers have theirs
    float* flat;

    // 16 rows of a matrix, of which the first `rows` exist.
    struct Piece {
        int first, rows;   // number in the flat vector
    };
    DEVICE static Piece piece(int flat, int tile, int rows) { return {flat + tile * TILE * DIM, rows - tile * TILE}; }
    DEVICE static Piece unembedding(int tile) { return piece(FLAT_UNEMBEDDING, tile, CLASSES); }
    DEVICE static Piece embedding(int tile) {  // of the tokens, then of the positions
        if (tile < VOCABULARY_TILES) return piece(FLAT_EMBEDDING, tile, CLASSES);
        return piece(FLAT_POSITIONS, tile - VOCABULARY_TILES, TOKENS);
    }
    static constexpr int EMBEDDING_PIECES = VOCABULARY_TILES + TOKEN_TILES;

    // Calls `each` with the lane's pairs of numbers, and where they are in the flat vector.
    template <class Each> DEVICE static void with_pairs(const Thread& me, const Piece& piece, Each each) {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = me.row + 8 * half;
            if (row >= piece.rows) continue;
            #pragma unroll
            for (int j = 0; j < DIM / 8; j++) each(j, half, piece.first + row * DIM + 8 * j + me.pair);
        }
    }
    // Sums over the step's earlier windows; the first ones start from zero.
    DEVICE void start(const Thread& me, const Piece& piece, Rows<DIM>& sums, bool first) const {
        clear(sums);
        if (first) return;
        with_pairs(me, piece, [&](int j, int half, int i) {
            read_floats(left(sums[j], half), right(sums[j], half), flat + i);
        });
    }
    DEVICE void write(const Thread& me, const Piece& piece, const Rows<DIM>& sums) const {
        with_pairs(me, piece, [&](int j, int half, int i) {
            write_floats(flat + i, left(sums[j], half), right(sums[j], half));
        });
    }
    // sums += a·rows, for 16 token rows
    DEVICE static void add(const Thread& me, Rows<DIM>& sums, const Factor& a, TokenRows<DIM> rows, int tile) {
        #pragma unroll
        for (int j = 0; j < DIM / 8; j += 2) {
            Factor b;
            rows.load_right(me, b, tile * TILE, j);
            accumulate(false, sums[j], sums[j + 1], a, b);
        }
    }

    // Adds the windows of a round to this warp's share of `pieces`, one of `warps`; `add` adds a group's window.
    template <class Add>
    DEVICE void add_windows(
        const Thread& me, int warp, int warps, int pieces, Piece (*piece)(int), int groups, bool first, Add add
    ) const {
        #pragma unroll 1
        for (int v = warp; v < pieces; v += warps) {
            const Piece own = piece(v);
            Rows<DIM> sums;
            start(me, own, sums, first);
            #pragma unroll 1
            for (int group = 0; group < groups; group++) add(v, group, sums);
            write(me, own, sums);
        }
    }

    // Adds them to the unembedding's gradient.
    template <class Memory>
    DEVICE void add_logits(const Thread& me, int warp, int warps, const Memory& memory, int groups, bool first) const {
        const auto add_window = [&](int v, int group, Rows<DIM>& sums) {
            const LogitRows rows = memory.example(group).logits();
            #pragma unroll
            for (int tile = 0; tile < TOKEN_TILES; tile++) {
                Factor a;
                rows.d_logit(v).load_left_transposed(me, a, tile * TILE, 0);
                add(me, sums, a, rows.normalized(), tile);
            }
        };
        add_windows(me, warp, warps, VOCABULARY_TILES, unembedding, groups, first, add_window);
    }

    // Which of two tokens are `number`, as halves.
    DEVICE static u32 onehot(const TokenPair& tokens, int number) {
        return (tokens.token(0) == number ? ONES & 0xFFFF : 0) | (tokens.token(1) == number ? ONES & 0xFFFF0000 : 0);
    }

    // Adds them to the gradients of the tokens' and positions' vectors; `stages` has a bit for each group, the stage
    // that holds its tokens.
    template <class Memory>
    DEVICE void add_embedding(
        const Thread& me, int warp, int warps, const Memory& memory, int groups, int stages, bool first
    ) const {
        const auto add_window = [&](int v, int group, Rows<DIM>& sums) {
            const TokenRows<DIM> rows = memory.example(group).d_embedded();
            if (v >= VOCABULARY_TILES) {
                const u32 diagonal = (me.row == me.pair ? ONES & 0xFFFF : 0) |
                                     (me.row == me.pair + 1 ? ONES & 0xFFFF0000 : 0);
                const Factor identity = {diagonal, 0, 0, diagonal};
                return add(me, sums, identity, rows, v - VOCABULARY_TILES);
            }
            const Window window = memory.inputs(group)[stages >> group & 1];
            const int number = v * TILE + me.row;
            #pragma unroll
            for (int tile = 0; tile < TOKEN_TILES; tile++) {
                const TokenPair early(window, tile * TILE + me.pair), late(window, tile * TILE + 8 + me.pair);
                const Factor a = {
                    onehot(early, number), onehot(early, number + 8), onehot(late, number), onehot(late, number + 8)
                };
                add(me, sums, a, rows, tile);
            }
        };
        add_windows(me, warp, warps, EMBEDDING_PIECES, embedding, groups, first, add_window);
    }

    // Updates the weights of this warp's pieces, in device memory, and the unembedding's halves in shared memory.
    DEVICE void apply(const Thread& me, const Optimizer& optimizer, const Weights& weights) const {
        #pragma unroll 1
        for (int v = me.warp; v < VOCABULARY_TILES + EMBEDDING_PIECES; v += WARPS) {
            const bool last = v < VOCABULARY_TILES;
            with_pairs(me, last ? unembedding(v) : embedding(v - VOCABULARY_TILES), [&](int j, int half, int i) {
                float a, b;
                read_floats(a, b, flat + i);
                a = optimizer.step(i, a);
                b = optimizer.step(i + 1, b);
                if (!last) return;
                const u32 place = chunk_at<DIM>(me.row + 8 * half, j) + me.pair * HALF;
                store_word(weights.unembedding(v).address() + place, pack(a, b));
            });
        }
    }
};
