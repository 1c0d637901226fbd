// The PTX instructions that the kernels use, each as a function: matrix units, shuffles, barriers, conversions.
//
// Only these functions have inline PTX, and no header of the CUDA toolkit is needed. Shared memory is addressed in
// bytes from its start. tests/generation/emulator has a second file of this name, which replaces this one and does the
// same on a CPU, lane by lane.
#ifndef PTX
#define PTX

#define DEVICE __device__ __forceinline__
#define INFINITE __int_as_float(0x7F800000)

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

extern __shared__ __align__(1024) u8 shared_memory[];

// Volatile, so that values derived from it are computed again at each use instead of occupying registers for long.
DEVICE int thread_index() {
    int i;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(i));
    return i;
}
DEVICE int model_index() {  // likewise
    int i;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(i));
    return i;
}
DEVICE int part_index() { return blockIdx.y; }

DEVICE u32 shared_start() { return (u32)__cvta_generic_to_shared(shared_memory); }

// ---- matrix units -------------------------------------------------------------------------------------------------

// c += a·b for a 16×16 (half), b 16×8 (half), c 16×8 (float), spread over the warp as mma.m16n8k16 requires.
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c = a·b
DEVICE void mma_first(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// Four 8×8 matrices of halves; lane 8i+j gives the address of row j of matrix i.
DEVICE void ldmatrix(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// The same, each matrix transposed.
DEVICE void ldmatrix_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// The reverse, from sm_90 on: matrix i of the warp's registers to the eight rows at the addresses of lanes 8i to 8i+7.
DEVICE void stmatrix(u32 address, const u32 (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
        :: "r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

// ---- numbers ------------------------------------------------------------------------------------------------------

// Two halves in a word, the first one low; a number that is too large becomes the largest half.
DEVICE u32 pack(float low, float high) {
    u32 word;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// The same with negative numbers set to zero.
DEVICE u32 pack_relu(float low, float high) {
    u32 word;
    asm("cvt.rn.relu.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

DEVICE void unpack(float& low, float& high, u32 word) {
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high) : "r"(word));
}

// All ones in each half of the word whose sign bit is set, else zeros.
DEVICE u32 spread_signs(u32 word) {
    u32 mask;
    asm("prmt.b32 %0, %1, 0, 0xBB99;" : "=r"(mask) : "r"(word));
    return mask;
}

DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float log_two(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float reciprocal_root(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float square_root(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float divide(float a, float b) {
    float y;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
DEVICE u32 high_product(u32 a, u32 b) { return __umulhi(a, b); }

// ---- lanes and warps ----------------------------------------------------------------------------------------------

DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
DEVICE u32 shuffle_xor(u32 x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xFFFFFFFFu, x, lane); }

DEVICE void warp_barrier() { __syncwarp(); }
DEVICE void thread_block_barrier() { __syncthreads(); }

// Waits for the four warps of one group; barrier 0 is the whole thread block's.
DEVICE void group_barrier(int group) {
    asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
}

// A barrier between four warps that arrive and go on at once, and four that wait for them.
DEVICE void arrive(int barrier) { asm volatile("bar.arrive %0, 256;" :: "r"(barrier) : "memory"); }
DEVICE void wait(int barrier) { asm volatile("bar.sync %0, 256;" :: "r"(barrier) : "memory"); }

// More or fewer registers per thread from now on, called by four warps together. From sm_90a on.
template <int N> DEVICE void warpgroup_reg_alloc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N)); }
template <int N> DEVICE void warpgroup_reg_dealloc() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N)); }

// ---- device memory ------------------------------------------------------------------------------------------------

// Two numbers of device memory, at a multiple of eight bytes. Nothing writes them, but declared constant they would be
// read once for a whole step, and there are no registers to keep them in.
DEVICE void read_floats(float& x, float& y, const float* address) {
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "l"(address) : "memory");
}

// Writes two numbers there.
DEVICE void write_floats(float* address, float x, float y) {
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" :: "l"(address), "f"(x), "f"(y) : "memory");
}

// Four words that this thread writes and reads back, at a multiple of 16 bytes. They bypass the L1 cache, which is
// small.
DEVICE void write_words(u32* address, const u32 (&r)[4]) {
    asm volatile("st.global.cg.v4.b32 [%0], {%1, %2, %3, %4};"
        :: "l"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
DEVICE void read_words(u32 (&r)[4], const u32* address) {
    asm volatile("ld.global.cg.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "l"(address) : "memory");
}
DEVICE void write_words(u32* address, const float (&r)[4]) {
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};"
        :: "l"(address), "f"(r[0]), "f"(r[1]), "f"(r[2]), "f"(r[3]) : "memory");
}
DEVICE void read_words(float (&r)[4], const u32* address) {
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]) : "l"(address) : "memory");
}

// ---- shared memory ------------------------------------------------------------------------------------------------

DEVICE void store_word(u32 address, u32 x) {
    asm volatile("st.shared.b32 [%0], %1;" :: "r"(address), "r"(x) : "memory");
}
DEVICE u32 load_word(u32 address) {
    u32 x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}
DEVICE void store_float(u32 address, float x) {
    asm volatile("st.shared.f32 [%0], %1;" :: "r"(address), "f"(x) : "memory");
}
DEVICE float load_float(u32 address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
    return x;
}
DEVICE void load_floats(float& x, float& y, u32 address) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}
DEVICE void store_floats(u32 address, const float (&r)[4]) {  // at a multiple of 16 bytes
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
        :: "r"(address), "f"(r[0]), "f"(r[1]), "f"(r[2]), "f"(r[3]) : "memory");
}
DEVICE void load_floats(float (&r)[4], u32 address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]) : "r"(address) : "memory");
}
DEVICE void store_double(u32 address, double x) {
    asm volatile("st.shared.f64 [%0], %1;" :: "r"(address), "d"(x) : "memory");
}
DEVICE double load_double(u32 address) {
    double x;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(x) : "r"(address) : "memory");
    return x;
}

// Starts a copy of 16 bytes; cp_async_wait_all waits for all copies that this thread has started.
DEVICE void cp_async(u32 address, const void* source) {
    unsigned long long global;
    asm("cvta.to.global.u64 %0, %1;" : "=l"(global) : "l"(source));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(global) : "memory");
}
DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#endif
