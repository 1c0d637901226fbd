// What a lane remembers of a block for its backward pass, and where it keeps that while it works on other things.
#pragma once
#include "sample.cuh"

struct BlockMemory {
    PerTile<PerRow<float>> r1, r2;           // reciprocal deviations of the two LayerNorms
    PerTile<PerRow<float>> log_sum[HEADS];   // log₂ Σ 2^score
    PerTile<u32> dropped;                    // dropout: 16 bits of attention's, 16 of the MLP's
};

// Rows and numbers of blocks before the last, in device memory, unless shared memory has room: each lane writes and reads
// back its own, so nothing has to be waited for, and the cache can hold those of all models in training at a time.
struct Parking {
    static constexpr int FACTORS = DIM / 16;                 // of the rows of a tile
    enum Slot { X1 = 0, JOINED = FACTORS, X2 = 2 * FACTORS, DEVIATIONS = 3 * FACTORS, LOG_SUMS, DROPPED, SLOTS };
    static constexpr int SLOT_WORDS = 4 * WARP;              // a factor of a warp
    static constexpr int TILE_WORDS = SLOTS * SLOT_WORDS;
    static constexpr int SAMPLE_WORDS = ROOMY ? 0 : LAST_BLOCK * SAMPLE_TILES * TILE_WORDS;
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
    template <int MINE> DEVICE void store(const Thread& me, int block, const BlockMemory& memory) const {
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            const Factor deviations = {
                as_word(memory.r1[i][0]), as_word(memory.r1[i][1]), as_word(memory.r2[i][0]), as_word(memory.r2[i][1])
            };
            Factor sums = {0, 0, 0, 0};
            const Factor dropped = {memory.dropped[i], 0, 0, 0};
            #pragma unroll
            for (int k = 0; k < 2 * HEADS; k++) sums[k] = as_word(memory.log_sum[k / 2][i][k % 2]);
            write_words(at(me, block, i, DEVIATIONS), deviations);
            write_words(at(me, block, i, LOG_SUMS), sums);
            write_words(at(me, block, i, DROPPED), dropped);
        }
    }
    template <int MINE> DEVICE void load(const Thread& me, int block, BlockMemory& memory) const {
        #pragma unroll
        for (int i = 0; i < MINE; i++) {
            Factor deviations, sums, dropped;
            read_words(deviations, at(me, block, i, DEVIATIONS));
            read_words(sums, at(me, block, i, LOG_SUMS));
            read_words(dropped, at(me, block, i, DROPPED));
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                memory.r1[i][half] = as_float(deviations[half]);
                memory.r2[i][half] = as_float(deviations[2 + half]);
                #pragma unroll
                for (int head = 0; head < HEADS; head++) {
                    memory.log_sum[head][i][half] = as_float(sums[2 * head + half]);
                }
            }
            memory.dropped[i] = dropped[0];
        }
    }
};
