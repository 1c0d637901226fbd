// Measures a population in float32: the numbers that a row of the zoo stores.
//
// evaluate.cu multiplies halves; here all numbers are floats, and the matrix units are not used. A thread has two
// tokens of an example in registers, so that each weight it loads is used twice, and computes their rows from the
// embedding to the last LayerNorm; only keys and values are shared:
//
//     h = embedding                                            x = LayerNorm(h)
//     h = [h +] Σ over heads of W_O·softmax(q·kᵀ/√D_k)·v       x = LayerNorm(h)
//     h = [h +] W_2·relu(W_1·x + b_1) + b_2                    x = LayerNorm(h)        in each block
//
// A thread block takes one model and one part of the examples, several at a time. Shared memory has the weights of one
// stage: the embedding, a block's attention or MLP, the classifier or unembedding.
#include "evaluation.cuh"

namespace in_floats {

constexpr int THREADS = 256, TWO = 2;
constexpr int EXAMPLE_THREADS = (TOKENS + 1) / TWO;  // thread i has tokens i and i + EXAMPLE_THREADS
// A row has a token's keys and values, at the end x. Four floats more keep the stores of a warp in different banks.
constexpr int ROW_FLOATS = larger(2 * INNER, DIM) + 4, EXAMPLE_FLOATS = TOKENS * ROW_FLOATS;
constexpr int LAST_STAGE = CAUSAL ? FLAT_UNEMBEDDING : FLAT_CLASSIFIER1, EMBEDDING_FLOATS = IMAGES ? FLAT_QUERY : 0;
constexpr int ATTENTION_FLOATS = FLAT_FC1 - FLAT_QUERY, MLP_FLOATS = BLOCK_STRIDE - ATTENTION_FLOATS;
constexpr int STAGE_FLOATS = larger(
    larger(ATTENTION_FLOATS, MLP_FLOATS), larger(EMBEDDING_FLOATS, (PARAMETERS - LAST_STAGE + 3) / 4 * 4)
);
constexpr int ROOM = (SHARED_BYTES / (int)FLOAT - STAGE_FLOATS) / EXAMPLE_FLOATS;
constexpr int EXAMPLES = ROOM < THREADS / EXAMPLE_THREADS ? ROOM : THREADS / EXAMPLE_THREADS;
static_assert(EXAMPLES > 0, "a stage's weights and an example fit into shared memory");
constexpr int SUM_BYTES = 32, COUNT = 16;            // of a thread at the end: its losses, and its correct answers
constexpr u32 BYTES = larger((STAGE_FLOATS + EXAMPLES * EXAMPLE_FLOATS) * (int)FLOAT, THREADS * SUM_BYTES);

template <int N> using Pair = float[TWO][N];         // N numbers for each of a thread's tokens

// The weights in shared memory, with the offsets that they have in the flat vector; all threads load them together.
struct Stage {
    u32 start;
    int first;
    DEVICE u32 at(int offset, int index = 0) const { return start + (offset - first + index) * FLOAT; }

    DEVICE void load(const float* flat, int offset, int count) {
        thread_block_barrier();  // the stage before is over
        first = offset;
        for (int i = thread_index(); i < count; i += THREADS) store_float(at(offset, i), flat[offset + i]);
        thread_block_barrier();
    }
    // An M × N matrix column by column, in place of its rows.
    template <int M, int N> DEVICE void load_columns(const float* flat, int offset) const {
        for (int i = thread_index(); i < M * N / 4; i += THREADS) {
            const int row = 4 * i % M, column = 4 * i / M;
            float four[4];
            #pragma unroll
            for (int k = 0; k < 4; k++) four[k] = flat[offset + (row + k) * N + column];
            store_floats(at(offset, column * M + row), four);
        }
        thread_block_barrier();
    }
};

// sum += w·x for a row w
template <int N> DEVICE void add_product(float (&sum)[TWO], u32 row, const Pair<N>& x) {
    #pragma unroll
    for (int j = 0; j < N; j += 4) {
        float w[4];
        load_floats(w, row + j * FLOAT);
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            sum[0] += w[k] * x[0][j + k];
            sum[1] += w[k] * x[1][j + k];
        }
    }
}

