// The functions of generation/fused/kernels/ptx.cuh on a CPU: the kernels can be run and checked without a GPU.
//
// Every lane is a fiber. A function of a whole warp (matrix products, matrix loads, shuffles) makes its lanes wait for
// each other, and the last to arrive computes it for all. Barriers work the same way. Warps are resumed in a
// random order and now and then one is left waiting, so that a missing barrier shows as a changed result. It also shows
// as a race: every access to shared memory is checked against the last accesses of the other warps and the barriers
// since. Copies from device memory are made when they are waited for, no sooner. A barrier that some threads never
// reach ends the program.
#ifndef PTX
#define PTX
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define DEVICE inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
#define INFINITE INFINITY

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

constexpr int LANES = 32, MOST_THREADS = 512, STACK_BYTES = 256 * 1024;
alignas(1024) static u8 shared_memory[SHARED_BYTES];

// A fiber is entered once through its ucontext; later switches are jumps, which unlike swapcontext call no kernel.
struct Fiber {
    ucontext_t context;
    jmp_buf resume;
    std::unique_ptr<char[]> stack;
    bool entered, done;
};

struct BarrierState {
    int arrived = 0;
    unsigned long generation = 0;
};

struct Copy {
    u32 address;
    const void* source;
};

struct WarpState : BarrierState {
    const char* operation;
    u32 in[LANES][8], out[LANES][4];
    float sums[LANES][4];
};

static Fiber fibers[MOST_THREADS];
static WarpState warps[MOST_THREADS / LANES];
static BarrierState barriers[16];
static jmp_buf scheduler;
static int current, threads, block_x, block_y;
static uint64_t chance;
static std::function<void()> kernel;
static std::vector<Copy> copies[MOST_THREADS];
static unsigned long progress;  // barriers passed and fibers ended

inline u32 draw() {
    chance = chance * 6364136223846793005ull + 1442695040888963407ull;
    return chance >> 33;
}

inline void fail(const char* what) {
    std::fprintf(stderr, "emulator: %s (thread %d)\n", what, current);
    std::abort();
}

// "noipa": the compiler must not look inside and conclude that memory stays as it was; other fibers run meanwhile.
__attribute__((noipa)) static void pause() {
    if (!_setjmp(fibers[current].resume)) _longjmp(scheduler, 1);
}

__attribute__((noipa)) static void resume(int index) {
    current = index;
    if (_setjmp(scheduler)) return;
    if (fibers[index].entered) _longjmp(fibers[index].resume, 1);
    fibers[index].entered = true;
    setcontext(&fibers[index].context);
}

// Out of line: a fiber may return from it long after it entered, which an optimizer that sees inside does not expect.
template <class Act> __attribute__((noinline)) void wait_for(BarrierState& barrier, int expected, const Act& act) {
    unsigned long generation = barrier.generation;
    if (++barrier.arrived == expected) {
        act();
        barrier.arrived = 0;
        barrier.generation++;
        progress++;
        return;
    }
    while (barrier.generation == generation) pause();
}

inline void together(const char* operation, void (*act)(WarpState&)) {
    WarpState& warp = warps[current / LANES];
    if (warp.arrived == 0) warp.operation = operation;
    if (warp.operation != operation) fail("the lanes of a warp do different things");
    wait_for(warp, LANES, [&] { act(warp); });
}

inline void fiber_body() {
    kernel();
    fibers[current].done = true;
    progress++;
    pause();
}

// ---- races --------------------------------------------------------------------------------------------------------

// Vector clocks: clocks[w][v] is the last moment of warp v that a barrier has ordered before warp w. An access is a
// race if no barrier orders it after another warp's access to the same cell and at least one of the two writes.
constexpr int MOST_WARPS = MOST_THREADS / LANES, CELL = 16;
struct Cell {
    int writer;
    u32 written, read[MOST_WARPS];
};
static u32 clocks[MOST_WARPS][MOST_WARPS];
static Cell cells[SHARED_BYTES / CELL];

inline void forget_accesses() {
    std::memset(clocks, 0, sizeof clocks);
    std::memset(cells, 0, sizeof cells);
    for (int w = 0; w < MOST_WARPS; w++) clocks[w][w] = 1;
}

inline void merge_clocks(int first, int count) {
    u32 known[MOST_WARPS] = {};
    for (int w = first; w < first + count; w++) {
        for (int v = 0; v < MOST_WARPS; v++) known[v] = known[v] > clocks[w][v] ? known[v] : clocks[w][v];
    }
    for (int w = first; w < first + count; w++) {
        std::memcpy(clocks[w], known, sizeof known);
        clocks[w][w]++;
    }
}

