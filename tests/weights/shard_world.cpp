#include "shard_world.hpp"

#include <algorithm>
#include <cstring>

namespace rollring::test {
namespace {

bool is_usable(const LayoutCase& given) {
    const auto plan = WeightPlan::make(given.from, given.to, given.options);
    if (!plan || plan->copies() == 0) return false;
    for (std::size_t i = 0; i < plan->copies(); i++) {
        const PlanCopy copy = plan->copy(i);
        if (given.from.memories()[copy.from].dtype != given.to.memories()[copy.to].dtype) {
            return false;
        }
    }
    return true;
}

// A layout's part that is on one rank.
std::vector<std::byte> part_of(const WeightLayout& layout, std::uint32_t rank) {
    WeightLayout part;
    for (const LayoutTensor& tensor : layout.tensors()) {
        REQUIRE_OK(part.add_tensor(tensor.name, tensor.shape, tensor.tied_to));
    }
    std::vector<std::uint32_t> number(layout.memories().size());
    for (std::size_t i = 0; i < layout.memories().size(); i++) {
        if (layout.memories()[i].rank != rank) continue;
        const auto added = part.add_memory(layout.memories()[i]);
        REQUIRE_OK(added);
        number[i] = *added;
    }
    for (std::size_t i = 0; i < layout.boxes(); i++) {
        LayoutBox box = layout.box(i);
        if (layout.memories()[box.memory].rank != rank) continue;
        box.memory = number[box.memory];
        REQUIRE_OK(part.add_box(box));
    }
    return part.to_bytes();
}

std::uint32_t ranks_of(const WeightLayout& layout) {
    std::uint32_t ranks = 0;
    for (const LayoutMemory& memory : layout.memories()) ranks = std::max(ranks, memory.rank + 1);
    return ranks;
}

}  // namespace

RankMemory ShardWorld::memory_of(const WeightLayout& layout, std::uint32_t rank) {
    RankMemory made;
    for (std::size_t i = 0; i < layout.memories().size(); i++) {
        const LayoutMemory& memory = layout.memories()[i];
        if (memory.rank != rank) continue;
        made.memories.push_back(i);
        auto& bytes = made.bytes.emplace_back(memory.elements * memory.dtype.bytes());
        made.list.push_back({.name = memory.name,
                             .dtype = memory.dtype,
                             .shape = {static_cast<std::int64_t>(memory.elements)},
                             .data = bytes.data()});
    }
    made.layout = part_of(layout, rank);
    return made;
}

ShardWorld::ShardWorld(unsigned seed, std::uint64_t ranks, std::uint64_t engines)
    : dice_(seed), seed_(seed) {
    LayoutCase given;
    for (;; dice_.seed(++seed_)) {
        given = random_layouts(dice_, ranks, engines);
        if (ranks_of(given.from) == ranks && is_usable(given)) break;
    }
    truth_ = truth_of(given);
    for (const LayoutTensor& tensor : given.from.tensors()) {
        std::size_t elements = 1;
        for (const std::int64_t extent : tensor.shape) elements *= static_cast<std::size_t>(extent);
        values_.emplace_back(elements);
    }
    const auto all = static_cast<std::uint32_t>(ranks);
    for (std::uint32_t rank = 0; rank < all; rank++) {
        RankMemory& memory = trainer_.emplace_back(memory_of(given.from, rank));
        auto made = Publisher::create(
            ring_.name(), memory.list,
            {.rank = rank, .ranks = all, .checksums = true, .layout = memory.layout});
        REQUIRE_OK(made);
        publishers_.push_back(std::make_unique<Publisher>(std::move(*made)));
    }
    for (std::uint32_t rank = 0; rank < ranks_of(given.to); rank++) {
        RankMemory memory = memory_of(given.to, rank);
        if (memory.list.empty()) continue;
        for (auto& bytes : memory.bytes) {
            for (std::byte& one : bytes) one = static_cast<std::byte>(dice_());
        }
        RandomEngine& engine = engines_.emplace_back();
        engine.name = "engine-" + std::to_string(rank);
        engine.held = std::move(memory);
        engine.wanted = engine.held.bytes;
    }
}

void ShardWorld::attach(RandomEngine& engine) {
    engine.subscriber.reset();
    engine.options.name = engine.name;
    engine.options.layout = engine.held.layout;
    engine.options.held_version = engine.live;
    auto made = Subscriber::attach(ring_.name(), engine.held.list, engine.options, patience());
    REQUIRE_OK(made);
    engine.subscriber = std::move(*made);
    engine.before.reset();
}

void ShardWorld::write(const Memories& elements, RankMemory& into) const {
    for (std::size_t i = 0; i < into.memories.size(); i++) {
        const auto& of_memory = elements[into.memories[i]];
        const std::size_t each = into.list[i].dtype.bytes();
        for (std::size_t at = 0; at < of_memory.size(); at++) {
            const Element& element = of_memory[at];
            if (element.values < 0) continue;
            const std::uint64_t value =
                values_[static_cast<std::size_t>(element.values)][element.index];
            std::memcpy(into.bytes[i].data() + at * each, &value, each);
        }
    }
}

void ShardWorld::change(double density) {
    std::bernoulli_distribution changes(density);
    for (auto& tensor : values_) {
        for (std::uint64_t& value : tensor) {
            if (changes(dice_)) value ^= (dice_() << 8) | (1 + dice_() % 255);
        }
    }
    for (RankMemory& rank : trainer_) write(truth_.has, rank);
}

Bytes ShardWorld::values_for(const RandomEngine& engine) const {
    RankMemory filled = engine.held;
    write(truth_.wants, filled);
    return filled.bytes;
}

std::vector<Transaction> ShardWorld::put(std::int64_t version) {
    std::vector<Transaction> open;
    for (const auto& publisher : publishers_) {
        auto begun = publisher->begin(version);
        REQUIRE_OK(begun);
        REQUIRE_OK(begun->put_all(patience()));
        REQUIRE_OK(begun->publish());
        open.push_back(std::move(*begun));
    }
    return open;
}

void ShardWorld::commit(std::vector<Transaction>& open) {
    std::vector<std::thread> threads;
    threads.reserve(open.size());
    for (auto& one : open) threads.emplace_back([&] { CHECK(one.commit(patience())); });
    for (auto& thread : threads) thread.join();
}

}  // namespace rollring::test
