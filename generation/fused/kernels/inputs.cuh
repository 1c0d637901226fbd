// A sample's tokens from device memory, and their embedding.
#pragma once
#include "forward.cuh"

// Starts to copy the rows of this warp's tiles, which it alone reads until it has embedded them. Rows of padding become
// zeros.
DEVICE void start_tokens(const Thread& me, const u16* sample, TokenRows<FEATURES> input) {
    constexpr int chunks = FEATURES / 8;
    #pragma unroll
    for (int i = 0; i < WARP_TILES; i++) {
        #pragma unroll
        for (int first = 0; first < TILE * chunks; first += WARP) {
            const int index = first + me.lane, row = me.tile(i) * TILE + index / chunks, chunk = index % chunks;
            const u32 address = input.address() + chunk_at<FEATURES>(row, chunk);
            if (row < TOKENS) start_copy(address, sample + row * FEATURES + chunk * 8);
            else store_zeros(address);
        }
    }
}

// The embedded tokens, in front of the first dropout. `positions` [TOKENS, DIM] is added to images; words bring theirs.
DEVICE void embed(
    const Thread& me, PerTile<Rows<DIM>>& x, const Weights& weights, TokenRows<FEATURES> input, const float* positions
) {
    PerTile<PackedRows<FEATURES>> tokens;
    load_rows<WARP_TILES>(me, tokens, input);
    if constexpr (IMAGES) {
        linear<WARP_TILES>(me, x, tokens, weights.embedding(), weights.embedding_bias());
        #pragma unroll
        for (int i = 0; i < WARP_TILES; i++) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = me.tile(i) * TILE + me.row + 8 * half;
                const int real = row < TOKENS ? row : TOKENS - 1;  // padding may hold anything
                #pragma unroll
                for (int j = 0; j < DIM / 8; j++) {
                    float a, b;
                    read_floats(a, b, positions + real * DIM + 8 * j + me.pair);
                    left(x[i][j], half) += a;
                    right(x[i][j], half) += b;
                }
            }
        }
    } else {
        #pragma unroll
        for (int i = 0; i < WARP_TILES; i++) {
            #pragma unroll
            for (int j = 0; j < DIM / 8; j++) {
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    unpack(left(x[i][j], half), right(x[i][j], half), pair(tokens[i], j, half));
                }
            }
        }
    }
}
