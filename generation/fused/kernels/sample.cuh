// A sample: what its word of facts says, and its rows in shared memory while it trains.
#pragma once
#include "matrices.cuh"

// What a kernel is told about a sample besides its tokens, in one word (samples.py).
struct Facts {
    int place;   // in its batch, for its dropout
    int label;   // its class
    int length;  // its real tokens
    DEVICE explicit Facts(u32 word) : place(word & 0xFFFF), label(word >> 16 & 0xFF), length(word >> 24) {}
};

// Where the rows of a block's forward pass go; all but keys and values only in training, and only if they are kept.
struct BlockPlaces {
    TokenRows<DIM> keys, values;
    TokenRows<DIM> queries, x1, joined, x2;
    TokenRows<HIDDEN> hidden;
};

// All rows of a sample, in places of 64 × 32 halves. With room for everything:
//
//     0   1       2   3  4     ...   5b   5b+1 5b+2 5b+3  5b+4     ...      then
//     x1  joined  x2  hidden         those of the next blocks               Q K V  dy  d_hidden  ds  da  dJ  stats  tokens
//
// Else those of the last block's forward pass, then those of the half block whose backward pass runs:
//
//                                0   1       2   3   4     5  6  7  8                   9   10
//     forward, last block        x1  joined  x2  hidden    Q  K  V
//     backward of the MLP        x1  joined  x2  hidden    Q  K  V  dy                  d_hidden
//     backward of attention      x1  joined  da  dJ  stats Q  K  V  tokens (block 0)    ds of one head
//
// At the end of the backward pass dQ, dK and dV stand where Q, K and V stood.
struct Sample {
    static constexpr u32 PLACE = TokenRows<DIM>::BYTES, BLOCK_BYTES = ROOMY ? 5 * PLACE : 0;
    static constexpr u32 X1 = 0, JOINED = PLACE, X2 = 2 * PLACE, HIDDEN_ROWS = 3 * PLACE;
    static constexpr u32 QUERIES = ROOMY ? BLOCKS * BLOCK_BYTES : 5 * PLACE, KEYS = QUERIES + PLACE;
    static constexpr u32 VALUES = KEYS + PLACE, DY = VALUES + PLACE, D_HIDDEN = DY + PLACE;
    static constexpr u32 DS = ROOMY ? D_HIDDEN + 2 * PLACE : D_HIDDEN;
    static constexpr u32 DA = ROOMY ? DS + 2 * PLACE : X2, D_JOINED = DA + PLACE, STATISTICS = D_JOINED + PLACE;
    static constexpr u32 TOKENS_IN = ROOMY ? STATISTICS + PLACE : DY;
    static constexpr u32 BYTES = ROOMY ? TOKENS_IN + PLACE : DS + 2 * PLACE;
    static_assert(TokenRows<HIDDEN>::BYTES == 2 * PLACE && TokenRows<ROWS>::BYTES == 2 * PLACE, "as they are placed");
    u32 start;

    // The first block's keys and values lie where the second's do not, and so on, so that they find their place free.
    DEVICE BlockPlaces places(int b) const {
        const bool apart = (LAST_BLOCK - b) % 2;
        const TokenRows<DIM> key_rows = {start + (apart ? DS : KEYS), 0};
        const TokenRows<DIM> value_rows = {start + (apart ? DS + PLACE : VALUES), 0};
        return {key_rows, value_rows, queries(), x1(b), joined(b), x2(b), hidden(b)};
    }
    DEVICE u32 block(int b) const { return start + b * BLOCK_BYTES; }
    DEVICE TokenRows<DIM> x1(int b) const { return {block(b), X1}; }                   // the input, normalized
    DEVICE TokenRows<DIM> joined(int b) const { return {block(b), JOINED}; }           // the heads' results, side by side
    DEVICE TokenRows<DIM> x2(int b) const { return {block(b), X2}; }                   // the MLP's input, normalized
    DEVICE TokenRows<HIDDEN> hidden(int b) const { return {block(b), HIDDEN_ROWS}; }   // the MLP's hidden layer
    // queries, keys and values, and at the end of the backward pass their gradients
    DEVICE TokenRows<DIM> queries() const { return {start, QUERIES}; }
    DEVICE TokenRows<DIM> keys() const { return {start, KEYS}; }
    DEVICE TokenRows<DIM> values() const { return {start, VALUES}; }
    // gradients: of the MLP's result, of attention's result, and of what was kept
    DEVICE TokenRows<DIM> dy() const { return {start, DY}; }
    DEVICE TokenRows<DIM> da() const { return {start, DA}; }
    DEVICE TokenRows<DIM> d_joined() const { return {start, D_JOINED}; }
    DEVICE TokenRows<HIDDEN> d_hidden() const { return {start, D_HIDDEN}; }
    // the gradients of one head's scores, transposed: a row for each key
    DEVICE TokenRows<ROWS> ds() const { return {start, DS}; }
    // tokens on their way in: the next sample's, and this one's once more
    DEVICE TokenRows<FEATURES> next_tokens() const { return {start, TOKENS_IN}; }
    DEVICE TokenRows<FEATURES> same_tokens() const { return {start, TOKENS_IN + TokenRows<FEATURES>::BYTES}; }
    static_assert(!IMAGES || 2 * TokenRows<FEATURES>::BYTES <= PLACE, "both find room");
};

// Two numbers of every query and head, −log_sum and −δ, as the sums of a product with queries as columns start: of two
// neighboring queries a, b, four floats a b a b.
struct Statistics {
    static constexpr u32 KIND = ROWS * 2 * FLOAT, HEAD = 2 * KIND, BYTES = HEADS * HEAD;
    static_assert(BYTES <= Sample::PLACE, "they find room");
    enum Kind { LOG_SUM, DELTA };
    u32 start;

    DEVICE void store(Kind kind, int head, int query, float x) const {
        const u32 address = start + head * HEAD + kind * KIND + query / 2 * 4 * FLOAT + query % 2 * FLOAT;
        store_float(address, x);
        store_float(address + 2 * FLOAT, x);
    }
    // Of the queries 8·chunk + pair, 8·chunk + pair + 1.
    DEVICE void load(const Thread& me, Sums& sums, Kind kind, int head, int chunk) const {
        load_four_floats(sums, start + me.pair * 2 * FLOAT + (head * HEAD + kind * KIND + chunk * 16 * FLOAT));
    }
};
