// Training with roles: three samples at a time, each with four warps, the workers; and four adders, which have the weight
// gradients. Without gradients a worker needs so few registers that three samples find room, where eight warps that do
// both have two.
//
//     a group of workers, for a sample                                    the adders, for three samples
//
//     embed                            <── samples' masks and facts ──    draw what dropout keeps of the next three
//     forward, classifier
//     for each block, the last first:
//         MLP backward                 ── MLP_THERE ──>                   add the MLP of all three to its gradients
//         attention backward: scores   <── MLP_USED ──
//         attention backward: rest     ── ATTENTION_THERE ──>             add the attention of all three
//     the next sample's forward        <── ATTENTION_USED ──
//
// The order in which samples are added is fixed, so bytes depend on no timing. It also keeps the groups nearly in step,
// so that they share the instructions they fetch; apart, each would have to fetch them for itself.
#pragma once

// Together all that a multiprocessor has. Texts, of many lengths, leave workers more values to hold.
constexpr int ADDER_REGISTERS = IMAGES ? 224 : 200, WORKER_REGISTERS = IMAGES ? 96 : 104;
static_assert(WORKERS * WORKER_REGISTERS + ADDERS * ADDER_REGISTERS <= 65536 / WARP, "else the adders wait forever");

// All threads take a step with the gradients that the adders have written down.
DEVICE void take_step(const TrainArguments& arguments, const TrainMemory& memory, const float* gradients, int step) {
    const Optimizer now = optimizer_of(arguments, model_index()).at_step(arguments.corrections + 2 * step);
    block_barrier();
    constexpr int AT_ONCE = 8;  // read before one is written: the compiler cannot know that they lie apart
    #pragma unroll 1
    for (int first = thread_index(); first < PARAMETERS; first += AT_ONCE * TRAIN_THREADS) {
        float w[AT_ONCE], m[AT_ONCE], v[AT_ONCE], gradient[AT_ONCE];
        #pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int next = first + k * TRAIN_THREADS, i = next < PARAMETERS ? next : PARAMETERS - 1;
            w[k] = now.weights[i], m[k] = now.first[i], v[k] = now.second[i], gradient[k] = gradients[i];
        }
        #pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int i = first + k * TRAIN_THREADS;
            if (i >= PARAMETERS) break;
            now.step(w[k], m[k], v[k], gradient[k]);
            now.weights[i] = w[k], now.first[i] = m[k], now.second[i] = v[k];
        }
    }
    block_barrier();
    const float* const updated = now.weights;
    load_weights(updated, memory.weights(), {thread_index(), TRAIN_THREADS});
    block_barrier();
}

// ---- adders ---------------------------------------------------------------------------------------------------------

// Draws what dropout keeps of sample `index` of the epoch, for the workers whose tile has this adder's number.
DEVICE void hand_out(const TrainArguments& arguments, Handouts handouts, int turn, int step, int index) {
    const Thread me;
    const u32 facts = arguments.facts[index];
    Dropout dropout;
    dropout.seed = arguments.seeds[model_index()];
    dropout.threshold = arguments.thresholds[model_index()];
    dropout.step = arguments.first_step + step;
    dropout.start_sample(me, Facts(facts).place);
    if (me.tile == 0 && me.lane == 0) store_word(handouts.facts(turn), facts);
    const u32 at = handouts.masks(me, turn);
    #pragma unroll 1
    for (int word = 0; word <= BLOCKS; word++) {
        u32 kept = word ? draw(me, dropout, 2 * word - 1, [](int, int, bool) {}) : 0;
        kept |= draw(me, dropout, 2 * word, [](int, int, bool) {}) << (word ? KEPT_BITS : 0);
        store_word(at + word * GROUP_THREADS * FLOAT, kept);
    }
}

DEVICE void add_up(const TrainArguments& arguments, const TrainMemory& memory, float* flat, double* mean_loss) {
    const int batch = arguments.batch;
    Gradients gradients;
    double losses[2] = {};          // of even and odd samples apart, in every variant
    int turns = 0, buffers = 0;     // of each group's handouts and tokens, a bit for each
    for (int group = 0; group < GROUPS; group++) {
        hand_out(arguments, memory.handouts(group), 0, 0, group);
        bring(ATTENTION_USED + group);  // there is none yet
    }
    block_barrier();
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        gradients.reset();
        #pragma unroll 1
        for (int first = 0; first < batch; first += GROUPS) {
            const Thread me;
            const int g = me.warp - WORKERS;
            const int groups = first + GROUPS <= batch ? GROUPS : batch - first;
            #pragma unroll 1
            for (int group = 0; group < groups; group++) {
                const bool same = first + group + GROUPS < batch;  // the group's next sample is of this step
                const int next = same ? step * batch + first + group + GROUPS : (step + 1) * batch + group;
                turns ^= 1 << group;
                if (next >= arguments.steps * batch) continue;
                hand_out(arguments, memory.handouts(group), turns >> group & 1, same ? step : step + 1, next);
            }
            #pragma unroll 1
            for (int block = BLOCKS - 1; block >= 0; block--) {
                const FactorAddresses mlp = block_factors(me, ADDERS + g);
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    const int length = Facts(arguments.facts[step * batch + first + group]).length;
                    await(MLP_THERE + group);
                    gradients.add_part<MLP>(me, mlp, memory.sample(group), block, length);
                    bring(MLP_USED + group);
                }
                const FactorAddresses attention = block_factors(me, g);
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    const int i = first + group, length = Facts(arguments.facts[step * batch + i]).length;
                    const Sample sample = memory.sample(group);
                    await(ATTENTION_THERE + group);
                    gradients.add_part<ATTENTION>(me, attention, sample, block, length);
                    if (block == 0) {
                        if (IMAGES) gradients.add_embedding(me, g, sample, memory.input(group, buffers >> group & 1));
                        buffers ^= 1 << group;
                        if (i % RECENT == RECENT - 1) {
                            gradients.add_classifier(me, g, memory.recent(i));
                            #pragma unroll
                            for (int k = 0; k < RECENT; k++) {
                                losses[k % 2] += load_float(memory.loss(i - RECENT + 1 + k));
                            }
                        }
                    }
                    bring(ATTENTION_USED + group);
                }
            }
        }
        const Thread me;
        gradients.write_down(me, me.warp - WORKERS, flat);
        take_step(arguments, memory, flat, step);
    }
    if (thread_index() == WORKERS * WARP) *mean_loss = (losses[0] + losses[1]) / ((double)arguments.steps * batch);
}

