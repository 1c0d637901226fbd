// Training with roles: three examples at a time, each with four warps, the workers; and four adders, which hold the
// weight gradients. Without gradients a worker needs so few registers that three examples fit, instead of the two of
// eight warps that do both.
//
//     a group of workers, for an example                                  the adders, for three examples
//
//     embed                            <── examples' masks and facts ─    draw dropout masks of the next three
//     forward: all but the last block
//     forward: the last, classifier    <── ATTENTION_USED (previous) ─
//       or logits                      ── LOGITS_THERE ──>                add the logits of all three to dU
//     for each block, the last first:
//         MLP backward                 ── MLP_THERE ──>                   add the MLP of all three to its gradients
//         attention backward: scores   <── MLP_USED ──
//         attention backward: rest     ── ATTENTION_THERE ──>             add the attention of all three
//
// The adders of a language model add to the gradients of its embedding after the attention of the first block, for all
// three windows at once (language_gradients.cuh).
//
// The order in which examples are added is fixed, so the bytes do not depend on timing. It also keeps the groups nearly
// in step, so that they share the instructions they fetch.
//
// Texts fill one to four tiles of 16 rows. Instead of one example a group takes a pack of them: two of at most two
// tiles each, or four of one. Each warp works on its own text, and rows are added in the same order.
#pragma once

constexpr int ADDER_REGISTERS = 224, WORKER_REGISTERS = 96;  // together all registers of a multiprocessor
static_assert(WORKERS * WORKER_REGISTERS + ADDERS * ADDER_REGISTERS <= 65536 / WARP, "or the adders wait forever");

// All threads update weights with the gradients that the adders have written to device memory.
DEVICE void take_step(const TrainArguments& arguments, const TrainMemory& memory, const float* gradients, int step) {
    const Optimizer now = optimizer_of(arguments, model_index()).at_step(arguments.corrections + 2 * step);
    thread_block_barrier();
    constexpr int AT_ONCE = 8;  // read before one is written: the compiler cannot prove that they do not overlap
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
    thread_block_barrier();
    const float* const updated = now.weights;
    load_weights(updated, memory.weights(), {thread_index(), TRAIN_THREADS});
    thread_block_barrier();
}

// ---- adders ---------------------------------------------------------------------------------------------------------

// Hands pack k of a step to a group as its next, and dropout masks to the workers whose tile has this adder's number.
DEVICE void hand_out(const TrainArguments& arguments, Handouts handouts, int turn, int step, int k) {
    const Thread me;
    const Pack pack = arguments.pack(step, k);
    if (PACKS && me.lane == 0) store_word(handouts.pack(me, turn), pack.word());
    if (me.tile >= pack.all_tiles()) return;
    const int example = pack.example_of(me.tile);
    const u32 facts = arguments.facts[step * arguments.batch + pack.first + example];
    Dropout dropout;
    dropout.seed = arguments.seeds[model_index()];
    dropout.threshold = arguments.thresholds[model_index()];
    dropout.step = arguments.first_step + step;
    dropout.start_example(me, Facts(facts).rank, example * pack.tiles);
    if ((PACKS || me.tile == 0) && me.lane == 0) store_word(handouts.facts(me, turn), facts);
    const u32 at = handouts.masks(me, turn);
    #pragma unroll 1
    for (int word = 0; word <= BLOCKS; word++) {
        u32 kept = word ? draw(me, dropout, 2 * word - 1, [](int, int, bool) {}) : 0;
        kept |= draw(me, dropout, 2 * word, [](int, int, bool) {}) << (word ? KEPT_BITS : 0);
        store_word(at + word * GROUP_THREADS * FLOAT, kept);
    }
}

// Pack k of the step, which a group is working on; the next one has been handed out already.
DEVICE Pack pack_at_work(const Thread& me, Handouts handouts, int next_turn, int k) {
    if constexpr (PACKS) return Pack(load_word(handouts.pack(me, 1 - next_turn)));
    else return {k, 1, TOKEN_TILES};
}

