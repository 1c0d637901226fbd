// Warp-specialized training: three examples at a time, each with four producer warps, which go forward and backward,
// and four consumer warps, which accumulate the weight gradients. Without gradients a producer needs so few registers
// that three examples fit, instead of the two of eight warps that do both.
//
//     a group of producers, for an example                                the consumers, for three examples
//
//     embed                            <── examples' masks and facts ─    draw dropout masks of the next three
//     forward: all but the last block
//     forward: the last, classifier    <── ATTENTION_EMPTY (previous) ─
//       or logits                      ── LOGITS_FULL ──>                 add the logits of all three to dU
//     for each block, the last first:
//         MLP backward                 ── MLP_FULL ──>                    add the MLP of all three to its gradients
//         attention backward: scores   <── MLP_EMPTY ──
//         attention backward: rest     ── ATTENTION_FULL ──>              add the attention of all three
//
// The consumers of a language model add to the gradients of its embedding after the attention of the first block, for
// all three windows at once (language_gradients.cuh).
//
// The order in which examples are added is fixed, so the bytes do not depend on timing. It also keeps the groups nearly
// in step, so that they share the instructions they fetch.
//
// Texts fill one to four tiles of 16 rows. Instead of one example a group takes a pack of them: two of at most two
// tiles each, or four of one. Each warp works on its own text, and rows are added in the same order.
#pragma once

constexpr int CONSUMER_REGISTERS = 224, PRODUCER_REGISTERS = 96;  // together all registers of a multiprocessor
static_assert(PRODUCER_WARPS * PRODUCER_REGISTERS + CONSUMER_WARPS * CONSUMER_REGISTERS <= 65536 / WARP,
              "or the consumers wait for registers forever");

// All threads update weights with the gradients that the consumers have written to device memory.
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

// ---- consumers ------------------------------------------------------------------------------------------------------

// Writes pack k of a step, a group's next, to this stage, and dropout masks of the tile with this consumer's number.
DEVICE void fill_stage(const TrainArguments& arguments, ProducerStorage storage, int stage, int step, int k) {
    const Thread me;
    const Pack pack = arguments.pack(step, k);
    if (PACKS && me.lane == 0) store_word(storage.pack(me, stage), pack.word());
    if (me.tile >= pack.all_tiles()) return;
    const int example = pack.example_of(me.tile);
    const u32 facts = arguments.facts[step * arguments.batch + pack.first + example];
    Dropout dropout;
    dropout.seed = arguments.seeds[model_index()];
    dropout.threshold = arguments.thresholds[model_index()];
    dropout.step = arguments.first_step + step;
    dropout.start_example(me, Facts(facts).rank, example * pack.tiles);
    if ((PACKS || me.tile == 0) && me.lane == 0) store_word(storage.facts(me, stage), facts);
    const u32 at = storage.masks(me, stage);
    #pragma unroll 1
    for (int word = 0; word <= BLOCKS; word++) {
        u32 kept = word ? draw(me, dropout, 2 * word - 1, [](int, int, bool) {}) : 0;
        kept |= draw(me, dropout, 2 * word, [](int, int, bool) {}) << (word ? KEPT_BITS : 0);
        store_word(at + word * GROUP_THREADS * FLOAT, kept);
    }
}

// Pack k of the step, a group's current one; `next_stage` is that of the next one.
DEVICE Pack current_pack(const Thread& me, ProducerStorage storage, int next_stage, int k) {
    if constexpr (PACKS) return Pack(load_word(storage.pack(me, 1 - next_stage)));
    else return {k, 1, TOKEN_TILES};
}