// y += a·w for a column w
template <int N> DEVICE void add_column(Pair<N>& y, float a0, float a1, u32 column) {
    #pragma unroll
    for (int i = 0; i < N; i += 4) {
        float w[4];
        load_floats(w, column + i * FLOAT);
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            y[0][i + k] += a0 * w[k];
            y[1][i + k] += a1 * w[k];
        }
    }
}

DEVICE void normalize(Pair<DIM>& x, const Pair<DIM>& h) {
    #pragma unroll
    for (int r = 0; r < TWO; r++) {
        float mean = 0.0f, variance = 0.0f;
        #pragma unroll
        for (int i = 0; i < DIM; i++) mean += h[r][i] / DIM;
        #pragma unroll
        for (int i = 0; i < DIM; i++) variance += (h[r][i] - mean) * (h[r][i] - mean) / DIM;
        const float inverse = 1.0f / sqrtf(variance + LAYER_NORM_EPSILON);
        #pragma unroll
        for (int i = 0; i < DIM; i++) x[r][i] = (h[r][i] - mean) * inverse;
    }
}

// Σ exp(z) = total·exp(most), whatever the size of the z.
struct Exponentials {
    float most = -INFINITE, total = 0.0f;

    // exp(z − most) once z is one of them; what was made of the others is to be multiplied by `rescale`
    DEVICE float add(float z, float& rescale) {
        rescale = z > most ? expf(most - z) : 1.0f;
        most = z > most ? z : most;
        const float share = expf(z - most);
        total = total * rescale + share;
        return share;
    }
};

// A thread's tokens. Those past the end, or of an example that is not there, are computed but not stored.
struct ThreadTokens {
    int example, token[TWO];  // the example among those at hand
    bool stored[TWO];
    u32 rows;

    DEVICE ThreadTokens(u32 start, int examples) {
        const u32 index = thread_index();
        const bool there = index / EXAMPLE_THREADS < examples;
        example = there ? index / EXAMPLE_THREADS : 0;
        token[0] = index % EXAMPLE_THREADS, token[1] = token[0] + EXAMPLE_THREADS;
        stored[0] = there, stored[1] = there && token[1] < TOKENS;
        rows = start + example * EXAMPLE_FLOATS * FLOAT;
    }
    DEVICE int real(int r) const { return token[r] < TOKENS ? token[r] : TOKENS - 1; }
    DEVICE u32 row(int token) const { return rows + token * ROW_FLOATS * FLOAT; }
    DEVICE void store(int column, const float (&first)[4], const float (&second)[4]) const {
        if (stored[0]) store_floats(row(token[0]) + column * FLOAT, first);
        if (stored[1]) store_floats(row(token[1]) + column * FLOAT, second);
    }
};

DEVICE void embed(
    const ThreadTokens& me, Pair<DIM>& h, const Stage& stage, const EvaluateArguments& arguments, const float* flat,
    int example
) {
    Pair<FEATURES> input;
    #pragma unroll
    for (int r = 0; r < TWO; r++) {
        const int token = me.real(r);
        if constexpr (CAUSAL) {
            const float* const embedding = flat + FLAT_EMBEDDING + (arguments.example(example)[token] & 0xFF) * DIM;
            #pragma unroll
            for (int i = 0; i < DIM; i++) h[r][i] = embedding[i] + flat[FLAT_POSITIONS + token * DIM + i];
        } else {
            #pragma unroll
            for (int i = 0; i < FEATURES; i++) input[r][i] = arguments.floats(example)[token * FEATURES + i];
            #pragma unroll
            for (int i = 0; i < DIM; i++) h[r][i] = IMAGES ? arguments.positions[token * DIM + i] : input[r][i];
        }
    }
    #pragma unroll
    for (int i = 0; IMAGES && i < DIM; i++) {
        const float bias = load_float(stage.at(FLAT_EMBEDDING_BIAS, i));
        float sum[TWO] = {bias, bias};
        add_product(sum, stage.at(FLAT_EMBEDDING, i * FEATURES), input);
        h[0][i] += sum[0];
        h[1][i] += sum[1];
    }
}

