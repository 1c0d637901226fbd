// The forward pass of one sample. Its warps carry their token rows through the network in registers; only keys and
// values pass between warps, and what the backward pass needs again is kept: in shared memory as far as there is room,
// else in the lane's own place in device memory (memory.cuh).
//
//     x ─ LayerNorm ─ x1 ┬ ·W_Q ─ Q ┐
//                        ├ ·W_K ─ K ┼ softmax(Q·Kᵀ/√D_k)·V ─ joined ─ ·W_O ─ dropout ─ LayerNorm ─ x2 ─┐
//                        └ ·W_V ─ V ┘                                                                   │
//                                       x ─ dropout ─ (·W_B + b_B) ─ hidden ─ ReLU(·W_A + b_A) ─────────┘
#pragma once
#include "dropout.cuh"
#include "memory.cuh"
#include "norm.cuh"
#include "weights.cuh"

// The tokens of a sample, as one warp sees them. TILES, the number of tiles of 16 that hold them, and MINE, how many of
// these the warp holds at most, are known to the compiler: every case has code of its own, without branches.
template <int TILES_OF_SAMPLE, int TILES_OF_WARP> struct Tokens {
    static constexpr int TILES = TILES_OF_SAMPLE, MINE = TILES_OF_WARP;
    int length;                    // real tokens
    bool busy;                     // this warp holds at least one of the tiles
    PerTile<PerRow<bool>> real;    // the lane's rows are real tokens
    DEVICE Tokens(const Thread& me, int tokens) {
        length = FULL_LENGTH ? TOKENS : tokens;
        busy = GROUP_WARPS <= TILES || me.member < TILES;
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const bool always = FULL_LENGTH && (i + 1) * GROUP_WARPS * TILE <= TOKENS;
                real[i][half] = always || me.tile(i) * TILE + me.row + 8 * half < length;
            }
        }
    }
};

// The two numbers of a reference to such tokens, as `decltype` has it.
template <class SomeTokens> struct Count;
template <int TILES_OF_SAMPLE, int TILES_OF_WARP> struct Count<const Tokens<TILES_OF_SAMPLE, TILES_OF_WARP>&> {
    static constexpr int TILES = TILES_OF_SAMPLE, MINE = TILES_OF_WARP;
};

// Calls `code` with the tokens of a sample of this length.
template <class Code> DEVICE void with_tokens(const Thread& me, int length, Code code) {
    constexpr int one_less = WARP_TILES == 1 ? 1 : WARP_TILES - 1;
    if constexpr (FULL_LENGTH) {
        code(Tokens<SAMPLE_TILES, WARP_TILES>(me, length));
    } else {
        if (length <= TILE) code(Tokens<1, 1>(me, length));
        else if (length <= 2 * TILE) code(Tokens<2, 1>(me, length));
        else if (length > 3 * TILE) code(Tokens<4, WARP_TILES>(me, length));
        else if (me.tile(one_less) < 3) code(Tokens<3, WARP_TILES>(me, length));
        else code(Tokens<3, one_less>(me, length));
    }
}

// Queries, keys and values of x; the latter two go to shared memory.
template <int MINE>
DEVICE void project(
    const Thread& me, const PerTile<PackedRows<DIM>>& x, const BlockWeights& weights, PerTile<PackedRows<DIM>>& query,
    TokenRows<DIM> keys, TokenRows<DIM> values
) {
    PerTile<Rows<DIM>> c;
    PerTile<PackedRows<DIM>> rows;
    multiply_transposed<MINE>(me, c, x, weights.query());
    pack_all<MINE>(query, c);
    multiply_transposed<MINE>(me, c, x, weights.key());
    pack_all<MINE>(rows, c);
    store_rows<MINE>(me, keys, rows);
    multiply_transposed<MINE>(me, c, x, weights.value());
    pack_all<MINE>(rows, c);
    store_rows<MINE>(me, values, rows);
}

// Sets the scores of tokens that do not exist to −∞; only the last tile has any.
template <class SomeTokens>
DEVICE void hide_padding(const Thread& me, const SomeTokens& tokens, Sums& score, int column) {
    if (column < (SomeTokens::TILES - 1) * TILE || (FULL_LENGTH && column + 8 <= TOKENS)) return;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (column + me.pair + i % 2 >= tokens.length) score[i] = -INFINITE;
    }
}

