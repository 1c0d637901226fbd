// The forward pass of one example. Each of its four warps carries 16 token rows through the network in registers; only
// keys and values pass between warps, and rows that the backward pass needs again are kept in shared memory:
//
//     x ─ LayerNorm ─ x1 ┬ ·W_Q ─ Q ┐
//                        ├ ·W_K ─ K ┼ softmax(Q·Kᵀ/√D_k)·V ─ joined ─ ·W_O ─ dropout ─ LayerNorm ─ x2 ─┐
//                        └ ·W_V ─ V ┘                                                                   │
//                                       x ─ dropout ─ (·W_B + b_B) ─ hidden ─ ReLU(·W_A + b_A) ─────────┘
//
// With residual connections (RESIDUAL) x is added to after each dropout, instead of being replaced (stream.cuh).
#pragma once
#include "dropout.cuh"
#include "norm.cuh"
#include "example.cuh"
#include "weights.cuh"

// Numbers of a block that a lane keeps for its backward pass.
struct BlockMemory {
    PerRow<float> r1, r2;            // reciprocal deviations of the two LayerNorms
    PerRow<float> log_sum[HEADS];    // log₂ Σ 2^(score·SCORE_TO_POWER)
    KeptTwice kept;                  // dropout: attention's low bits, the MLP's above them; unless WARP_SPECIALIZED
};

// Dropout after attention (0) or after the MLP (1) of a block.
DEVICE void drop_in_block(
    const Thread& me, Rows<DIM>& x, const Dropout& dropout, int block, int place, BlockMemory& memory
) {
    if constexpr (WARP_SPECIALIZED) {
        drop_others(x, dropout.drawn(1 + block) >> (place * KEPT_BITS));
    } else {
        if (place == 0) memory.kept = 0;
        memory.kept |= (KeptTwice)drop(me, x, dropout, 1 + 2 * block + place) << (place * KEPT_BITS);
    }
}
DEVICE void drop_in_block_backward(
    Rows<DIM>& d, const Dropout& dropout, int block, int place, const BlockMemory& memory
) {
    const KeptTwice kept = WARP_SPECIALIZED ? dropout.drawn(1 + block) : memory.kept;
    drop_others(d, kept >> (place * KEPT_BITS));
}

// Spills it to device memory, and reloads it.
DEVICE void spill(const SpillBuffer& buffer, int block, const BlockMemory& memory) {
    u32* at = buffer.at(SpillBuffer::memory(block));
    const Sums deviations = {memory.r1[0], memory.r1[1], memory.r2[0], memory.r2[1]};
    const Factor bits = {(u32)memory.kept, (u32)((unsigned long long)memory.kept >> 32)};
    write_words(at, deviations);
    write_words(at += SpillBuffer::FACTOR_WORDS, bits);
    #pragma unroll
    for (int head = 0; head < HEADS; head += 2) {
        const PerRow<float>&first = memory.log_sum[head], &second = memory.log_sum[head + 1 < HEADS ? head + 1 : head];
        const Sums sums = {first[0], first[1], second[0], second[1]};
        write_words(at += SpillBuffer::FACTOR_WORDS, sums);
    }
}
DEVICE void reload(const SpillBuffer& buffer, int block, BlockMemory& memory) {
    const u32* at = buffer.at(SpillBuffer::memory(block));
    Sums numbers;
    Factor bits;
    read_words(numbers, at);
    read_words(bits, at += SpillBuffer::FACTOR_WORDS);
    memory.r1[0] = numbers[0], memory.r1[1] = numbers[1];
    memory.r2[0] = numbers[2], memory.r2[1] = numbers[3];
    memory.kept = (KeptTwice)(bits[0] | (unsigned long long)bits[1] << 32);
    #pragma unroll
    for (int head = 0; head < HEADS; head += 2) {
        read_words(numbers, at += SpillBuffer::FACTOR_WORDS);
        memory.log_sum[head][0] = numbers[0], memory.log_sum[head][1] = numbers[1];
        if (head + 1 < HEADS) memory.log_sum[head + 1][0] = numbers[2], memory.log_sum[head + 1][1] = numbers[3];
    }
}

// The tokens of an example, from the view of one warp. TILES, the number of tiles of 16 that hold them, is a
// compile-time constant: every number of tiles has code of its own, without branches.
template <int TILES> struct Tokens {
    int length;           // real tokens
    bool busy;            // this warp holds one of the tiles
    int first_tile;       // of the example, among the group's; 0 unless it is in a pack
    PerRow<bool> real;    // the lane's rows are real tokens
    DEVICE Tokens(const Thread& me, int tokens, int examples = 1) {
        length = PACKS ? tokens : TOKENS;
        busy = me.tile < TILES * examples;
        first_tile = examples > 1 ? me.tile / TILES * TILES : 0;
        real[0] = (me.tile - first_tile) * TILE + me.row < length;
        real[1] = (me.tile - first_tile) * TILE + me.row + 8 < length;
    }

    // Rows of the group, from the example's first on.
    template <int N> DEVICE TokenRows<N> of(TokenRows<N> rows) const {
        return {rows.base + first_tile * TILE * PITCH<N>, rows.offset};
    }
};