// y += what attention writes: over the first `length` tokens or, causal, up to a token's own.
DEVICE void add_attention(const ThreadTokens& me, Pair<DIM>& y, const Pair<DIM>& x, const Stage& stage, int length) {
    #pragma unroll 1
    for (int j = 0; j < 2 * INNER; j += 4) {  // rows of W_K, then of W_V
        Pair<4> four;
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            float sum[TWO] = {};
            add_product(sum, stage.at(FLAT_KEY, (j + k) * DIM), x);
            four[0][k] = sum[0], four[1][k] = sum[1];
        }
        me.store(j, four[0], four[1]);
    }
    thread_block_barrier();
    #pragma unroll 1
    for (int head = 0; head < HEADS; head++) {
        Pair<HEAD_DIM> query, values = {};
        #pragma unroll
        for (int j = 0; j < HEAD_DIM; j++) {
            float sum[TWO] = {};
            add_product(sum, stage.at(FLAT_QUERY, (head * HEAD_DIM + j) * DIM), x);
            query[0][j] = sum[0] * SCORE_SCALE, query[1][j] = sum[1] * SCORE_SCALE;
        }
        Exponentials scores[TWO];
        const int end = CAUSAL ? me.real(1) + 1 : length;
        #pragma unroll 1
        for (int t = 0; t < end; t++) {
            const u32 key = me.row(t) + head * HEAD_DIM * FLOAT;
            float score[TWO] = {}, share[TWO] = {}, rescale[TWO] = {1.0f, 1.0f};
            add_product(score, key, query);
            #pragma unroll
            for (int r = 0; r < TWO; r++) {
                if (!CAUSAL || t <= me.token[r]) share[r] = scores[r].add(score[r], rescale[r]);
                #pragma unroll
                for (int j = 0; j < HEAD_DIM; j++) values[r][j] *= rescale[r];
            }
            add_column(values, share[0], share[1], key + INNER * FLOAT);
        }
        #pragma unroll
        for (int j = 0; j < HEAD_DIM; j++) {
            const u32 column = stage.at(FLAT_OUTPUT, (head * HEAD_DIM + j) * DIM);
            add_column(y, values[0][j] / scores[0].total, values[1][j] / scores[1].total, column);
        }
    }
}

// y += what the MLP writes
DEVICE void add_mlp(Pair<DIM>& y, const Pair<DIM>& x, const Stage& stage) {
    #pragma unroll 2
    for (int j = 0; j < HIDDEN; j++) {
        const float bias = load_float(stage.at(FLAT_FC1_BIAS, j));
        float unit[TWO] = {bias, bias};
        add_product(unit, stage.at(FLAT_FC1, j * DIM), x);
        add_column(y, fmaxf(unit[0], 0.0f), fmaxf(unit[1], 0.0f), stage.at(FLAT_FC2, j * DIM));
    }
    add_column(y, 1.0f, 1.0f, stage.at(FLAT_FC2_BIAS));
}

// x becomes the classifier's hidden layer, on the mean of an example's rows; all its threads compute the same one.
DEVICE void pool(const ThreadTokens& me, Pair<DIM>& x, const Stage& stage, int length) {
    #pragma unroll
    for (int i = 0; i < DIM; i += 4) {
        me.store(i, {x[0][i], x[0][i + 1], x[0][i + 2], x[0][i + 3]}, {x[1][i], x[1][i + 1], x[1][i + 2], x[1][i + 3]});
    }
    thread_block_barrier();
    Pair<DIM> mean = {};
    for (int t = 0; t < length; t++) add_column(mean, 1.0f / length, 1.0f / length, me.row(t));
    #pragma unroll
    for (int i = 0; i < DIM; i++) {
        const float bias = load_float(stage.at(FLAT_CLASSIFIER1_BIAS, i));
        float unit[TWO] = {bias, bias};
        add_product(unit, stage.at(FLAT_CLASSIFIER1, i * DIM), mean);
        x[0][i] = x[1][i] = fmaxf(unit[0], 0.0f);
    }
}

// A thread's answers so far: what they lose, and how many are right.
struct Answers {
    double loss = 0.0;
    int correct = 0;

