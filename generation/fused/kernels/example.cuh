// An example: its word of facts, and its rows in shared memory while it trains.
#pragma once
#include "stream.cuh"

// Facts about an example besides its tokens, in one word (engine.py).
struct Facts {
    int rank;    // in its batch, for its dropout
    int label;   // its class
    int length;  // its real tokens
    DEVICE explicit Facts(u32 word) : rank(word & 0xFFFF), label(word >> 16 & 0xFF), length(word >> 24) {}
};

// Examples of a step that a group trains on together, side by side in its rows (PACKS): neighbors in the batch with the
// same number of tiles, in one word (engine.py).
struct Pack {
    int first;     // example of the step
    int examples;
    int tiles;     // of each of them
    DEVICE Pack(int first, int examples, int tiles) : first(first), examples(examples), tiles(tiles) {}
    DEVICE explicit Pack(u32 word) : Pack(word & 0xFFFF, word >> 16 & 0xFF, word >> 24) {}
    DEVICE u32 word() const { return first | examples << 16 | tiles << 24; }

    DEVICE int all_tiles() const { return examples * tiles; }
    DEVICE int example_of(int tile) const { return PACKS ? tile / tiles : 0; }
};

template <class Number> constexpr Number larger(Number a, Number b) { return a > b ? a : b; }

// Rows that a block's backward pass reads again.
struct BlockRows {
    static constexpr u32 X1 = 0, JOINED = X1 + TokenRows<DIM>::BYTES, X2 = JOINED + TokenRows<INNER>::BYTES;
    static constexpr u32 HIDDEN_ROWS = X2 + TokenRows<DIM>::BYTES;
    static constexpr u32 BYTES = HIDDEN_ROWS + TokenRows<TAKE_TURNS ? HIDDEN : larger(HIDDEN, ROWS)>::BYTES;
    u32 start;

    DEVICE TokenRows<DIM> x1() const { return {start, X1}; }                   // the input, normalized
    DEVICE TokenRows<INNER> joined() const { return {start, JOINED}; }         // the heads' outputs, side by side
    DEVICE TokenRows<DIM> x2() const { return {start, X2}; }                   // the MLP's input, normalized
    DEVICE TokenRows<HIDDEN> hidden() const { return {start, HIDDEN_ROWS}; }   // the MLP's hidden layer
};

// Rows of a language model's end that its weight gradients need: the last block's output, normalized, and the gradients
// of its logits, 16 tokens of the vocabulary at a time.
struct LogitRows {
    static constexpr u32 D_LOGIT = TokenRows<DIM>::BYTES;
    static constexpr u32 BYTES = D_LOGIT + VOCABULARY_TILES * TokenRows<TILE>::BYTES;
    u32 start;

    DEVICE TokenRows<DIM> normalized() const { return {start, 0}; }
    DEVICE TokenRows<TILE> d_logit(int tile) const { return {start + tile * TokenRows<TILE>::BYTES, D_LOGIT}; }
};

// Addresses for the rows of a block's forward pass; queries and `kept` only in training.
struct BlockPlaces {
    TokenRows<INNER> queries, keys, values;
    BlockRows kept;
    SpillBuffer spill_buffer;

    DEVICE Stream stream() const {  // in the rows of `hidden`, which are written after the stream was read
        return {kept.start + BlockRows::HIDDEN_ROWS, PITCH<HIDDEN>, HALF_STREAM, spill_buffer};
    }
};

