// Dropout masks from a counter, the same as generation.population.philox makes them: Philox2x32 with seven rounds.
//
//     key = seed of the run, counter = (group of four elements, 8·step + place), 16 bits per element
//
// A call gives the bits of four neighboring elements of a row; a lane holds two of them, in two rows. So of two
// neighboring lanes one makes the call for the upper row, the other for the lower, and they exchange halves.
#pragma once
#include "matrices.cuh"

constexpr u32 PHILOX_MULTIPLIER = 0xD256D193, PHILOX_KEY_STEP = 0x9E3779B9;
constexpr int PHILOX_ROUNDS = 7, PLACES_PER_STEP = 8;

struct Dropout {
    u32 seed;
    u32 threshold;     // of 2¹⁶: an element is dropped where its 16 bits lie below; 0 drops nothing
    float epsilon;     // of the LayerNorm that follows, with dropout's factor in it (norm.cuh)
    u32 step;
    u32 first_group;   // of four elements, of its first tile's upper row in even lanes, lower row in odd ones

    DEVICE void start_sample(const Thread& me, int place_in_batch) {
        int row = me.tile(0) * TILE + me.row + (me.lane % 2 ? 8 : 0);
        first_group = (place_in_batch * TOKENS + row) * (DIM / 4) + me.pair / 4;
    }
};

static_assert(DIM / 8 * 4 <= 16, "what a lane drops of a tile is said in 16 bits");

// Drops in the rows of the warp's i-th tile; the 16 low bits of the result say which of the lane's elements.
DEVICE u32 drop_tile(const Thread& me, Rows<DIM>& x, const Dropout& dropout, int place, int i) {
    const u32 limit = dropout.threshold << 16;
    u32 dropped = 0;
    #pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        u32 low = dropout.first_group + i * GROUP_WARPS * TILE * (DIM / 4) + 2 * j;
        u32 high = PLACES_PER_STEP * dropout.step + place, key = dropout.seed;
        #pragma unroll
        for (int round = 0; round < PHILOX_ROUNDS; round++) {
            u32 top = high_product(low, PHILOX_MULTIPLIER);
            u32 bottom = low * PHILOX_MULTIPLIER;
            low = top ^ key ^ high;
            high = bottom;
            key += PHILOX_KEY_STEP;
        }
        bool odd = me.lane % 2;
        u32 received = exchange(odd ? low : high, 1);
        u32 bits[2] = {odd ? received : low, odd ? high : received};
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            u32 shifted = e % 2 ? bits[e / 2] : bits[e / 2] << 16;
            bool keep = shifted >= limit;
            dropped |= keep ? 0 : 1u << (4 * j + e);
            x[j][e] = keep ? x[j][e] : 0.0f;
        }
    }
    return dropped;
}

// Drops in all rows of the warp, in place, and sets a bit of `dropped` for each such element, from `shift` on.
template <int MINE>
DEVICE void drop(
    const Thread& me, PerTile<Rows<DIM>>& x, const Dropout& dropout, int place, PerTile<u32>& dropped, int shift
) {
    if (dropout.threshold == 0) return;
    #pragma unroll
    for (int i = 0; i < MINE; i++) dropped[i] |= drop_tile(me, x[i], dropout, place, i) << shift;
}

template <int MINE> DEVICE void drop_backward(PerTile<Rows<DIM>>& d, const PerTile<u32>& dropped, int shift) {
    #pragma unroll
    for (int i = 0; i < MINE; i++) {
        #pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) d[i][j][e] = dropped[i] >> (shift + 4 * j + e) & 1 ? 0.0f : d[i][j][e];
        }
    }
}
