// Dropout masks from a counter, the same as in generation.population.philox: Philox2x32 with seven rounds.
//
//     key = seed of the run, counter = (group of four elements, PLACES_PER_STEP·step + place), 16 bits per element
//
// A call gives the bits of four neighboring elements of a row; a lane holds two of them, in two rows. So one of two
// neighboring lanes makes the call for the upper row, the other for the lower, and they exchange halves.
#pragma once
#include "matrices.cuh"

constexpr u32 PHILOX_MULTIPLIER = 0xD256D193, PHILOX_KEY_STEP = 0x9E3779B9;
constexpr int PHILOX_ROUNDS = 7;
constexpr int PLACES_PER_STEP = 1 + 2 * BLOCKS <= 8 ? 8 : 16;
static_assert(1 + 2 * BLOCKS <= PLACES_PER_STEP, "every place has a counter of its own");

struct Dropout {
    u32 seed;
    u32 threshold;     // of 2¹⁶: an element is dropped where its 16 bits lie below; 0 drops nothing
    float epsilon;     // of the LayerNorm that follows, with dropout's factor in it (norm.cuh)
    u32 step;
    u32 first_group;   // of four elements, of this thread's upper row in even lanes, lower row in odd ones
    u32 masks;         // if WARP_SPECIALIZED: address in shared memory of the bits that consumers drew for this lane

    DEVICE void start_example(const Thread& me, int rank_in_batch, int first_tile = 0) {
        int row = (me.tile - first_tile) * TILE + me.row + (me.lane % 2 ? 8 : 0);
        first_group = (rank_in_batch * TOKENS + row) * (DIM / 4) + me.pair / 4;
    }

    // Masks of the embedded tokens (0), and of the attention and MLP of block b (1 + b).
    DEVICE u32 drawn(int word) const { return load_word(masks + word * GROUP_THREADS * FLOAT); }
};

// A lane's elements of a row tile, one bit each; and the bits of two layers in one word.
constexpr int KEPT_BITS = DIM / 2;
template <bool LONG> struct TwoPlaces { using Word = u32; };
template <> struct TwoPlaces<true> { using Word = unsigned long long; };
using KeptTwice = TwoPlaces<(2 * KEPT_BITS > 32)>::Word;

// Draws which of the lane's elements are kept, and calls `each` for every one.
template <class Each> DEVICE u32 draw(const Thread& me, const Dropout& dropout, int place, Each each) {
    if (dropout.threshold == 0) return 0xFFFFFFFFu >> (32 - KEPT_BITS);
    const u32 limit = dropout.threshold << 16;
    u32 kept = 0;
    #pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        u32 low = dropout.first_group + 2 * j, high = PLACES_PER_STEP * dropout.step + place, key = dropout.seed;
        #pragma unroll
        for (int round = 0; round < PHILOX_ROUNDS; round++) {
            u32 top = high_product(low, PHILOX_MULTIPLIER);
            u32 bottom = low * PHILOX_MULTIPLIER;
            low = top ^ key ^ high;
            high = bottom;
            key += PHILOX_KEY_STEP;
        }
        bool odd = me.lane % 2;
        u32 received = shuffle_xor(odd ? low : high, 1);
        u32 bits[2] = {odd ? received : low, odd ? high : received};
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 shifted = i % 2 ? bits[i / 2] : bits[i / 2] << 16;
            bool keep = shifted >= limit;
            kept |= keep ? 1u << (4 * j + i) : 0;
            each(j, i, keep);
        }
    }
    return kept;
}

// Draws and drops in place.
DEVICE u32 drop(const Thread& me, Rows<DIM>& x, const Dropout& dropout, int place) {
    return draw(me, dropout, place, [&](int j, int i, bool keep) { x[j][i] = keep ? x[j][i] : 0.0f; });
}

// Sets elements, or their gradients, to zero unless they are kept.
DEVICE void drop_others(Rows<DIM>& x, u32 kept) {
    #pragma unroll
    for (int j = 0; j < DIM / 8; j++) {
        #pragma unroll
        for (int i = 0; i < 4; i++) x[j][i] = kept >> (4 * j + i) & 1 ? x[j][i] : 0.0f;
    }
}