// A compile-time constant.
template <int NUMBER> struct Constant {
    static constexpr int value = NUMBER;
};

// Calls `code` with the number of tiles, at most MOST, that `count` needs if each holds UNIT.
template <int UNIT, int MOST = TOKEN_TILES, class Code> DEVICE void with_tiles(int count, Code code) {
    if (MOST == 1 || count <= UNIT) code(Constant<1>());
    else if (MOST == 2 || count <= 2 * UNIT) code(Constant<2>());
    else if (MOST == 3 || count <= 3 * UNIT) code(Constant<3>());
    else code(Constant<4>());
}

// Calls `code` with the number of all tiles of a group.
template <class Code> DEVICE void with_all_tiles(int tiles, Code code) {
    if constexpr (PACKS) with_tiles<1, GROUP_WARPS>(tiles, code);
    else code(Constant<TOKEN_TILES>());
}

// Calls `code` with the tokens of an example of this length.
template <class Code> DEVICE void with_tokens(const Thread& me, int length, Code code) {
    if constexpr (PACKS) with_tiles<TILE>(length, [&](auto tiles) { code(Tokens<tiles.value>(me, length)); });
    else code(Tokens<TOKEN_TILES>(me, length));
}

// Calls `code` with the tokens of this warp's example, of this length, in a pack.
template <class Code> DEVICE void with_tokens(const Thread& me, int length, const Pack& pack, Code code) {
    if constexpr (!PACKS) with_tokens(me, length, code);
    else with_tiles<1>(pack.tiles, [&](auto tiles) { code(Tokens<tiles.value>(me, length, pack.examples)); });
}

// Keeps rows for a block's backward pass: in shared memory, or spilled to device memory while another block uses that.
template <int N>
DEVICE void keep_rows(
    const Thread& me, int block, TokenRows<N> matrix, const PackedRows<N>& rows, const SpillBuffer& buffer, int place
) {
    if (!TAKE_TURNS && block == BLOCKS - 1) store_rows(me, matrix, rows);
    else buffer.spill(SpillBuffer::rows(block, place), rows);
}

// Queries, keys and values of x; the latter two go to shared memory.
DEVICE void project(
    const Thread& me, const PackedRows<DIM>& x, const BlockWeights& weights, PackedRows<INNER>& query,
    TokenRows<INNER> keys, TokenRows<INNER> values
) {
    Rows<INNER> c;
    PackedRows<INNER> rows;
    multiply_transposed(me, c, x, weights.query());
    pack_rows(query, c);
    multiply_transposed(me, c, x, weights.key());
    pack_rows(rows, c);
    store_rows(me, keys, rows);
    multiply_transposed(me, c, x, weights.value());
    pack_rows(rows, c);
    store_rows(me, values, rows);
}

// A warp's queries come to the keys tile by tile, from the first on. In a causal transformer they come to their own
// first, so that only these need a mask, and then to the earlier ones.
DEVICE int key_tile(int own_tile, int turn) { return CAUSAL ? own_tile - turn : turn; }
DEVICE bool is_hidden(int own_tile, int turn) { return CAUSAL && turn > own_tile; }
constexpr int KEY_COLUMNS = CAUSAL ? ROWS : TOKENS;  // no score beyond them is computed

// Sets the scores of tokens that do not exist to −∞; only the last tile has any. In a causal transformer no token sees
// them, since they come later; those later than the query are set to −∞.
template <int TILES>
DEVICE void hide_padding(const Thread& me, const Tokens<TILES>& tokens, Sums& score, int column) {
    if constexpr (CAUSAL) {
        if (column >= TILE) return;
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            if (column + me.pair + i % 2 > me.row + i / 2 * 8) score[i] = -INFINITE;
        }
        return;
    }
    if (column < (TILES - 1) * TILE || (!PACKS && column + 8 <= TOKENS)) return;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (column + me.pair + i % 2 >= tokens.length) score[i] = -INFINITE;
    }
}