DEVICE void consume(const TrainArguments& arguments, const TrainMemory& memory, float* flat, double* loss) {
    Gradients gradients;
    const LanguageGradients language = {flat};
    int stages = 0;  // of the groups' next packs, one bit each
    for (int group = 0; group < GROUPS; group++) {
        fill_stage(arguments, memory.storage(group), 0, 0, group);
        arrive(ATTENTION_EMPTY + group);  // no rows to wait for yet
    }
    thread_block_barrier();
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        const int packs = arguments.packs_of(step);
        gradients.reset();
        #pragma unroll 1
        for (int first = 0; first < packs; first += GROUPS) {
            const Thread me;
            const int g = me.warp - PRODUCER_WARPS;
            const int groups = first + GROUPS <= packs ? GROUPS : packs - first;
            #pragma unroll 1
            for (int group = 0; group < groups; group++) {
                const int next = first + group + GROUPS;
                const bool same = next < packs;  // the group's next pack is of this step
                stages ^= 1 << group;
                if (!same && step + 1 == arguments.steps) continue;
                fill_stage(
                    arguments, memory.storage(group), stages >> group & 1, same ? step : step + 1, same ? next : group);
            }
            if constexpr (CAUSAL) {
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    wait(LOGITS_FULL + group);
                    gradients.add_logits(me, g, memory.example(group).logits());
                }
            }
            #pragma unroll 1
            for (int block = BLOCKS - 1; block >= 0; block--) {
                const FactorAddresses mlp = block_factors(me, CONSUMER_WARPS + g);
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    const Pack pack = current_pack(me, memory.storage(group), stages >> group & 1, first + group);
                    wait(MLP_FULL + group);
                    gradients.add_part<MLP>(mlp, memory.example(group), block, pack.all_tiles());
                    arrive(MLP_EMPTY + group);
                }
                const FactorAddresses attention = block_factors(me, g);
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    const Pack pack = current_pack(me, memory.storage(group), stages >> group & 1, first + group);
                    const Example example = memory.example(group);
                    wait(ATTENTION_FULL + group);
                    gradients.add_part<ATTENTION>(attention, example, block, pack.all_tiles());
                    if (CAUSAL && block == 0) continue;  // what follows is for all groups at once
                    if (block == 0) {
                        const InputRows input = memory.inputs(group)[~stages >> group & 1];
                        if (IMAGES) gradients.add_embedding(me, g, example, {input.base, input.offset});
                        const int set = pack.first / RECENT;
                        if ((pack.first + pack.examples) / RECENT > set) {  // the set is complete
                            gradients.add_classifier(me, g, memory.recent(set * RECENT));
                        }
                        if (g == CONSUMER_WARPS - 1 && me.lane == 0) add_losses(memory, pack);  // has the least work
                    }
                    arrive(ATTENTION_EMPTY + group);
                }
            }
            if constexpr (CAUSAL) {
                language.add_embedding(me, g, CONSUMER_WARPS, memory, groups, ~stages, first == 0);
                #pragma unroll 1
                for (int group = 0; group < groups; group++) {
                    if (g == CONSUMER_WARPS - 1 && me.lane == 0) add_losses(memory, {first + group, 1, TOKEN_TILES});
                    arrive(ATTENTION_EMPTY + group);
                }
            }
        }
        const Thread me;
        gradients.write_out(me, me.warp - PRODUCER_WARPS, flat);
        take_step(arguments, memory, flat, step);
    }
    if (thread_index() == (PRODUCER_WARPS + CONSUMER_WARPS - 1) * WARP) *loss = mean_loss(arguments, memory);
}

// ---- producers ------------------------------------------------------------------------------------------------------

// A warp without tokens only arrives at the barriers of its group's pack.
DEVICE void stand_by(int group) {
    #pragma unroll 1
    for (int block = 0; block < BLOCKS; block++) {
        if (!is_earlier(block)) wait(ATTENTION_EMPTY + group);
        group_barrier(group);  // keys and values are written
    }
    if (CAUSAL) arrive(LOGITS_FULL + group);
    else group_barrier(group);  // sums over tokens are written
    #pragma unroll 1
    for (int block = BLOCKS - 1; block >= 0; block--) {
        stand_by<MLP>(group, block);
        if (is_earlier(block)) wait(ATTENTION_EMPTY + group);
        stand_by<ATTENTION>(group, block);
    }
}