// A barrier between warps that only arrive and warps that wait for them.
struct SplitBarrier : BarrierState {
    u32 known[MOST_WARPS];
    bool waits[MOST_WARPS];
};
static SplitBarrier split_barriers[16];

inline void arrive_at(SplitBarrier& barrier, int warp, bool waits, int expected) {
    for (int v = 0; v < MOST_WARPS; v++) {
        if (clocks[warp][v] > barrier.known[v]) barrier.known[v] = clocks[warp][v];
    }
    clocks[warp][warp]++;
    barrier.waits[warp] = waits;
    barrier.arrived += LANES;
    if (barrier.arrived < expected) return;
    for (int w = 0; w < MOST_WARPS; w++) {
        if (!barrier.waits[w]) continue;
        for (int v = 0; v < MOST_WARPS; v++) {
            if (barrier.known[v] > clocks[w][v]) clocks[w][v] = barrier.known[v];
        }
    }
    barrier.arrived = 0;
    barrier.generation++;
    progress++;
    std::memset(barrier.known, 0, sizeof barrier.known);
    std::memset(barrier.waits, 0, sizeof barrier.waits);
}

inline u8* access(u32 address, u32 bytes, bool writes, int thread) {
    if (address % bytes || address + bytes > SHARED_BYTES) fail("bad address in shared memory");
    Cell& cell = cells[address / CELL];
    const int warp = thread / LANES;
    const u32* known = clocks[warp];
    if (cell.written > known[cell.writer] && cell.writer != warp) fail("race: this access and another warp's write");
    if (writes) {
        for (int v = 0; v < MOST_WARPS; v++) {
            if (v != warp && cell.read[v] > known[v]) fail("race: this write and another warp's read");
        }
        cell.writer = warp;
        cell.written = known[warp];
    } else {
        cell.read[warp] = known[warp];
    }
    return shared_memory + address;
}
inline u8* to_read(u32 address, u32 bytes, int thread = current) { return access(address, bytes, false, thread); }
inline u8* to_write(u32 address, u32 bytes, int thread = current) { return access(address, bytes, true, thread); }

constexpr int MOST_IDLE_ROUNDS = 1000;  // a warp is left waiting in one round out of four

// Runs one thread block to its end.
inline void run_thread_block() {
    std::memset(shared_memory, 0xFF, sizeof shared_memory);  // not-a-number, as halves and as floats
    forget_accesses();
    for (auto& warp : warps) warp.arrived = 0;
    for (auto& barrier : barriers) barrier.arrived = 0;
    for (auto& barrier : split_barriers) {
        barrier.arrived = 0;
        std::memset(barrier.known, 0, sizeof barrier.known);
        std::memset(barrier.waits, 0, sizeof barrier.waits);
    }
    for (int i = 0; i < threads; i++) {
        Fiber& fiber = fibers[i];
        if (!fiber.stack) fiber.stack.reset(new char[STACK_BYTES]);
        fiber.entered = fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK_BYTES;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, fiber_body, 0);
    }
    const int count = threads / LANES;
    std::vector<int> order(count);
    for (int i = 0; i < count; i++) order[i] = i;
    unsigned long seen = progress;
    for (int idle = 0, working = true; working; idle = progress == seen ? idle + 1 : 0, seen = progress) {
        if (idle > MOST_IDLE_ROUNDS) fail("deadlock: not all threads reach a barrier");
        working = false;
        for (int i = count - 1; i > 0; i--) std::swap(order[i], order[draw() % (i + 1)]);
        for (int warp : order) {
            bool skip = draw() % 4 == 0;
            for (int lane = 0; lane < LANES; lane++) {
                const int index = warp * LANES + lane;
                if (fibers[index].done) continue;
                working = true;
                if (!skip) resume(index);
            }
        }
    }
}

// Runs a grid of thread blocks, one after the other.
inline void launch(int x, int y, int threads_per_block, uint64_t seed, std::function<void()> body) {
    kernel = std::move(body);
    threads = threads_per_block;
    chance = seed;
    for (block_x = 0; block_x < x; block_x++) {
        for (block_y = 0; block_y < y; block_y++) run_thread_block();
    }
}

inline int thread_index() { return current; }
inline int model_index() { return block_x; }
inline int part_index() { return block_y; }
inline u32 shared_start() { return 0; }

// ---- numbers ------------------------------------------------------------------------------------------------------

inline float as_float(u32 word) {
    float x;
    std::memcpy(&x, &word, 4);
    return x;
}
inline u32 as_word(float x) {
    u32 word;
    std::memcpy(&word, &x, 4);
    return word;
}