    // Two more, where they are `counted`: logits U·x [+ b], whose `label` is right.
    DEVICE void add(const Pair<DIM>& x, const Stage& stage, const int (&label)[TWO], const bool (&counted)[TWO]) {
        Exponentials all[TWO];
        float right[TWO] = {}, rescale;
        int best[TWO] = {};
        #pragma unroll 1
        for (int c = 0; c < CLASSES; c++) {
            const float bias = CAUSAL ? 0.0f : load_float(stage.at(FLAT_CLASSIFIER2_BIAS, c));
            float logit[TWO] = {bias, bias};
            add_product(logit, stage.at(CAUSAL ? FLAT_UNEMBEDDING : FLAT_CLASSIFIER2, c * DIM), x);
            #pragma unroll
            for (int r = 0; r < TWO; r++) {
                if (logit[r] > all[r].most) best[r] = c;
                if (c == label[r]) right[r] = logit[r];
                all[r].add(logit[r], rescale);
            }
        }
        #pragma unroll
        for (int r = 0; r < TWO; r++) {
            if (counted[r]) loss += logf(all[r].total) + all[r].most - right[r];
            if (counted[r]) correct += best[r] == label[r];
        }
    }
};

}  // namespace in_floats

extern "C" __global__ void measure_needs(int* needs) {
    needs[0] = in_floats::THREADS;
    needs[1] = in_floats::BYTES;
    needs[2] = sizeof(EvaluateArguments);
}

extern "C" __global__ void __launch_bounds__(in_floats::THREADS, 1) measure(
    const __grid_constant__ EvaluateArguments arguments
) {
    using namespace in_floats;
    const int model = model_index(), part = part_index();
    if (!arguments.alive[model]) return;
    const float* const flat = arguments.weights + (long long)model * PARAMETERS;
    const int end = (part + 1) * arguments.part_size, last = end < arguments.examples ? end : arguments.examples;
    Stage stage = {shared_start(), 0};
    Answers answers;
    #pragma unroll 1
    for (int first = part * arguments.part_size; first < last; first += EXAMPLES) {
        const ThreadTokens me(stage.start + STAGE_FLOATS * FLOAT, last - first < EXAMPLES ? last - first : EXAMPLES);
        const int example = first + me.example;
        const Facts facts(arguments.facts[example]);
        Pair<DIM> h, x;
        stage.load(flat, 0, EMBEDDING_FLOATS);
        embed(me, h, stage, arguments, flat, example);
        normalize(x, h);
        #pragma unroll 1
        for (int step = 0; step < 2 * BLOCKS; step++) {
            const float* const block = flat + step / 2 * BLOCK_STRIDE;
            Pair<DIM> y = {};
            if (step % 2 == 0) {
                stage.load(block, FLAT_QUERY, ATTENTION_FLOATS);
                stage.load_columns<DIM, INNER>(block, FLAT_OUTPUT);
                add_attention(me, y, x, stage, facts.length);
            } else {
                stage.load(block, FLAT_FC1, MLP_FLOATS);
                stage.load_columns<DIM, HIDDEN>(block, FLAT_FC2);
                add_mlp(y, x, stage);
            }
            #pragma unroll
            for (int i = 0; i < DIM; i++) {
                h[0][i] = RESIDUAL ? h[0][i] + y[0][i] : y[0][i];
                h[1][i] = RESIDUAL ? h[1][i] + y[1][i] : y[1][i];
            }
            normalize(x, h);
        }
        stage.load(flat, LAST_STAGE, PARAMETERS - LAST_STAGE);
        if constexpr (CAUSAL) {
            const u16* const window = arguments.example(example);
            const int next[TWO] = {window[me.real(0)] >> 8, window[me.real(1)] >> 8};
            answers.add(x, stage, next, me.stored);
        } else {
            const int label[TWO] = {facts.label, facts.label};
            const bool counted[TWO] = {me.stored[0] && me.token[0] == 0, false};
            pool(me, x, stage, facts.length);
            answers.add(x, stage, label, counted);
        }
    }
    thread_block_barrier();
    const u32 sum = shared_start() + thread_index() * SUM_BYTES;
    store_double(sum, answers.loss);
    store_word(sum + COUNT, answers.correct);
    thread_block_barrier();
    if (thread_index() > 0) return;
    for (int i = 1; i < THREADS; i++) {
        answers.loss += load_double(sum + i * SUM_BYTES);
        answers.correct += load_word(sum + i * SUM_BYTES + COUNT);
    }
    arguments.correct[model * arguments.parts + part] = answers.correct;
    arguments.losses[model * arguments.parts + part] = answers.loss;
}