DEVICE void add_up(const TrainArguments& arguments, const TrainMemory& memory, float* flat, double* loss) {
    Gradients gradients;
    const LanguageGradients language = {flat};
    int turns = 0;  // of the groups' handouts, one bit each
    for (int group = 0; group < GROUPS; group++) {
        hand_out(arguments, memory.handouts(group), 0, 0, group);
        arrive(ATTENTION_USED + group);  // no rows to wait for yet
    }
    thread_block_barrier();
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        const int packs = arguments.packs_of(step);
        gradients.reset();
        #pragma unroll 1
        for (int first = 0; first < packs; first += GROUPS) {
            const Thread me;
            const int g = me.warp - WORKERS;
            const int groups = first + GROUPS <= packs ? GROUPS : packs - first;
            #pragma unroll 1
            for (int group = 0; group < groups; group++) {
                const int next = first + group + GROUPS;
                const bool same = next < packs;  // the group's next pack is of this step
                turns ^= 1 << group;
                if (!same && step + 1 == arguments.steps) continue;
                hand_out(
                    arguments, memory.handouts(group), turns >> group & 1, same ? step : step + 1, same ? next : group);
            }
            if constexpr (CAUSAL) {
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    await(LOGITS_THERE + group);
                    gradients.add_logits(me, g, memory.example(group).logits());
                }
            }
            #pragma unroll 1
            for (int block = BLOCKS - 1; block >= 0; block--) {
                const FactorAddresses mlp = block_factors(me, ADDERS + g);
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    const Pack pack = pack_at_work(me, memory.handouts(group), turns >> group & 1, first + group);
                    await(MLP_THERE + group);
                    gradients.add_part<MLP>(mlp, memory.example(group), block, pack.all_tiles());
                    arrive(MLP_USED + group);
                }
                const FactorAddresses attention = block_factors(me, g);
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    const Pack pack = pack_at_work(me, memory.handouts(group), turns >> group & 1, first + group);
                    const Example example = memory.example(group);
                    await(ATTENTION_THERE + group);
                    gradients.add_part<ATTENTION>(attention, example, block, pack.all_tiles());
                    if (CAUSAL && block == 0) continue;  // what follows is for all groups at once
                    if (block == 0) {
                        const InputRows input = memory.inputs(group)[~turns >> group & 1];
                        if (IMAGES) gradients.add_embedding(me, g, example, {input.base, input.offset});
                        const int set = pack.first / RECENT;
                        if ((pack.first + pack.examples) / RECENT > set) {  // the set is complete
                            gradients.add_classifier(me, g, memory.recent(set * RECENT));
                        }
                        if (g == ADDERS - 1 && me.lane == 0) add_losses(memory, pack);  // has the least work
                    }
                    arrive(ATTENTION_USED + group);
                }
            }
            if constexpr (CAUSAL) {
                language.add_embedding(me, g, ADDERS, memory, groups, ~turns, first == 0);
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    if (g == ADDERS - 1 && me.lane == 0) add_losses(memory, {first + group, 1, TOKEN_TILES});
                    arrive(ATTENTION_USED + group);
                }
            }
        }
        const Thread me;
        gradients.write_down(me, me.warp - WORKERS, flat);
        take_step(arguments, memory, flat, step);
    }
    if (thread_index() == (WORKERS + ADDERS - 1) * WARP) *loss = mean_loss(arguments, memory);
}

// ---- workers --------------------------------------------------------------------------------------------------------

// A warp without tokens only arrives at the barriers of its group's pack.
DEVICE void stand_by(int group) {
    #pragma unroll 1
    for (int block = 0; block < BLOCKS; block++) {
        if (!is_earlier(block)) await(ATTENTION_USED + group);
        group_barrier(group);  // keys and values are written
    }
    if (CAUSAL) arrive(LOGITS_THERE + group);
    else group_barrier(group);  // sums over tokens are written
    #pragma unroll 1
    for (int block = BLOCKS - 1; block >= 0; block--) {
        stand_by<MLP>(group, block);
        if (is_earlier(block)) await(ATTENTION_USED + group);
        stand_by<ATTENTION>(group, block);
    }
}

