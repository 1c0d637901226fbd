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
//     0   1       2   3  4     5 to 9                    then
//     x1  joined  x2  hidden   the same of block 1       Q  K  V  dy  d_hidden  ds  p  da  dJ
//
// Else those of the last block's forward pass, then those of the half block whose backward pass runs:
//
//                                0   1       2   3   4     5  6  7  8   9   10
//     forward, last block        x1  joined  x2  hidden    Q  K  V
//     backward of the MLP        x1  joined  x2  hidden    Q  K  V  dy  d_hidden
//     backward of attention      x1  joined  da  p         Q  K  V  dJ  ds
//
// p and ds are those of one head. At the end of the backward pass dQ, dK and dV stand where Q, K and V stood. Tokens come
// in while block 0 goes back through attention: where the last block's hidden layer was, or behind everything.
struct Sample {
    static constexpr u32 PLACE = TokenRows<DIM>::BYTES, BLOCK_BYTES = ROOMY ? 5 * PLACE : 0;
    static constexpr u32 X1 = 0, JOINED = PLACE, X2 = 2 * PLACE, HIDDEN_ROWS = 3 * PLACE;
    static constexpr u32 QUERIES = ROOMY ? BLOCKS * BLOCK_BYTES : 5 * PLACE, KEYS = QUERIES + PLACE;
    static constexpr u32 VALUES = KEYS + PLACE, DY = VALUES + PLACE, D_HIDDEN = DY + PLACE;
    static constexpr u32 DS = ROOMY ? D_HIDDEN + 2 * PLACE : D_HIDDEN, P = ROOMY ? DS + 2 * PLACE : HIDDEN_ROWS;
    static constexpr u32 DA = ROOMY ? P + 2 * PLACE : X2, D_JOINED = ROOMY ? DA + PLACE : DY;
    static constexpr u32 END = ROOMY ? D_JOINED + PLACE : DS + 2 * PLACE;
    static constexpr bool TOKENS_APART = !ROOMY || BLOCKS == 1;
    static constexpr u32 TOKENS_IN = TOKENS_APART ? END : LAST_BLOCK * BLOCK_BYTES + HIDDEN_ROWS;
    static constexpr u32 BYTES = TOKENS_APART ? END + PLACE : END;
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
    // one head's probabilities, and the gradients of its scores
    DEVICE TokenRows<ROWS> p() const { return {start, P}; }
    DEVICE TokenRows<ROWS> ds() const { return {start, DS}; }
    // tokens on their way in: the next sample's, and this one's once more
    DEVICE TokenRows<FEATURES> next_tokens() const { return {start, TOKENS_IN}; }
    DEVICE TokenRows<FEATURES> same_tokens() const { return {start, TOKENS_IN + TokenRows<FEATURES>::BYTES}; }
    static_assert(!IMAGES || 2 * TokenRows<FEATURES>::BYTES <= PLACE, "both find room");
};