// ---- workers --------------------------------------------------------------------------------------------------------

DEVICE void work(const TrainArguments& arguments, const TrainMemory& memory, u32* parked, const float* flat) {
    const Weights weights = memory.weights();
    const int batch = arguments.batch, total = arguments.steps * batch;
    int buffer = 0, turn = 0;
    Dropout dropout;
    dropout.epsilon = arguments.epsilons[model_index()];
    {
        const Thread me;
        start_tokens(me, arguments.sample(me.group), memory.inputs(me.group)[buffer]);
    }
    block_barrier();  // the first samples' handouts are there
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        #pragma unroll 1
        for (int i = Thread().group; i < batch; i += GROUPS) {
            const Thread me;
            const Handouts handouts = memory.handouts(me.group);
            const InputBuffers inputs = memory.inputs(me.group);
            const TokenSums sums = memory.sums(me.group);
            Sample sample = memory.sample(me.group);
            sample.parking = {parked};
            const int next = i + GROUPS < batch ? step * batch + i + GROUPS : (step + 1) * batch + me.group;
            const Facts mine(load_word(handouts.facts(turn)));
            dropout.masks = handouts.masks(me, turn);
            turn = 1 - turn;

            Rows<DIM> x;
            copies_done();
            warp_barrier();
            embed(me, x, weights, inputs[buffer], arguments.positions);
            warp_barrier();  // all lanes have read what the next copy may overwrite
            buffer = InputBuffers::COUNT - 1 - buffer;
            drop_others(x, dropout.drawn(0));
            await(ATTENTION_USED + me.group);
            if (next < total) start_tokens(me, arguments.sample(next), inputs[buffer]);

            with_tokens(me, mine.length, [&](const auto& tokens) {
                BlockMemory block_memory;
                #pragma unroll 1
                for (int block = 0; block < BLOCKS; block++) {
                    const BlockPlaces places = sample.places(block);
                    forward_block<true>(Thread(), tokens, x, block, weights.block(block), places, dropout, block_memory);
                    if (is_earlier(block)) handouts.put(me, block_memory);
                }
                PerRow<float> r;
                PackedRows<DIM> normalized;
                if (tokens.busy) {
                    normalize(x, r, dropout.epsilon, tokens.real);
                    pack_rows(normalized, x);
                    share_sums(me, x, sums);
                }
                group_barrier(me.group);
                if (tokens.busy) {
                    const float loss = classify_and_return(
                        me, tokens, weights, sums, memory.recent(i), i % RECENT, mine.label, x);
                    if (me.tile == 0 && me.lane == 0) store_float(memory.loss(i), loss);
                    normalize_backward(x, normalized, r);
                }
                #pragma unroll 1
                for (int block = BLOCKS - 1; block >= 0; block--) {
                    const BlockWeights own = weights.block(block);
                    if (is_earlier(block)) handouts.get(me, block_memory);
                    backward_block<MLP>(Thread(), tokens, block, own, sample, block_memory, dropout, x);
                    if (is_earlier(block)) await(ATTENTION_USED + me.group);
                    backward_block<ATTENTION>(Thread(), tokens, block, own, sample, block_memory, dropout, x);
                }
                if (IMAGES) {
                    PackedRows<DIM> rows;
                    drop_others(x, dropout.drawn(0));
                    pack_rows(rows, x);
                    store_rows(me, sample.d_embedded(), rows);
                    bring(ATTENTION_THERE + me.group);
                }
            });
        }
        take_step(arguments, memory, flat, step);
    }
}

extern "C" __global__ void __launch_bounds__(TRAIN_THREADS, 1) train_epoch(const TrainArguments arguments) {
    const int model = model_index();
    if (!arguments.alive[model]) return;
    const TrainMemory memory = {shared_start()};
    u32* const parked = arguments.parked + model * PARKED_WORDS;
    float* const flat = (float*)(parked + Parking::WORDS);
    const float* const weights = arguments.weights + (long long)model * PARAMETERS;
    load_weights(weights, memory.weights(), {thread_index(), TRAIN_THREADS});
    clear_inputs(memory);
    block_barrier();

    if (thread_index() >= WORKERS * WARP) {
        take_registers<ADDER_REGISTERS>();
        add_up(arguments, memory, flat, arguments.losses + model);
    } else {
        leave_registers<WORKER_REGISTERS>();
        work(arguments, memory, parked, flat);
    }
}
