// An example's tokens from device memory, and their embedding.
#pragma once
#include "forward.cuh"

// Starts copying the rows of this warp's tile, which no other warp reads before the end of the forward pass. The
// example's rows begin with the group's tile `first_tile`.
DEVICE void start_tokens(const Thread& me, const u16* example, TokenRows<FEATURES> input, int first_tile = 0) {
    constexpr int chunks = FEATURES / 8;
    #pragma unroll
    for (int i = me.lane; i < TILE * chunks; i += WARP) {
        int row = (me.tile - first_tile) * TILE + i / chunks, chunk = i % chunks;
        if (row < TOKENS) {
            const int target = first_tile * TILE + row;
            start_copy(input.address() + chunk_at<FEATURES>(target, chunk), example + row * FEATURES + chunk * 8);
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
    copies_done();
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