// To the nearest half, ties to even; a number that is too large becomes the largest half.
inline u16 half_bits(float x) {
    const u32 word = as_word(x), sign = word >> 16 & 0x8000;
    if (std::isnan(x)) return 0x7FFF;
    const float size = std::fmin(std::fabs(x), 65504.0f);
    if (size < 0x1p-14f) return sign | (u32)std::nearbyint(size * 0x1p24f);  // subnormal: a multiple of 2⁻²⁴
    const u32 bits = as_word(size) - (112u << 23);                           // the exponents' biases differ by 112
    const u32 rounded = (bits + 0xFFF + (bits >> 13 & 1)) >> 13;
    return sign | (rounded < 0x7BFF ? rounded : 0x7BFF);
}

struct HalfTable {
    float value[1 << 16];
    HalfTable() {
        for (u32 bits = 0; bits < 1 << 16; bits++) {
            const int exponent = bits >> 10 & 31, fraction = bits & 1023;
            float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                : exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp((float)fraction, -24);
            value[bits] = bits & 0x8000 ? -size : size;
        }
    }
};
static const HalfTable halves;
inline float half_value(u16 bits) { return halves.value[bits]; }
inline u32 pack(float low, float high) { return half_bits(low) | (u32)half_bits(high) << 16; }
inline u32 pack_relu(float low, float high) { return pack(low < 0 ? 0 : low, high < 0 ? 0 : high); }
inline void unpack(float& low, float& high, u32 word) {
    low = half_value(word);
    high = half_value(word >> 16);
}
inline u32 spread_signs(u32 word) { return (word & 0x8000 ? 0xFFFFu : 0) | (word & 0x80000000u ? 0xFFFF0000u : 0); }
inline float power_of_two(float x) { return std::exp2(x); }
inline float log_two(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1 / x; }
inline float reciprocal_root(float x) { return 1 / std::sqrt(x); }
inline float square_root(float x) { return std::sqrt(x); }
inline float divide(float a, float b) { return a / b; }
inline u32 high_product(u32 a, u32 b) { return (uint64_t)a * b >> 32; }

// ---- warps --------------------------------------------------------------------------------------------------------

// Lane l holds c[l/4 (+8)][2·(l%4) (+1)], a[l/4 (+8)][2·(l%4) (+1, +8)], b[2·(l%4) (+1, +8)][l/4].
inline void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    WarpState& warp = warps[current / LANES];
    const int lane = current % LANES;
    for (int i = 0; i < 4; i++) {
        warp.in[lane][i] = a[i];
        warp.sums[lane][i] = c[i];
    }
    warp.in[lane][4] = b0;
    warp.in[lane][5] = b1;
    together("mma", [](WarpState& w) {
        float left[16][16], right[16][8];
        for (int l = 0; l < LANES; l++) {
            const int r = l / 4, q = 2 * (l % 4);
            for (int i = 0; i < 4; i++) {
                float* pair = &left[r + i % 2 * 8][q + i / 2 * 8];
                unpack(pair[0], pair[1], w.in[l][i]);
            }
            for (int i = 0; i < 2; i++) unpack(right[q + 8 * i][r], right[q + 1 + 8 * i][r], w.in[l][4 + i]);
        }
        for (int l = 0; l < LANES; l++) {
            for (int i = 0; i < 4; i++) {
                float sum = 0;
                for (int k = 0; k < 16; k++) sum += left[l / 4 + i / 2 * 8][k] * right[k][2 * (l % 4) + i % 2];
                w.sums[l][i] += sum;
            }
        }
    });
    for (int i = 0; i < 4; i++) c[i] = warp.sums[lane][i];
}

inline void mma_first(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    c[0] = c[1] = c[2] = c[3] = 0.0f;
    mma(c, a, b0, b1);
}

inline void gather_matrices(WarpState& w, bool transposed) {
    for (int l = 0; l < LANES; l++) {
        for (int m = 0; m < 4; m++) {
            u16 pair[2];
            for (int i = 0; i < 2; i++) {
                int row = transposed ? 2 * (l % 4) + i : l / 4;
                int column = transposed ? l / 4 : 2 * (l % 4) + i;
                std::memcpy(&pair[i], to_read(w.in[8 * m + row][0], 16) + 2 * column, 2);
            }
            w.out[l][m] = pair[0] | (u32)pair[1] << 16;
        }
    }
}

inline void load_with(u32 (&r)[4], u32 address, const char* operation, void (*act)(WarpState&)) {
    WarpState& warp = warps[current / LANES];
    warp.in[current % LANES][0] = address;
    together(operation, act);
    for (int i = 0; i < 4; i++) r[i] = warp.out[current % LANES][i];
}
inline void ldmatrix(u32 (&r)[4], u32 address) {
    load_with(r, address, "ldmatrix", [](WarpState& w) { gather_matrices(w, false); });
}
inline void ldmatrix_transposed(u32 (&r)[4], u32 address) {
    load_with(r, address, "ldmatrix_transposed", [](WarpState& w) { gather_matrices(w, true); });
}