// joined = softmax(q·kᵀ/√D_k)·v, for the warp's 16 rows and one head.
template <int TILES>
DEVICE void attend(
    const Thread& me, const Tokens<TILES>& tokens, const PackedRows<INNER>& query, const BlockPlaces& places, int head,
    PackedRows<INNER>& joined, PerRow<float>& log_sum
) {
    const int first = head * HEAD_TILES;  // of the head's tiles of columns
    Sums score[2 * TILES];
    PerRow<float> largest = {-INFINITE, -INFINITE};
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (is_hidden(me.tile, tile)) {  // never read, but what is not set keeps its registers through the whole loop
            #pragma unroll
            for (int i = 0; i < 8; i++) score[2 * tile + i / 4][i % 4] = -INFINITE;
            continue;
        }
        #pragma unroll
        for (int k = 0; k < HEAD_TILES; k++) {
            Factor keys;
            tokens.of(places.keys).load_right_transposed(me, keys, key_tile(me.tile, tile) * TILE, 2 * (first + k));
            #pragma unroll
            for (int side = 0; side < 2; side++) {
                if (tile * TILE + 8 * side >= KEY_COLUMNS) continue;
                accumulate(k == 0, score[2 * tile + side], query[first + k], keys[2 * side], keys[2 * side + 1]);
            }
        }
        #pragma unroll
        for (int side = 0; side < 2; side++) {
            Sums& s = score[2 * tile + side];
            if (tile * TILE + 8 * side >= KEY_COLUMNS) continue;
            hide_padding(me, tokens, s, tile * TILE + 8 * side);
            largest[0] = fmaxf(largest[0], fmaxf(s[0], s[1]));
            largest[1] = fmaxf(largest[1], fmaxf(s[2], s[3]));
        }
    }
    const PerRow<float> shift = {row_max(largest[0]) * SCORE_TO_POWER, row_max(largest[1]) * SCORE_TO_POWER};
    Rows<HEAD_DIM> out;
    Sums sum;
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (is_hidden(me.tile, tile)) break;
        Factor p, values;
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const Sums& s = score[2 * tile + i / 2];
            const int half = i % 2;
            p[i] = 0;
            if (tile * TILE + 8 * (i / 2) >= KEY_COLUMNS) continue;
            p[i] = pack(power_of_two(left(s, half) * SCORE_TO_POWER - shift[half]),
                        power_of_two(right(s, half) * SCORE_TO_POWER - shift[half]));
        }
        #pragma unroll
        for (int k = 0; k < HEAD_TILES; k++) {
            tokens.of(places.values).load_right(me, values, key_tile(me.tile, tile) * TILE, 2 * (first + k));
            accumulate(tile == 0, out[2 * k], out[2 * k + 1], p, values);
        }
        accumulate(tile == 0, sum, p, ONES, ONES);
    }
    const PerRow<float> scale = {reciprocal(sum[0]), reciprocal(sum[2])};
    log_sum[0] = shift[0] + log_two(sum[0]);
    log_sum[1] = shift[1] + log_two(sum[2]);
    #pragma unroll
    for (int i = 0; i < 4 * HEAD_TILES; i++) {
        int half = i % 2;
        joined[first + i / 4][i % 4] = pack(left(out[i / 2], half) * scale[half], right(out[i / 2], half) * scale[half]);
    }
}

// One block, in place.
template <bool TRAINING, int TILES>
DEVICE void forward_block(
    const Thread& me, const Tokens<TILES>& tokens, Rows<DIM>& x, int block, const BlockWeights& weights,
    const BlockPlaces& places, const Dropout& dropout, BlockMemory& memory
) {
    PackedRows<INNER> query, joined;
    PackedRows<DIM> rows;
    Rows<DIM> stream;
    if (!tokens.busy) return group_barrier(me.group);
    if constexpr (RESIDUAL && TRAINING) places.stream().spill(me, x);
    else if constexpr (RESIDUAL) copy_rows(stream, x);
    normalize(x, memory.r1, dropout.epsilon, tokens.real);
    pack_rows(rows, x);
    if (TRAINING) keep_rows(me, block, places.kept.x1(), rows, places.spill_buffer, SpillBuffer::X1);
    project(me, rows, weights, query, places.keys, places.values);
    if (TRAINING && !is_earlier(block)) store_rows(me, places.queries, query);
    group_barrier(me.group);
    #pragma unroll
    for (int head = 0; head < HEADS; head++) {
        attend(me, tokens, query, places, head, joined, memory.log_sum[head]);
    }
    if (TRAINING) keep_rows(me, block, places.kept.joined(), joined, places.spill_buffer, SpillBuffer::JOINED);
    multiply_transposed(me, x, joined, weights.output());
    if (TRAINING) drop_in_block(me, x, dropout, block, 0, memory);
    if constexpr (RESIDUAL) {
        if (TRAINING) places.stream().reload(me, stream);
        add_rows(x, stream);
        copy_rows(stream, x);
    }
    normalize(x, memory.r2, dropout.epsilon, tokens.real);
    pack_rows(rows, x);
    if (TRAINING) keep_rows(me, block, places.kept.x2(), rows, places.spill_buffer, SpillBuffer::X2);
    Rows<HIDDEN> wide;
    PackedRows<HIDDEN> hidden;
    linear(me, wide, rows, weights.fc1(), weights.fc1_bias());
    pack_rows_relu(hidden, wide);
    if (TRAINING) {
        if (WARP_SPECIALIZED && !is_earlier(block)) store_rows(me, places.kept.hidden(), hidden);
        else places.spill_buffer.spill(SpillBuffer::hidden(block), hidden);
    }
    linear(me, x, hidden, weights.fc2(), weights.fc2_bias());
    if (TRAINING) drop_in_block(me, x, dropout, block, 1, memory);
    if constexpr (RESIDUAL) add_rows(x, stream);
}