// joined = softmax(q·kᵀ/√D_k)·v, for the rows of one tile and one head.
template <class SomeTokens>
DEVICE void attend(
    const Thread& me, const SomeTokens& tokens, const Factor& query, const BlockPlaces& places, int head,
    Factor& joined, PerRow<float>& log_sum
) {
    constexpr int TILES = SomeTokens::TILES;
    Sums score[2 * TILES];
    PerRow<float> largest = {-INFINITE, -INFINITE};
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        Factor keys;
        places.keys.load_right_transposed(me, keys, tile * TILE, 2 * head);
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            Sums& s = score[2 * tile + side];
            if (tile * TILE + 8 * side >= TOKENS) continue;
            accumulate(true, s, query, keys[2 * side], keys[2 * side + 1]);
            hide_padding(me, tokens, s, tile * TILE + 8 * side);
            largest[0] = fmaxf(largest[0], fmaxf(s[0], s[1]));
            largest[1] = fmaxf(largest[1], fmaxf(s[2], s[3]));
        }
    }
    const PerRow<float> shift = {row_max(largest[0]), row_max(largest[1])};
    Rows<HEAD_DIM> out;
    Sums sum;
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        Factor p, values;
        places.values.load_right(me, values, tile * TILE, 2 * head);
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const Sums& s = score[2 * tile + e / 2];
            const int half = e % 2;
            p[e] = 0;
            if (tile * TILE + 8 * (e / 2) >= TOKENS) continue;
            p[e] = pack(power_of_two(left(s, half) - shift[half]), power_of_two(right(s, half) - shift[half]));
        }
        accumulate(tile == 0, out[0], out[1], p, values);
        accumulate(tile == 0, sum, p, ONES, ONES);
    }
    const PerRow<float> scale = {reciprocal(sum[0]), reciprocal(sum[2])};
    log_sum[0] = shift[0] + log_two(sum[0]);
    log_sum[1] = shift[1] + log_two(sum[2]);
    #pragma unroll
    for (int e = 0; e < 4; e++) {
        const int half = e % 2;
        joined[e] = pack(left(out[e / 2], half) * scale[half], right(out[e / 2], half) * scale[half]);
    }
}

// 16 columns of the MLP's hidden layer: ReLU(x2·W_Aᵀ + b_A)
template <int MINE>
DEVICE void hidden_columns(
    const Thread& me, const PerTile<PackedRows<DIM>>& x2, const BlockWeights& weights, int columns,
    PerTile<PackedRows<TILE>>& hidden
) {
    PerTile<Rows<TILE>> wide;
    start_with<MINE>(me, wide, weights.fc1_bias().tile(columns));
    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        Factor b;
        weights.fc1().load_right_transposed(me, b, columns, 2 * k);
        #pragma unroll
        for (int i = 0; i < MINE; i++) accumulate(false, wide[i][0], wide[i][1], x2[i][k], b);
    }
    #pragma unroll
    for (int i = 0; i < MINE; i++) pack_rows_relu(hidden[i], wide[i]);
}

// The MLP, 16 hidden columns at a time; `hidden` is where they are kept, if they are.
template <int MINE>
DEVICE void forward_mlp(
    const Thread& me, const PerTile<PackedRows<DIM>>& x2, const BlockWeights& weights, bool keep,
    TokenRows<HIDDEN> kept, PerTile<Rows<DIM>>& x
) {
    start_with<MINE>(me, x, weights.fc2_bias());
    #pragma unroll
    for (int columns = 0; columns < HIDDEN; columns += TILE) {
        PerTile<PackedRows<TILE>> hidden;
        hidden_columns<MINE>(me, x2, weights, columns, hidden);
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            if (keep) store_tile(me, kept, hidden[i], i, columns / 8);
        }
        #pragma unroll
        for (int j = 0; j < DIM / 8; j += 2) {
            Factor b;
            weights.fc2().load_right_transposed(me, b, 8 * j, columns / 8);
            #pragma unroll
            for (int i = 0; i < MINE; i++) accumulate(false, x[i][j], x[i][j + 1], hidden[i][0], b);
        }
    }
}

// One block, in place.
template <bool TRAINING, class SomeTokens>
DEVICE void forward_block(
    const Thread& me, const SomeTokens& tokens, PerTile<Rows<DIM>>& x, int block, const BlockWeights& weights,
    const BlockPlaces& places, const Parking& parking, const Dropout& dropout, BlockMemory& memory
) {
    constexpr int MINE = SomeTokens::MINE;
    const bool kept = is_kept(block);
    const auto keep = [&](TokenRows<DIM> place, int slot, const PerTile<PackedRows<DIM>>& kept_rows) {
        if (!TRAINING) return;
        if (kept) store_rows<MINE>(me, place, kept_rows);
        else parking.store_rows<MINE>(me, block, slot, kept_rows);
    };
    PerTile<PackedRows<DIM>> query, rows;
    if (tokens.busy) {
        normalize<MINE>(x, memory.r1, dropout.epsilon, tokens.real);
        pack_all<MINE>(rows, x);
        project<MINE>(me, rows, weights, query, places.keys, places.values);
        keep(places.x1, Parking::X1, rows);
        if (TRAINING && block == LAST_BLOCK) store_rows<MINE>(me, places.queries, query);
    }
    group_barrier(me.group);
    if (!tokens.busy) return;
    #pragma unroll
    for (int head = 0; head < HEADS; head++) {
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            attend(me, tokens, query[i][head], places, head, rows[i][head], memory.log_sum[head][i]);
        }
    }
    multiply_transposed<MINE>(me, x, rows, weights.output());
    keep(places.joined, Parking::JOINED, rows);
    #pragma unroll
    for (int i = 0; i < MINE; i++) memory.dropped[i] = 0;
    if (TRAINING) drop<MINE>(me, x, dropout, 1 + 2 * block, memory.dropped, 0);
    normalize<MINE>(x, memory.r2, dropout.epsilon, tokens.real);
    pack_all<MINE>(rows, x);
    forward_mlp<MINE>(me, rows, weights, TRAINING && kept, places.hidden, x);
    keep(places.x2, Parking::X2, rows);
    if (TRAINING) drop<MINE>(me, x, dropout, 2 + 2 * block, memory.dropped, 16);
    if (TRAINING && !kept) parking.store<MINE>(me, block, memory);
}
