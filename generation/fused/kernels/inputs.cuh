// An example's tokens from device memory, and their embedding.
#pragma once
#include "forward.cuh"

// A language model's window is one row of 16-bit words: a token in the low byte, and the one that follows it in the
// high byte. Other examples have a row of numbers for each token.
using Window = Matrix<1, ROWS>;
template <bool CAUSAL_INPUT> struct Input { using Rows = TokenRows<FEATURES>; };
template <> struct Input<true> { using Rows = Window; };
using InputRows = Input<CAUSAL>::Rows;
constexpr int EXAMPLE_WORDS = CAUSAL ? ROWS : TOKENS * FEATURES;

// Two neighbors of a window, the first of them even: their tokens, and those that follow each.
struct TokenPair {
    u32 words;
    DEVICE TokenPair(Window window, int first) : words(load_word(window.address() + first * HALF)) {}
    DEVICE int token(int i) const { return words >> 16 * i & 0xFF; }
    DEVICE int next(int i) const { return words >> (16 * i + 8) & 0xFF; }
};

// Starts copying the rows of this warp's tile, which no other warp reads before the end of the forward pass. The
// example's rows begin with the group's tile `first_tile`.
DEVICE void prefetch_tokens(const Thread& me, const u16* example, TokenRows<FEATURES> input, int first_tile = 0) {
    constexpr int chunks = FEATURES / 8;
    #pragma unroll
    for (int i = me.lane; i < TILE * chunks; i += WARP) {
        int row = (me.tile - first_tile) * TILE + i / chunks, chunk = i % chunks;
        if (row < TOKENS) {
            const int target = first_tile * TILE + row;
            cp_async(input.address() + chunk_at<FEATURES>(target, chunk), example + row * FEATURES + chunk * 8);
        }
    }
}

// Waits for the tokens and embeds them, before the first dropout. `positions` [TOKENS, DIM] is added to images; word
// vectors already contain theirs.
DEVICE void embed(
    const Thread& me, Rows<DIM>& x, const Weights& weights, TokenRows<FEATURES> input, const float* positions
) {
    Rows<DIM> position;
    #pragma unroll
    for (int half = 0; IMAGES && half < 2; half++) {
        const int row = me.tile * TILE + me.row + 8 * half;
        const int real = row < TOKENS ? row : TOKENS - 1;  // padding may hold anything
        #pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            read_floats(left(position[j], half), right(position[j], half), positions + real * DIM + 8 * j + me.pair);
        }
    }
    PackedRows<FEATURES> tokens;
    cp_async_wait_all();
    warp_barrier();
    load_rows(me, tokens, input);
    if constexpr (IMAGES) linear(me, x, tokens, weights.embedding(), weights.embedding_bias());
    #pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            if constexpr (IMAGES) {
                left(x[j], half) += left(position[j], half);
                right(x[j], half) += right(position[j], half);
            } else {
                unpack(left(x[j], half), right(x[j], half), pair(tokens, j, half));
            }
        }
    }
    warp_barrier();  // all lanes have read what the next copy may overwrite
}

// ---- language models ------------------------------------------------------------------------------------------------

DEVICE void prefetch_tokens(const Thread& me, const u16* example, Window window, int = 0) {
    const int chunk = 2 * me.tile + me.lane;
    if (me.lane < 2) cp_async(window.address() + 16 * chunk, example + 8 * chunk);
}

// The sum of a token's vector and its position's, in float32: both are read from the flat weights in device memory.
DEVICE void embed(const Thread& me, Rows<DIM>& x, const Weights&, Window window, const float* flat) {
    cp_async_wait_all();
    warp_barrier();
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = me.tile * TILE + me.row + 8 * half;
        const int token = TokenPair(window, row & ~1).token(row % 2);
        const float* const embedding = flat + FLAT_EMBEDDING + token * DIM + me.pair;
        const float* const position = flat + FLAT_POSITIONS + (row < TOKENS ? row : TOKENS - 1) * DIM + me.pair;
        #pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            float a, b;
            read_floats(left(x[j], half), right(x[j], half), embedding + 8 * j);
            read_floats(a, b, position + 8 * j);
            left(x[j], half) += a;
            right(x[j], half) += b;
        }
    }
}
