// What a lane remembers of a block for its backward pass, and where it keeps that while it works on other things.
#pragma once
#include "sample.cuh"

// Rows and numbers of a block, in device memory: each lane writes and reads back its own, so nothing has to be waited
// for, and the cache has room for those of all models that are in training at a time. Rows of the last block are not
// among them; they stay in shared memory.
struct Parking {
    static constexpr int FACTORS = DIM / 16;                 // of the rows of a tile
    // r1 and r2 are the reciprocal deviations of the two LayerNorms, log_sum is log₂ Σ 2^score of each head
    enum Slot { NUMBERS = 0, LOG_SUMS, DROPPED, X1, JOINED = X1 + FACTORS, X2 = JOINED + FACTORS, SLOTS = X2 + FACTORS };
    static constexpr int SLOT_WORDS = 4 * WARP;              // a factor of a warp
    static constexpr int TILE_WORDS = SLOTS * SLOT_WORDS;
    static constexpr int SAMPLE_WORDS = BLOCKS * SAMPLE_TILES * TILE_WORDS;
    static constexpr int WORDS = SAMPLES_AT_ONCE * SAMPLE_WORDS;
    static_assert(HEADS <= 2, "one slot holds the sums of all heads");
    u32* start;  // of this lane in this group's part

    DEVICE Parking(const Thread& me, u32* models, int model)
        : start(models + (long long)model * WORDS + me.group * SAMPLE_WORDS + me.lane * 4) {}

    DEVICE u32* at(const Thread& me, int block, int i, int slot) const {
        return start + (block * SAMPLE_TILES + me.tile(i)) * TILE_WORDS + slot * SLOT_WORDS;
    }
    template <int MINE>
    DEVICE void store_rows(const Thread& me, int block, int slot, const PerTile<PackedRows<DIM>>& rows) const {
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            #pragma unroll
            for (int k = 0; k < FACTORS; k++) write_words(at(me, block, i, slot + k), rows[i][k]);
        }
    }
    template <int MINE>
    DEVICE void load_rows(const Thread& me, int block, int slot, PerTile<PackedRows<DIM>>& rows) const {
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            #pragma unroll
            for (int k = 0; k < FACTORS; k++) read_words(rows[i][k], at(me, block, i, slot + k));
        }
    }
    template <int MINE>
    DEVICE void store_numbers(
        const Thread& me, int block, int slot, const PerTile<PerRow<float>>& a, const PerTile<PerRow<float>>& b
    ) const {
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            const Factor words = {as_word(a[i][0]), as_word(a[i][1]), as_word(b[i][0]), as_word(b[i][1])};
            write_words(at(me, block, i, slot), words);
        }
    }
    template <int MINE>
    DEVICE void load_numbers(
        const Thread& me, int block, int slot, PerTile<PerRow<float>>& a, PerTile<PerRow<float>>& b
    ) const {
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            Factor words;
            read_words(words, at(me, block, i, slot));
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                a[i][half] = as_float(words[half]);
                b[i][half] = as_float(words[2 + half]);
            }
        }
    }
    // One word for each tile.
    DEVICE void store_words(const Thread& me, int block, const PerTile<u32>& x) const {
        #pragma unroll
        for (int i = 0; i < WARP_TILES; i++) *at(me, block, i, DROPPED) = x[i];
    }
    DEVICE void load_words(const Thread& me, int block, PerTile<u32>& x) const {
        #pragma unroll
        for (int i = 0; i < WARP_TILES; i++) x[i] = *at(me, block, i, DROPPED);
    }
};
