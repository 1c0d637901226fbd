// Training in rounds of one or two examples or packs (EXAMPLES_AT_ONCE), each with four of the eight warps. After the
// backward pass of a block, or of one of its parts (TAKE_TURNS), all eight add the examples to their weight gradients;
// at the end of a step every warp updates the weights whose gradients it holds. Every 16 examples end with a round
// (engine.py).
#pragma once

// Facts about this warp's example in pack k of a step.
DEVICE u32 facts_of(const Thread& me, const TrainArguments& arguments, int step, int k) {
    const Pack pack = arguments.pack(step, k);
    if (me.tile >= pack.all_tiles()) return 0;
    return arguments.facts[step * arguments.batch + pack.first + pack.example_of(me.tile)];
}

extern "C" __global__ void __launch_bounds__(TRAIN_THREADS, 1) train_epoch(const TrainArguments arguments) {
    const int model = model_index();
    if (!arguments.alive[model]) return;
    const Thread me;
    const TrainMemory memory = {shared_start()};
    const Weights weights = memory.weights();
    const RecentExamples recent = memory.recent();
    const TokenSums sums = memory.sums(me.group);
    const InputStages inputs = memory.inputs(me.group);
    const bool active = GROUPS * GROUP_WARPS == WARPS || me.group < GROUPS;  // on an example
    Example example = memory.example(me.group);
    example.spill_buffer = {arguments.workspace + model * WORKSPACE_WORDS};
    const Optimizer rule = optimizer_of(arguments, model);
    Dropout dropout;
    dropout.seed = arguments.seeds[model];
    dropout.threshold = arguments.thresholds[model];
    dropout.epsilon = arguments.epsilons[model];

    const Loader all_threads = {thread_index(), TRAIN_THREADS};
    int resident = NO_BLOCK;  // the block whose weights are in shared memory, where blocks take turns
    load_weights(rule.weights, weights, all_threads);
    clear(memory);
    thread_block_barrier();

    int stage = 0;
    // one round ahead, so that no warp waits for device memory
    u32 next_facts = 0;
    if (active) {
        prefetch_pack(me, arguments, 0, me.group, inputs[stage]);
        next_facts = facts_of(me, arguments, 0, me.group);
    }
    Gradients gradients(arguments.workspace + model * WORKSPACE_WORDS + SpillBuffer::WORDS);
    const LanguageGradients language = {
        (float*)(arguments.workspace + model * WORKSPACE_WORDS + SpillBuffer::WORDS + Gradients::WORDS)};
    #pragma unroll 1
    for (int step = 0; step < arguments.steps; step++) {
        const int packs = arguments.packs_of(step);
        gradients.reset();
        dropout.step = arguments.first_step + step;
        #pragma unroll 1
        for (int first = 0; first < packs; first += GROUPS) {
            const Thread me;  // read again: otherwise derived addresses stay in registers that the gradients need
            const Pack pack0 = arguments.pack(step, first), pack1 = arguments.pack(step, first + GROUPS - 1);
            const Pack pack = me.group ? pack1 : pack0;
            const PerGroup<int> tiles = {pack0.all_tiles(), pack1.all_tiles()};
            const Facts mine(next_facts);
            const int own = pack.example_of(me.tile), i = pack.first + own;
            dropout.start_example(me, mine.rank, own * pack.tiles);

            Rows<DIM> x;
            if (active) embed(me, x, weights, inputs[stage], arguments.vectors(model));
            stage = 1 - stage;
            const bool same = first + GROUPS < packs;  // the next round is of this step
            if (active && (same || step + 1 < arguments.steps)) {
                const int next_step = same ? step : step + 1, next = (same ? first + GROUPS : 0) + me.group;
                prefetch_pack(me, arguments, next_step, next, inputs[stage]);
                next_facts = facts_of(me, arguments, next_step, next);
            }
            const u32 kept_first = active ? drop(me, x, dropout, 0) : 0;

            BlockMemory block_memory = {}, earlier;
            #pragma unroll 1
            for (int from = 0; from < BLOCKS; from += Weights::RESIDENT) {
                make_resident(rule.weights, weights, all_threads, from, resident);
                if (active) with_tokens(me, mine.length, pack, [&](const auto& tokens) {
                    #pragma unroll 1
                    for (int block = from; block < from + Weights::RESIDENT; block++) {
                        if (!SPILL_GRADIENTS) earlier = block_memory;
                        const BlockPlaces places = example.places(block);
                        forward_block<true>(me, tokens, x, block, weights.block(block), places, dropout, block_memory);
                        if (SPILL_GRADIENTS && is_earlier(block)) spill(example.spill_buffer, block, block_memory);
                    }
                    if (CAUSAL || from + Weights::RESIDENT < BLOCKS) return;
                    const float loss =
                        finish(me, tokens, weights, sums, recent, i % RECENT, mine.label, dropout.epsilon, x);
                    if (tokens.busy && me.tile == tokens.first_tile && me.lane == 0) store_float(memory.loss(i), loss);
                });
            }
            if constexpr (CAUSAL) {
                const InputRows own = inputs[1 - stage];
                if (active) with_tokens(me, mine.length, pack, [&](const auto& tokens) {
                    const Window window = {own.base, own.offset};
                    const float loss = finish_window(me, tokens, weights, example.logits(), window, dropout.epsilon, x);
                    if (tokens.busy && me.lane == 0) store_float(memory.loss(i) + me.tile * memory.WARP_LOSS, loss);
                });
                thread_block_barrier();
                language.add_logits(me, me.warp, WARPS, memory, GROUPS, first == 0);
                thread_block_barrier();
            }

            #pragma unroll 1
            for (int block = BLOCKS - 1; block >= 0; block--) {
                make_resident(rule.weights, weights, all_threads, block, resident);
                if (SPILL_GRADIENTS && is_earlier(block) && active) reload(example.spill_buffer, block, block_memory);
                if constexpr (TAKE_TURNS) {
                    if (active) with_tokens(me, mine.length, pack, [&](const auto& tokens) {
                        backward_block<MLP>(me, tokens, block, weights.block(block), example, block_memory, dropout, x);
                    });
                    thread_block_barrier();
                    gradients.add_examples<MLP>(me, memory, block, first, tiles, 1 - stage);
                    thread_block_barrier();
                }
                constexpr Part rest = TAKE_TURNS ? ATTENTION : WHOLE;
                if (active) with_tokens(me, mine.length, pack, [&](const auto& tokens) {
                    backward_block<rest>(me, tokens, block, weights.block(block), example, block_memory, dropout, x);
                });
                if (!SPILL_GRADIENTS) block_memory = earlier;
                if (LEARNS_EMBEDDING && block == 0 && active) {
                    PackedRows<DIM> rows;
                    drop_others(x, kept_first);
                    pack_rows(rows, x);
                    store_rows(me, example.d_embedded(), rows);
                }
                thread_block_barrier();
                gradients.add_examples<rest>(me, memory, block, first, tiles, 1 - stage);
                if constexpr (CAUSAL) {
                    if (block == 0) {
                        language.add_embedding(me, me.warp, WARPS, memory, GROUPS, stage ? 0 : ~0, first == 0);
                    }
                } else if (block == 0 && (pack1.first + pack1.examples) % RECENT == 0) {  // 16 more are complete
                    gradients.add_classifier(me, recent, pack1.first < RECENT);
                }
                if (block == 0 && thread_index() == 0) {
                    add_losses(memory, pack0);
                    if (GROUPS > 1) add_losses(memory, pack1);
                }
                thread_block_barrier();
            }
        }
        const Thread me;
        if constexpr (CAUSAL) language.apply(me, rule.at_step(arguments.corrections + 2 * step), weights);
        gradients.apply(me, rule.at_step(arguments.corrections + 2 * step), weights);
        resident = NO_BLOCK;
        thread_block_barrier();
    }
    if (thread_index() == 0) arguments.losses[model] = mean_loss(arguments, memory);
}
