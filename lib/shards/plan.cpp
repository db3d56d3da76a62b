#include "rollring/weight_plan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "box_memory.hpp"
#include "copy_rows.hpp"
#include "cover.hpp"
#include "source_boxes.hpp"

namespace rollring {
namespace {

using namespace shards;

// Copies that are merged have this many dimensions at most, which a TensorView can have; one of a
// tensor with more may exceed it.
constexpr std::size_t copy_dims_max = 6;

std::string box_text(const IndexBox& box) {
    std::string text = "[";
    for (std::size_t i = 0; i < box.dims; i++) {
        text += fmt::format("{}{}:{}", i == 0 ? "" : ", ", box.at[i].begin, box.at[i].end);
    }
    return text + "]";
}

// The number of the element at the box's first index.
std::uint64_t element_at(const LayoutBox& box, const IndexBox& part) {
    std::uint64_t element = box.offset;
    for (std::size_t i = 0; i < part.dims; i++) {
        element += static_cast<std::uint64_t>((part.at[i].begin - box.start[i]) * box.strides[i]);
    }
    return element;
}

}  // namespace

// The steps of a plan; each relies on those before it.
class PlanBuilder {
  public:
    PlanBuilder(const WeightLayout& from, const WeightLayout& to, const PlanOptions& options)
        : from_(from), to_(to), options_(options) {}

    Result<WeightPlan> build() {
        for (const auto step : {&PlanBuilder::check_devices, &PlanBuilder::match_tensors,
                                &PlanBuilder::check_memory, &PlanBuilder::cover_all}) {
            if (auto done = (this->*step)(); !done) return std::unexpected(done.error());
        }
        finish();
        return std::move(made_);
    }

  private:
    [[nodiscard]] std::uint32_t device(bool engine, std::uint32_t rank) const {
        const auto& devices = engine ? options_.to_devices : options_.from_devices;
        return devices.empty() ? rank : devices[rank];
    }

    Result<void> check_devices() {
        const auto named = [](const WeightLayout& layout,
                              const std::vector<std::uint32_t>& devices) {
            return devices.empty() || std::ranges::all_of(layout.memories(), [&](const auto& one) {
                       return one.rank < devices.size();
                   });
        };
        if (named(from_, options_.from_devices) && named(to_, options_.to_devices)) return {};
        return refused(Errc::invalid_argument, "PlanOptions names no device for a rank");
    }

    std::unexpected<Error> mismatch(std::uint32_t tensor, std::string_view what) const {
        return refused(Errc::layout_mismatch,
                       fmt::format("tensor '{}': {}", to_.tensors()[tensor].name, what));
    }

    // The trainer's tensor for each of the engine's, with ties resolved.
    Result<void> match_tensors() {
        std::unordered_map<std::string_view, std::uint32_t> names;
        const auto theirs = from_.tensors();
        names.reserve(theirs.size());
        for (std::uint32_t i = 0; i < theirs.size(); i++) names.emplace(theirs[i].name, i);
        sources_.resize(to_.tensors().size());
        for (std::uint32_t i = 0; i < to_.tensors().size(); i++) {
            const LayoutTensor& wanted = to_.tensors()[i];
            auto found = names.find(wanted.name);
            if (found == names.end() && wanted.tied_to >= 0) {
                found = names.find(to_.tensors()[static_cast<std::size_t>(wanted.tied_to)].name);
            }
            if (found == names.end()) return mismatch(i, "the trainer does not have it");
            if (theirs[found->second].shape != wanted.shape) {
                return mismatch(i, "the trainer's has another shape");
            }
            sources_[i] = owner(found->second);
            if (wanted.tied_to < 0) continue;
            const auto tie = static_cast<std::size_t>(wanted.tied_to);
            if (sources_[tie] == sources_[i]) continue;
            return mismatch(i, fmt::format("the engine ties it to '{}', the trainer has values of "
                                           "its own for it",
                                           to_.tensors()[tie].name));
        }
        return {};
    }

    [[nodiscard]] std::uint32_t owner(std::uint32_t tensor) const {
        const std::int64_t tie = from_.tensors()[tensor].tied_to;
        return tie < 0 ? tensor : static_cast<std::uint32_t>(tie);
    }

    Result<void> check_memory() {
        auto checked = check_shared_memory(to_, sources_);
        if (!checked) return std::unexpected(checked.error());
        repeated_ = std::move(checked->repeated);
        made_.padding_elements_ = checked->padding_elements;
        return {};
    }

    Result<void> cover_all() {
        SourceBoxes sources(from_, options_.from_devices);
        for (std::size_t i = 0; i < to_.boxes(); i++) {
            if (repeated_[i]) continue;
            if (auto covered = cover(i, sources); !covered) return covered;
        }
        return {};
    }