DEVICE void work(const TrainArguments& arguments, const TrainMemory& memory, u32* parked, const float* flat) {
    const Weights weights = memory.weights();
    int turn = 0;  // of handouts and tokens
    Dropout dropout;
    dropout.epsilon = arguments.epsilons[model_index()];
    {
        const Thread me;
        start_pack(me, arguments, 0, me.group, memory.inputs(me.group)[turn]);
    }
    thread_block_barrier();  // the first examples' handouts are written
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        const int packs = arguments.packs_of(step);
        #pragma unroll 1
        for (int k = Thread().group; k < packs; k += GROUPS) {
            const Thread me;
            const Handouts handouts = memory.handouts(me.group);
            const InputBuffers inputs = memory.inputs(me.group);
            const TokenSums sums = memory.sums(me.group);
            Example example = memory.example(me.group);
            example.parking = {parked};
            const Pack pack = pack_at_work(me, handouts, 1 - turn, k);
            const Facts mine(load_word(handouts.facts(me, turn)));
            dropout.masks = handouts.masks(me, turn);

            Rows<DIM> x;
            embed(me, x, weights, inputs[turn], arguments.vectors(model_index()));
            drop_others(x, dropout.drawn(0));
            turn = 1 - turn;
            const auto start_next = [&] {
                const bool same = k + GROUPS < packs;  // the next one is of this step
                if (!same && step + 1 == arguments.steps) return;
                start_pack(me, arguments, same ? step : step + 1, same ? k + GROUPS : me.group, inputs[turn]);
            };
            if (!LEARNS_EMBEDDING) start_next();  // the adders do not read words

            with_tokens(me, mine.length, pack, [&](const auto& tokens) {
                if (!tokens.busy) return stand_by(me.group);
                BlockMemory block_memory;
                #pragma unroll 1
                for (int block = 0; block < BLOCKS; block++) {
                    const BlockPlaces places = example.places(block);
                    if (!is_earlier(block)) {
                        await(ATTENTION_USED + me.group);  // by the previous example
                        if (LEARNS_EMBEDDING) start_next();
                    }
                    forward_block<true>(Thread(), tokens, x, block, weights.block(block), places, dropout, block_memory);
                    if (is_earlier(block)) handouts.put(me, block_memory);
                }
                const int i = pack.first + pack.example_of(tokens.first_tile);
                if constexpr (CAUSAL) {
                    const InputRows own = inputs[1 - turn];
                    const Window window = {own.base, own.offset};
                    const float loss = finish_window(me, tokens, weights, example.logits(), window, dropout.epsilon, x);
                    if (me.lane == 0) store_float(memory.loss(i) + me.tile * memory.WARP_LOSS, loss);
                    arrive(LOGITS_THERE + me.group);
                } else {
                    const float loss =
                        finish(me, tokens, weights, sums, memory.recent(i), i % RECENT, mine.label, dropout.epsilon, x);
                    if (me.tile == tokens.first_tile && me.lane == 0) store_float(memory.loss(i), loss);
                }
                #pragma unroll 1
                for (int block = BLOCKS - 1; block >= 0; block--) {
                    const BlockWeights own = weights.block(block);
                    if (is_earlier(block)) handouts.get(me, block_memory);
                    backward_block<MLP>(Thread(), tokens, block, own, example, block_memory, dropout, x);
                    if (is_earlier(block)) await(ATTENTION_USED + me.group);
                    backward_block<ATTENTION>(Thread(), tokens, block, own, example, block_memory, dropout, x);
                }
                if (LEARNS_EMBEDDING) {
                    PackedRows<DIM> rows;
                    drop_others(x, dropout.drawn(0));
                    pack_rows(rows, x);
                    store_rows(me, example.d_embedded(), rows);
                    arrive(ATTENTION_THERE + me.group);
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
    clear(memory);
    thread_block_barrier();

    if (thread_index() >= WORKERS * WARP) {
        take_registers<ADDER_REGISTERS>();
        add_up(arguments, memory, flat, arguments.losses + model);
    } else {
        leave_registers<WORKER_REGISTERS>();
        work(arguments, memory, parked, flat);
    }
}
