// Shared memory of a group of producer warps (WARP_SPECIALIZED): two stages of facts and dropout masks, for its example
// and its next one, which consumer warps write; and the group's own BlockMemory of the block before the last, spilled.
#pragma once
#include "forward.cuh"

struct ProducerStorage {
    static constexpr u32 MASKS = 64, STAGE_BYTES = MASKS + (1 + BLOCKS) * GROUP_THREADS * FLOAT;
    static constexpr u32 MEMORY = 2 * STAGE_BYTES, BYTES = MEMORY + (2 + HEADS) * ROWS * FLOAT;
    static_assert(BYTES % 128 == 0, "the next data start at a multiple of 128 bytes");
    u32 start;

    // with PACKS each tile has its own facts, and a pack beside them
    DEVICE u32 facts(const Thread& me, int stage) const {
        return start + stage * STAGE_BYTES + (PACKS ? me.tile * (MASKS / GROUP_WARPS) : 0);
    }
    DEVICE u32 pack(const Thread& me, int stage) const { return facts(me, stage) + FLOAT; }
    DEVICE u32 masks(const Thread& me, int stage) const {
        return start + stage * STAGE_BYTES + MASKS + (me.tile * WARP + me.lane) * FLOAT;
    }

    // All lanes of a row have the same numbers, so each stores one of them.
    DEVICE void spill(const Thread& me, const BlockMemory& memory) const {
        const int own = me.pair / 2;
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            float number = own == 0 ? memory.r1[half] : memory.r2[half];
            #pragma unroll
            for (int head = 0; head < HEADS; head++) number = own == 2 + head ? memory.log_sum[head][half] : number;
            if (own < 2 + HEADS) store_float(at(me, own, half), number);
        }
    }
    DEVICE void reload(const Thread& me, BlockMemory& memory) const {
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            memory.r1[half] = load_float(at(me, 0, half));
            memory.r2[half] = load_float(at(me, 1, half));
            #pragma unroll
            for (int head = 0; head < HEADS; head++) memory.log_sum[head][half] = load_float(at(me, 2 + head, half));
        }
    }

  private:
    DEVICE u32 at(const Thread& me, int number, int half) const {
        return start + MEMORY + (number * ROWS + me.tile * TILE + me.row + 8 * half) * FLOAT;
    }
};