    Result<void> cover(std::size_t index, SourceBoxes& sources) {
        const LayoutBox box = to_.box(index);
        const LayoutMemory& memory = to_.memories()[box.memory];
        const WantedBox wanted{.tensor = sources_[box.tensor],
                               .box = IndexBox::of(box.start, box.length),
                               .dtype = memory.dtype,
                               .rank = memory.rank,
                               .device = device(true, memory.rank)};
        const auto missing = sources.cover(wanted, [&](std::size_t from, const IndexBox& part) {
            add_copy(from_.box(from), box, part);
        });
        if (!missing) return {};
        if (missing->other_dtype) {
            const LayoutMemory& has = from_.memories()[from_.box(*missing->other_dtype).memory];
            return mismatch(box.tensor,
                            fmt::format("rank {} of the trainer has it as {}, rank {} of the "
                                        "engine wants {}",
                                        has.rank, has.dtype.to_string(), memory.rank,
                                        memory.dtype.to_string()));
        }
        return mismatch(box.tensor,
                        fmt::format("no rank of the trainer has its elements {}, which are in the "
                                    "engine's box {}",
                                    box_text(missing->part), to_.text_of(index)));
    }

    void add_copy(const LayoutBox& from, const LayoutBox& to, const IndexBox& part) {
        std::array<CopyDim, dims_max> dims;
        std::size_t count = 0;
        std::uint64_t elements = 1;
        for (std::size_t i = 0; i < part.dims; i++) {
            const std::int64_t extent = part.at[i].end - part.at[i].begin;
            elements *= static_cast<std::uint64_t>(extent);
            if (extent > 1) dims[count++] = {extent, from.strides[i], to.strides[i]};
        }
        rows_.add({.from_offset = element_at(from, part),
                   .to_offset = element_at(to, part),
                   .tensor = to.tensor,
                   .from = from.memory,
                   .to = to.memory,
                   .dims = 0,
                   .first_dim = 0},
                  std::span(dims).first(count));
        count_bytes(from, to, elements * to_.memories()[to.memory].dtype.bytes());
    }

    void count_bytes(const LayoutBox& from, const LayoutBox& to, std::uint64_t bytes) {
        const std::uint32_t from_rank = from_.memories()[from.memory].rank;
        const std::uint32_t to_rank = to_.memories()[to.memory].rank;
        const bool local = device(false, from_rank) == device(true, to_rank);
        PlanTraffic& pair = traffic_[{from_rank, to_rank}];
        pair.from_rank = from_rank;
        pair.to_rank = to_rank;
        pair.local = local;
        pair.bytes += bytes;
        if (made_.tensors_.empty()) {
            made_.tensors_.resize(to_.tensors().size());
            for (std::uint32_t i = 0; i < made_.tensors_.size(); i++) made_.tensors_[i].tensor = i;
        }
        PlanTensor& tensor = made_.tensors_[to.tensor];
        (local ? tensor.local_bytes : tensor.remote_bytes) += bytes;
    }

    void finish() {
        const CopyRows merged = merge(rows_, copy_dims_max);
        made_.rows_.reserve(merged.rows.size());
        for (const CopyRow& row : merged.rows) {
            made_.rows_.push_back({row.from_offset, row.to_offset, row.tensor, row.from, row.to,
                                   row.dims, made_.dims_.size()});
            const auto dims = merged.dims_of(row);
            for (const auto& dim : dims) made_.dims_.push_back(dim.extent);
            for (const auto& dim : dims) made_.dims_.push_back(dim.from);
            for (const auto& dim : dims) made_.dims_.push_back(dim.to);
            traffic_[{from_.memories()[row.from].rank, to_.memories()[row.to].rank}].copies++;
        }
        for (const auto& [ranks, pair] : traffic_) made_.traffic_.push_back(pair);
        std::erase_if(made_.tensors_, [](const PlanTensor& tensor) {
            return tensor.local_bytes + tensor.remote_bytes == 0;
        });
    }

    const WeightLayout& from_;
    const WeightLayout& to_;
    const PlanOptions& options_;
    std::vector<std::uint32_t> sources_;  // by the engine's tensor
    std::vector<bool> repeated_;          // by the engine's box
    CopyRows rows_;
    std::map<std::pair<std::uint32_t, std::uint32_t>, PlanTraffic> traffic_;
    WeightPlan made_;
};

Result<WeightPlan> WeightPlan::make(const WeightLayout& from, const WeightLayout& to,
                                    const PlanOptions& options) {
    return PlanBuilder(from, to, options).build();
}

PlanCopy WeightPlan::copy(std::size_t index) const {
    const Row& row = rows_[index];
    const std::span<const std::int64_t> all =
        std::span(dims_).subspan(row.first_dim, 3 * std::size_t{row.dims});
    return {.tensor = row.tensor,
            .from = row.from,
            .to = row.to,
            .from_offset = row.from_offset,
            .to_offset = row.to_offset,
            .extents = all.first(row.dims),
            .from_strides = all.subspan(row.dims, row.dims),
            .to_strides = all.last(row.dims)};
}

std::uint64_t WeightPlan::local_bytes() const {
    std::uint64_t sum = 0;
    for (const PlanTensor& tensor : tensors_) sum += tensor.local_bytes;
    return sum;
}

std::uint64_t WeightPlan::remote_bytes() const {
    std::uint64_t sum = 0;
    for (const PlanTensor& tensor : tensors_) sum += tensor.remote_bytes;
    return sum;
}

}  // namespace rollring