DEVICE void produce(const TrainArguments& arguments, const TrainMemory& memory, u32* workspace, const float* flat) {
    const Weights weights = memory.weights();
    int stage = 0;
    Dropout dropout;
    dropout.epsilon = arguments.epsilons[model_index()];
    {
        const Thread me;
        prefetch_pack(me, arguments, 0, me.group, memory.inputs(me.group)[stage]);
    }
    thread_block_barrier();  // the first examples' stages are written
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        const int packs = arguments.packs_of(step);
        #pragma unroll 1
        for (int k = Thread().group; k < packs; k += GROUPS) {
            const Thread me;
            const ProducerStorage storage = memory.storage(me.group);
            const InputStages inputs = memory.inputs(me.group);
            const TokenSums sums = memory.sums(me.group);
            Example example = memory.example(me.group);
            example.spill_buffer = {workspace};
            const Pack pack = current_pack(me, storage, 1 - stage, k);
            const Facts mine(load_word(storage.facts(me, stage)));
            dropout.masks = storage.masks(me, stage);

            Rows<DIM> x;
            embed(me, x, weights, inputs[stage], arguments.vectors(model_index()));
            drop_others(x, dropout.drawn(0));
            stage = 1 - stage;
            const auto prefetch_next = [&] {
                const bool same = k + GROUPS < packs;  // the next one is of this step
                if (!same && step + 1 == arguments.steps) return;
                prefetch_pack(me, arguments, same ? step : step + 1, same ? k + GROUPS : me.group, inputs[stage]);
            };
            if (!LEARNS_EMBEDDING) prefetch_next();  // consumers do not read words

            with_tokens(me, mine.length, pack, [&](const auto& tokens) {
                if (!tokens.busy) return stand_by(me.group);
                BlockMemory block_memory;
                #pragma unroll 1
                for (int block = 0; block < BLOCKS; block++) {
                    const BlockPlaces places = example.places(block);
                    if (!is_earlier(block)) {
                        wait(ATTENTION_EMPTY + me.group);  // of the previous example
                        if (LEARNS_EMBEDDING) prefetch_next();
                    }
                    forward_block<true>(Thread(), tokens, x, block, weights.block(block), places, dropout, block_memory);
                    if (is_earlier(block)) storage.spill(me, block_memory);
                }
                const int i = pack.first + pack.example_of(tokens.first_tile);
                if constexpr (CAUSAL) {
                    const InputRows own = inputs[1 - stage];
                    const Window window = {own.base, own.offset};
                    const float loss = finish_window(me, tokens, weights, example.logits(), window, dropout.epsilon, x);
                    if (me.lane == 0) store_float(memory.loss(i) + me.tile * memory.WARP_LOSS, loss);
                    arrive(LOGITS_FULL + me.group);
                } else {
                    const float loss =
                        finish(me, tokens, weights, sums, memory.recent(i), i % RECENT, mine.label, dropout.epsilon, x);
                    if (me.tile == tokens.first_tile && me.lane == 0) store_float(memory.loss(i), loss);
                }
                #pragma unroll 1
                for (int block = BLOCKS - 1; block >= 0; block--) {
                    const BlockWeights own = weights.block(block);
                    if (is_earlier(block)) storage.reload(me, block_memory);
                    backward_block<MLP>(Thread(), tokens, block, own, example, block_memory, dropout, x);
                    if (is_earlier(block)) wait(ATTENTION_EMPTY + me.group);
                    backward_block<ATTENTION>(Thread(), tokens, block, own, example, block_memory, dropout, x);
                }
                if (LEARNS_EMBEDDING) {
                    PackedRows<DIM> rows;
                    drop_others(x, dropout.drawn(0));
                    pack_rows(rows, x);
                    store_rows(me, example.d_embedded(), rows);
                    arrive(ATTENTION_FULL + me.group);
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
    u32* const workspace = arguments.workspace + model * WORKSPACE_WORDS;
    float* const flat = (float*)(workspace + SpillBuffer::WORDS);
    const float* const weights = arguments.weights + (long long)model * PARAMETERS;
    load_weights(weights, memory.weights(), {thread_index(), TRAIN_THREADS});
    clear(memory);
    thread_block_barrier();

    if (thread_index() >= PRODUCER_WARPS * WARP) {
        warpgroup_reg_alloc<CONSUMER_REGISTERS>();
        consume(arguments, memory, flat, arguments.losses + model);
    } else {
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        produce(arguments, memory, workspace, flat);
    }
}