// All rows of an example. Its blocks take turns in the same memory: it holds the queries, keys, values and gradients of
// the block that goes backward. p shares its memory with d_hidden, and ds with hidden. With less room a block's parts
// take turns as well: x1 and joined have memory of their own, followed by
//
//     x2, hidden, dy, d_hidden                               while the MLP goes backward
//     queries, keys, values, da, d_joined, p, ds             while attention does, and in the forward pass
struct Example {
    static constexpr u32 QUERIES = TAKE_TURNS ? BlockRows::X2 : BlockRows::BYTES;
    static constexpr u32 KEYS = QUERIES + TokenRows<INNER>::BYTES, VALUES = KEYS + TokenRows<INNER>::BYTES;
    static constexpr u32 HEADS_END = VALUES + TokenRows<INNER>::BYTES;
    static constexpr u32 DY = TAKE_TURNS ? BlockRows::BYTES : HEADS_END, DY_END = DY + TokenRows<DIM>::BYTES;
    static constexpr u32 DA = TAKE_TURNS ? HEADS_END : DY_END, D_JOINED = DA + TokenRows<DIM>::BYTES;
    static constexpr u32 D_JOINED_END = D_JOINED + TokenRows<larger(INNER, DIM)>::BYTES;
    // A language model's logits go backward before any block does, and lie where the blocks' gradients will be. If
    // WARP_SPECIALIZED, they stay there while the last MLP goes backward.
    static constexpr u32 LOGITS = WARP_SPECIALIZED ? DA : DY, LOGITS_END = LOGITS + (CAUSAL ? LogitRows::BYTES : 0);
    static constexpr u32 BESIDE_LOGITS = larger(D_JOINED_END, WARP_SPECIALIZED ? LOGITS_END : 0);
    static constexpr u32 D_HIDDEN = TAKE_TURNS ? DY_END : BESIDE_LOGITS;
    static constexpr u32 D_HIDDEN_BYTES = TokenRows<HIDDEN>::BYTES;
    // p, or another block's keys and values, lie where d_hidden will be
    static constexpr u32 OTHERS_BYTES = larger(TokenRows<ROWS>::BYTES, BLOCKS > 1 ? 2 * TokenRows<INNER>::BYTES : 0);
    static constexpr u32 BLOCK_END = D_HIDDEN + (TAKE_TURNS ? D_HIDDEN_BYTES : larger(D_HIDDEN_BYTES, OTHERS_BYTES));
    static constexpr u32 END = larger(BLOCK_END, LOGITS_END);
    static constexpr u32 P = TAKE_TURNS ? D_JOINED_END : D_HIDDEN;
    static constexpr u32 DS = TAKE_TURNS ? P + TokenRows<ROWS>::BYTES : BlockRows::HIDDEN_ROWS;
    static constexpr u32 BYTES = TAKE_TURNS ? larger(END, DS + TokenRows<ROWS>::BYTES) : END;
    // The block before the last has its keys and values where p will be, so that the last one's memory is free; the
    // blocks before them alternate between the two.
    static constexpr u32 OTHER_KEYS = P, OTHER_VALUES = P + TokenRows<INNER>::BYTES;
    u32 start;
    SpillBuffer spill_buffer;

    DEVICE BlockRows kept() const { return {start}; }
    DEVICE LogitRows logits() const { return {start + LOGITS}; }
    DEVICE BlockPlaces places(int b) const {
        const bool other = BLOCKS > 1 && b % 2 == BLOCKS % 2;
        const TokenRows<INNER> key_rows = {start + (other ? OTHER_KEYS : KEYS), 0};
        const TokenRows<INNER> value_rows = {start + (other ? OTHER_VALUES : VALUES), 0};
        return {queries(), key_rows, value_rows, kept(), spill_buffer};
    }
    // queries, keys and values, and at the end of the backward pass their gradients
    DEVICE TokenRows<INNER> queries() const { return {start, QUERIES}; }
    DEVICE TokenRows<INNER> keys() const { return {start, KEYS}; }
    DEVICE TokenRows<INNER> values() const { return {start, VALUES}; }
    // gradients: of the MLP's output, of the attention's output, and of the rows that the block keeps
    DEVICE TokenRows<DIM> dy() const { return {start, DY}; }
    DEVICE TokenRows<DIM> da() const { return {start, DA}; }
    DEVICE TokenRows<INNER> d_joined() const { return {start, D_JOINED}; }
    DEVICE TokenRows<DIM> d_embedded() const { return {start, D_JOINED}; }  // after the first block, of its input
    DEVICE TokenRows<HIDDEN> d_hidden() const { return {start, D_HIDDEN}; }
    // one head's probabilities, and the gradients of its scores
    DEVICE TokenRows<ROWS> p() const { return {start, P}; }
    DEVICE TokenRows<ROWS> ds() const { return {start, DS}; }

    // the gradient of the residual stream: in the rows of dy and x2, once the MLP's weight gradients are added
    DEVICE Stream d_stream() const { return {start + DY, PITCH<DIM>, BlockRows::X2 - DY, spill_buffer}; }
};