inline void stmatrix(u32 address, const u32 (&r)[4]) {
    WarpState& warp = warps[current / LANES];
    for (int i = 0; i < 4; i++) warp.in[current % LANES][i] = r[i];
    warp.in[current % LANES][4] = address;
    together("stmatrix", [](WarpState& w) {
        for (int l = 0; l < LANES; l++) {
            for (int m = 0; m < 4; m++) std::memcpy(to_write(w.in[8 * m + l / 4][4], 16) + 4 * (l % 4), &w.in[l][m], 4);
        }
    });
}

inline u32 from_other(u32 x, int lane) {
    WarpState& warp = warps[current / LANES];
    warp.in[current % LANES][0] = x;
    warp.in[current % LANES][1] = lane;
    together("shuffle", [](WarpState& w) {
        for (int l = 0; l < LANES; l++) w.out[l][0] = w.in[w.in[l][1]][0];
    });
    return warp.out[current % LANES][0];
}
inline u32 shuffle_xor(u32 x, int mask) { return from_other(x, current % LANES ^ mask); }
inline float shuffle_xor(float x, int mask) { return as_float(from_other(as_word(x), current % LANES ^ mask)); }
inline float shuffle(float x, int lane) { return as_float(from_other(as_word(x), lane)); }

inline void warp_barrier() { together("warp_barrier", [](WarpState&) {}); }
inline void thread_block_barrier() {
    wait_for(barriers[0], threads, [] { merge_clocks(0, threads / LANES); });
}
inline void group_barrier(int group) {
    wait_for(barriers[group + 1], 128, [=] { merge_clocks(4 * group, 4); });
}

inline void arrive(int barrier) {
    warps[current / LANES].in[current % LANES][0] = barrier;
    together("arrive", [](WarpState& w) { arrive_at(split_barriers[w.in[0][0]], current / LANES, false, 256); });
}
inline void wait(int barrier) {
    const unsigned long generation = split_barriers[barrier].generation;
    warps[current / LANES].in[current % LANES][0] = barrier;
    together("wait", [](WarpState& w) { arrive_at(split_barriers[w.in[0][0]], current / LANES, true, 256); });
    while (split_barriers[barrier].generation == generation) pause();
}
template <int COUNT> inline void warpgroup_reg_alloc() {}
template <int COUNT> inline void warpgroup_reg_dealloc() {}

// ---- memory -------------------------------------------------------------------------------------------------------

inline void read_floats(float& x, float& y, const float* address) {
    x = address[0];
    y = address[1];
}

inline void write_floats(float* address, float x, float y) {
    address[0] = x;
    address[1] = y;
}
inline void write_words(u32* address, const u32 (&r)[4]) { std::memcpy(address, r, sizeof r); }
inline void read_words(u32 (&r)[4], const u32* address) { std::memcpy(r, address, sizeof r); }
inline void write_words(u32* address, const float (&r)[4]) { std::memcpy(address, r, sizeof r); }
inline void read_words(float (&r)[4], const u32* address) { std::memcpy(r, address, sizeof r); }

inline void store_word(u32 address, u32 x) { std::memcpy(to_write(address, 4), &x, 4); }
inline u32 load_word(u32 address) {
    u32 x;
    std::memcpy(&x, to_read(address, 4), 4);
    return x;
}
inline void store_float(u32 address, float x) { std::memcpy(to_write(address, 4), &x, 4); }
inline float load_float(u32 address) {
    float x;
    std::memcpy(&x, to_read(address, 4), 4);
    return x;
}
inline void load_floats(float& x, float& y, u32 address) {
    std::memcpy(&x, to_read(address, 8), 4);
    std::memcpy(&y, shared_memory + address + 4, 4);
}
inline void store_floats(u32 address, const float (&r)[4]) { std::memcpy(to_write(address, 16), r, 16); }
inline void load_floats(float (&r)[4], u32 address) { std::memcpy(r, to_read(address, 16), 16); }
inline void store_double(u32 address, double x) { std::memcpy(to_write(address, 8), &x, 8); }
inline double load_double(u32 address) {
    double x;
    std::memcpy(&x, to_read(address, 8), 8);
    return x;
}
inline void cp_async(u32 address, const void* source) {
    to_write(address, 16);  // it may be written at any time from now on
    copies[current].push_back({address, source});
}
inline void cp_async_wait_all() {
    for (const Copy& copy : copies[current]) std::memcpy(to_write(copy.address, 16), copy.source, 16);
    copies[current].clear();
}

#endif
