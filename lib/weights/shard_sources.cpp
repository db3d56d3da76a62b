#include "shard_sources.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "control_socket.hpp"
#include "tensor_memory.hpp"

namespace rollring::weights {
namespace {

// The engine's tensor for each memory of its layout.
Result<std::vector<const WeightTensor*>> match_memories(const WeightLayout& engine,
                                                        std::span<const WeightTensor> into) {
    std::unordered_map<std::string_view, const WeightTensor*> names;
    for (const WeightTensor& tensor : into) {
        if (names.emplace(tensor.name, &tensor).second) continue;
        return refused(Errc::invalid_argument,
                       fmt::format("tensor '{}' is given twice", tensor.name));
    }
    std::vector<const WeightTensor*> found;
    for (const LayoutMemory& memory : engine.memories()) {
        const auto at = names.find(memory.name);
        if (at == names.end()) {
            return refused(Errc::layout_mismatch,
                           fmt::format("memory '{}' of the engine's layout is not among its "
                                       "tensors",
                                       memory.name));
        }
        const WeightTensor& tensor = *at->second;
        if (tensor.data == nullptr && memory.elements != 0) {
            return refused(Errc::invalid_argument,
                           fmt::format("tensor '{}' has no address", tensor.name));
        }
        const auto elements = count_elements(tensor);
        if (!elements) return std::unexpected(elements.error());
        const bool dense = coalesce(tensor.shape, tensor.strides).shape.empty();
        if (tensor.dtype != memory.dtype || *elements != memory.elements || !dense || tensor.view) {
            return refused(
                Errc::layout_mismatch,
                fmt::format("tensor '{}' has {} elements of {}, and {} elements of {} in "
                            "the engine's layout; or it is not contiguous",
                            tensor.name, *elements, tensor.dtype.to_string(), memory.elements,
                            memory.dtype.to_string()));
        }
        found.push_back(&tensor);
        names.erase(at);
    }
    if (names.empty()) return found;
    return refused(Errc::layout_mismatch,
                   fmt::format("no memory of the engine's layout names tensor '{}', so no version "
                               "would reach it",
                               names.begin()->first));
}

// Numbers for the trainer's GPUs and the engine's; the host is one device as well.
PlanOptions devices_of(std::span<const Manifest> ranks, const WeightLayout& engine,
                       const SubscriberOptions& options, const device::Gpus& gpus) {
    std::vector<GpuUuid> known;
    const auto number = [&](const GpuUuid& gpu) {
        const auto at = std::ranges::find(known, gpu);
        const auto index = static_cast<std::uint32_t>(at - known.begin());
        if (at == known.end()) known.push_back(gpu);
        return index;
    };
    PlanOptions made;
    for (const Manifest& rank : ranks) made.from_devices.push_back(number(rank.gpu));
    GpuUuid own;
    if (options.device.is_gpu()) {
        const auto visible = gpus.visible();
        const auto ordinal = static_cast<std::size_t>(options.device.gpu);
        if (ordinal < visible.size()) own = visible[ordinal];
    }
    std::uint32_t ranks_max = 0;
    for (const LayoutMemory& memory : engine.memories()) {
        ranks_max = std::max(ranks_max, memory.rank + 1);
    }
    made.to_devices.assign(ranks_max, number(own));
    return made;
}

// Memories of the engine that share bytes: tied parameters under several names. The plan keeps
// elements apart within one memory only.
bool share_memory(std::vector<const WeightTensor*> memories) {
    const auto begin = [](const WeightTensor* one) {
        return reinterpret_cast<std::uintptr_t>(one->data);
    };
    std::erase_if(memories, [](const WeightTensor* one) { return *count_elements(*one) == 0; });
    std::ranges::sort(memories, {}, begin);
    const auto reaches = [&](const WeightTensor* one, const WeightTensor* next) {
        return begin(one) + *count_elements(*one) * one->dtype.bytes() > begin(next);
    };
    return std::ranges::adjacent_find(memories, reaches) != memories.end();
}

WeightTensor view_of(const PlanCopy& copy, const LayoutMemory& from, const WeightTensor& to) {
    return {.name = from.name,
            .dtype = to.dtype,
            .shape = {copy.extents.begin(), copy.extents.end()},
            .strides = {copy.to_strides.begin(), copy.to_strides.end()},
            .data = static_cast<std::byte*>(to.data) + copy.to_offset * to.dtype.bytes(),
            .view = TensorView{.offset = copy.from_offset,
                               .strides = {copy.from_strides.begin(), copy.from_strides.end()}}};
}

std::vector<TensorInfo> infos_of(const WeightLayout& trainer) {
    std::vector<TensorInfo> infos;
    for (const LayoutTensor& tensor : trainer.tensors()) {
        infos.push_back(
            {.name = tensor.name, .shape = tensor.shape, .tag = {}, .tied_to = tensor.tied_to});
    }
    for (std::size_t i = 0; i < trainer.boxes(); i++) {
        const LayoutBox box = trainer.box(i);
        infos[box.tensor].dtype = trainer.memories()[box.memory].dtype;
    }
    for (TensorInfo& info : infos) {
        info.bytes = info.dtype.bytes();
        for (const std::int64_t extent : info.shape) {
            info.bytes *= static_cast<std::uint64_t>(extent);
        }
    }
    return infos;
}

// Whether views of different elements share memory, across ranks too: they would be written twice.
// layout_mismatch, with the engine's names.
Result<void> check_apart(const WeightPlan& plan, std::span<const WeightTensor* const> memories) {
    std::vector<WeightTensor> views;
    views.reserve(plan.copies());
    std::vector<const WeightTensor*> written;
    using Dims = std::vector<std::int64_t>;
    std::set<std::tuple<std::uint32_t, std::uint64_t, const void*, Dims, Dims, Dims>> known;
    for (std::size_t i = 0; i < plan.copies(); i++) {
        const PlanCopy copy = plan.copy(i);
        WeightTensor view = view_of(copy, {}, *memories[copy.to]);
        // Tied tensors may have the same source, and the same boxes: the copy is made once.
        const bool fresh = known
                               .emplace(copy.from, copy.from_offset, view.data, view.shape,
                                        view.strides, view.view->strides)
                               .second;
        if (!fresh) continue;
        view.name = memories[copy.to]->name;
        view.view.reset();
        written.push_back(&views.emplace_back(std::move(view)));
    }
    const auto shared = find_overlap(written);
    if (!shared) return {};
    return refused(Errc::layout_mismatch,
                   fmt::format("tensors '{}' and '{}' of the engine share memory, and are two in "
                               "the trainer: one would overwrite the other",
                               shared->first, shared->second));
}

}  // namespace

Result<WeightLayout> layout_of(std::span<const Manifest> ranks) {
    WeightLayout all;
    for (std::size_t rank = 0; rank < ranks.size(); rank++) {
        if (ranks[rank].layout.empty()) {
            return refused(Errc::layout_mismatch,
                           fmt::format("rank {} of the trainer publishes whole tensors, and an "
                                       "engine with a layout takes shards: publish with "
                                       "PublisherOptions::layout, or attach without a layout",
                                       rank));
        }
        const auto part = WeightLayout::from_bytes(ranks[rank].layout);
        if (!part) return std::unexpected(part.error());
        if (auto added = all.add(*part); !added) {
            return refused(Errc::layout_mismatch,
                           fmt::format("rank {} of the trainer: {}", rank, added.error().message));
        }
    }
    return all;
}

Result<std::vector<Manifest>> manifests_of_ranks(std::string_view ring, const RingLink& link,
                                                 std::string_view name, Patience& patience) {
    std::vector<Manifest> made;
    std::uint32_t ranks = 1;
    for (std::uint32_t rank = 0; rank < ranks; rank++) {
        const auto socket = connect_to(ring, rank);
        if (!socket) return std::unexpected(socket.error());
        auto welcome = greet(socket->get(), MessageKind::hello_observer, link, name, patience);
        if (!welcome) return std::unexpected(welcome.error());
        if (rank == 0) ranks = std::min(welcome->message.ranks, ranks_limit);
        auto manifest = manifest_of(*welcome);
        if (!manifest) return std::unexpected(manifest.error());
        made.push_back(std::move(*manifest));
    }
    return made;
}

Result<ShardSources> shard_sources(std::span<const Manifest> ranks, const WeightLayout& engine,
                                   std::span<const WeightTensor> into,
                                   const SubscriberOptions& options, const device::Gpus& gpus) {
    const auto trainer = layout_of(ranks);
    if (!trainer) return std::unexpected(trainer.error());
    const auto memories = match_memories(engine, into);
    if (!memories) return std::unexpected(memories.error());
    const auto plan = WeightPlan::make(*trainer, engine, devices_of(ranks, engine, options, gpus));
    if (!plan) return std::unexpected(plan.error());
    ShardSources made;
    made.tensors = infos_of(*trainer);
    made.into.resize(ranks.size());
    for (std::size_t i = 0; i < plan->copies(); i++) {
        const PlanCopy copy = plan->copy(i);
        const LayoutMemory& from = trainer->memories()[copy.from];
        const WeightTensor& to = *(*memories)[copy.to];
        if (from.dtype != to.dtype) {
            return refused(Errc::unsupported,
                           fmt::format("tensor '{}': rank {} of the trainer publishes it as {}, "
                                       "and the engine has {}: publish it in that dtype",
                                       engine.tensors()[copy.tensor].name, from.rank,
                                       from.dtype.to_string(), to.dtype.to_string()));
        }
        made.into[from.rank].push_back(view_of(copy, from, to));
    }
    if (share_memory(*memories)) {
        if (auto apart = check_apart(*plan, *memories); !apart) {
            return std::unexpected(apart.error());
        }
    }
    return made;
}

}  // namespace rollring::weights
