#include "source_boxes.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace rollring::shards {
namespace {

Range range_of(const IndexBox& box, std::size_t dim) {
    return box.dims == 0 ? Range{0, 1} : box.at[dim];
}

// The dimension that tells the most boxes apart.
std::size_t dim_with_most_begins(const WeightLayout& layout, std::span<const std::size_t> boxes) {
    std::size_t best = 0;
    std::size_t most = 0;
    std::vector<std::int64_t> begins;
    const std::size_t dims = boxes.size() < 2 ? 0 : layout.box(boxes[0]).start.size();
    for (std::size_t dim = 0; dim < dims; dim++) {
        begins.clear();
        for (const std::size_t box : boxes) begins.push_back(layout.box(box).start[dim]);
        std::ranges::sort(begins);
        const auto distinct =
            static_cast<std::size_t>(std::ranges::unique(begins).begin() - begins.begin());
        if (distinct > most) best = dim;
        most = std::max(most, distinct);
    }
    return best;
}

// One of `count` replicas for a rank: the sum of its digits in that base, so that neighbours differ
// as well as every second or fourth rank, which want the same shard of a parallel engine.
std::size_t turn_of(std::size_t rank, std::size_t count) {
    std::size_t sum = 0;
    if (count == 1) return 0;
    for (; rank > 0; rank /= count) sum += rank % count;
    return sum % count;
}

}  // namespace

bool can_become(DType from, DType to) {
    return from == to || (from == dtype_f32 && (to == dtype_bf16 || to == dtype_f16));
}

SourceBoxes::SourceBoxes(const WeightLayout& trainer, std::span<const std::uint32_t> devices)
    : trainer_(trainer), devices_(devices) {
    const auto tensors = trainer.tensors();
    const auto owner = [&](std::size_t box) {
        const std::uint32_t tensor = trainer.box(box).tensor;
        const std::int64_t tie = tensors[tensor].tied_to;
        return tie < 0 ? std::size_t{tensor} : static_cast<std::size_t>(tie);
    };
    std::vector<std::size_t> next(tensors.size() + 1, 0);
    for (std::size_t i = 0; i < trainer.boxes(); i++) next[owner(i) + 1]++;
    std::partial_sum(next.begin(), next.end(), next.begin());
    std::vector<std::size_t> sorted(trainer.boxes());
    for (std::size_t i = 0; i < trainer.boxes(); i++) sorted[next[owner(i)]++] = i;
    std::size_t first = 0;
    for (std::size_t i = 0; i < tensors.size(); i++) {
        add_tensor(std::span(sorted).subspan(first, next[i] - first));
        first = next[i];
    }
}

std::uint32_t SourceBoxes::device_of(std::size_t box) const {
    const std::uint32_t rank = trainer_.memories()[trainer_.box(box).memory].rank;
    return devices_.empty() ? rank : devices_[rank];
}

void SourceBoxes::add_tensor(std::span<std::size_t> boxes) {
    const std::size_t dim = dim_with_most_begins(trainer_, boxes);
    const auto memory = [&](std::size_t box) -> const LayoutMemory& {
        return trainer_.memories()[trainer_.box(box).memory];
    };
    // By begin, then the longest first; 0 where they are the same elements in the same dtype.
    const auto compare = [&](std::size_t a, std::size_t b) {
        const LayoutBox one = trainer_.box(a);
        const LayoutBox other = trainer_.box(b);
        for (std::size_t i = 0; i < one.start.size(); i++) {
            const std::size_t at = (dim + i) % one.start.size();
            if (one.start[at] != other.start[at]) return one.start[at] < other.start[at] ? -1 : 1;
            if (one.length[at] != other.length[at]) {
                return one.length[at] > other.length[at] ? -1 : 1;
            }
        }
        const auto dtype = [&](std::size_t box) {
            return std::tuple(memory(box).dtype.code, memory(box).dtype.bits);
        };
        return dtype(a) == dtype(b) ? 0 : dtype(a) < dtype(b) ? -1 : 1;
    };
    std::ranges::sort(boxes, [&](std::size_t a, std::size_t b) {
        const int order = compare(a, b);
        if (order != 0) return order < 0;
        return std::tuple(device_of(a), memory(a).rank, a) <
               std::tuple(device_of(b), memory(b).rank, b);
    });
    Tensor tensor{dim, replicas_.size(), 0};
    for (std::size_t i = 0; i < boxes.size();) {
        std::size_t end = i + 1;
        while (end < boxes.size() && compare(boxes[i], boxes[end]) == 0) end++;
        add_replicas(boxes.subspan(i, end - i), dim);
        i = end;
    }
    tensor.end = replicas_.size();
    ends_.resize(tensor.end);
    find_ends(tensor.first, tensor.end);
    tensors_.push_back(tensor);
}

void SourceBoxes::add_replicas(std::span<const std::size_t> boxes, std::size_t dim) {
    const LayoutBox box = trainer_.box(boxes[0]);
    replicas_.push_back({.range = range_of(IndexBox::of(box.start, box.length), dim),
                         .dtype = trainer_.memories()[box.memory].dtype,
                         .first = boxes_.size()});
    // Of those on one rank, such as the boxes of tied tensors, the first one.
    const auto rank = [&](std::size_t of) {
        return trainer_.memories()[trainer_.box(of).memory].rank;
    };
    for (std::size_t i = 0; i < boxes.size(); i++) {
        if (i > 0 && rank(boxes[i - 1]) == rank(boxes[i])) continue;
        boxes_.push_back(boxes[i]);
    }
    replicas_.back().count = boxes_.size() - replicas_.back().first;
}

IndexBox SourceBoxes::elements_of(std::size_t replicas) const {
    const LayoutBox box = trainer_.box(boxes_[replicas_[replicas].first]);
    return IndexBox::of(box.start, box.length);
}

std::int64_t SourceBoxes::find_ends(std::size_t first, std::size_t end) {
    if (first == end) return 0;
    const std::size_t middle = first + (end - first) / 2;
    ends_[middle] = std::max(
        {replicas_[middle].range.end, find_ends(first, middle), find_ends(middle + 1, end)});
    return ends_[middle];
}

// Adds those whose range meets the wanted one to found_, in their order.
void SourceBoxes::find(std::size_t first, std::size_t end, const Range& wanted) {
    if (first == end) return;
    const std::size_t middle = first + (end - first) / 2;
    steps_++;
    if (ends_[middle] <= wanted.begin) return;
    find(first, middle, wanted);
    if (replicas_[middle].range.begin >= wanted.end) return;
    if (replicas_[middle].range.end > wanted.begin) found_.push_back(middle);
    find(middle + 1, end, wanted);
}

std::optional<std::size_t> SourceBoxes::near(const Replicas& replicas, std::uint32_t device) const {
    const auto boxes = std::span(boxes_).subspan(replicas.first, replicas.count);
    const auto of_box = [&](std::size_t box) { return device_of(box); };
    const auto at = std::ranges::lower_bound(boxes, device, {}, of_box);
    if (at == boxes.end() || device_of(*at) != device) return std::nullopt;
    return *at;
}

void SourceBoxes::find_candidates(const WantedBox& wanted) {
    const Tensor& tensor = tensors_[wanted.tensor];
    found_.clear();
    candidates_.clear();
    unfit_.clear();
    find(tensor.first, tensor.end, range_of(wanted.box, tensor.dim));
    IndexBox common;
    for (const std::size_t index : found_) {
        if (!intersect(elements_of(index), wanted.box, common)) continue;
        const Replicas& replicas = replicas_[index];
        if (can_become(replicas.dtype, wanted.dtype)) {
            candidates_.push_back({index, near(replicas, wanted.device)});
        } else {
            unfit_.push_back(index);
        }
    }
}

// Candidates whose ranges meet, and those that meet these, are one run. Runs share no elements: the
// rest of one needs no comparison with the boxes of another.
std::span<SourceBoxes::Candidate> SourceBoxes::next_run(std::span<Candidate> left,
                                                        Range& run) const {
    run = replicas_[left[0].replicas].range;
    std::size_t count = 1;
    for (; count < left.size(); count++) {
        const Range next = replicas_[left[count].replicas].range;
        if (next.begin >= run.end) break;
        run.end = std::max(run.end, next.end);
    }
    return left.first(count);
}

std::optional<MissingPart> SourceBoxes::cover(const WantedBox& wanted, const Taken& taken) {
    find_candidates(wanted);
    const std::size_t dim = tensors_[wanted.tensor].dim;
    WantedBox piece = wanted;
    const Range whole = range_of(wanted.box, dim);
    Range left = whole;
    const auto cut = [&](std::int64_t begin, std::int64_t end) {
        if (piece.box.dims > 0) piece.box.at[dim] = {begin, end};
    };
    for (std::span<Candidate> rest(candidates_); !rest.empty();) {
        Range range{};
        const std::span<Candidate> run = next_run(rest, range);
        if (range.begin > left.begin) {
            left.end = range.begin;
            break;
        }
        cut(left.begin, std::min(range.end, whole.end));
        cover_run(run, piece, taken);
        if (!uncovered_.empty()) return missing(uncovered_.first());
        left.begin = std::min(range.end, whole.end);
        rest = rest.subspan(run.size());
    }
    if (left.begin == whole.end) return std::nullopt;
    cut(left.begin, left.end);
    return missing(piece.box);
}

void SourceBoxes::cover_run(std::span<Candidate> run, const WantedBox& wanted, const Taken& taken) {
    std::ranges::sort(run, {}, [&](const Candidate& one) {
        const bool cast = replicas_[one.replicas].dtype != wanted.dtype;
        return std::tuple(!one.near.has_value(), cast, one.replicas);
    });
    uncovered_.start(wanted.box);
    for (const Candidate& one : run) {
        if (uncovered_.empty()) return;
        steps_ += uncovered_.size();
        const Replicas& replicas = replicas_[one.replicas];
        const std::size_t turn = replicas.first + turn_of(wanted.rank, replicas.count);
        const std::size_t box = one.near.value_or(boxes_[turn]);
        uncovered_.take(elements_of(one.replicas), [&](const IndexBox& part) { taken(box, part); });
    }
}

MissingPart SourceBoxes::missing(const IndexBox& part) const {
    IndexBox common;
    for (const std::size_t index : unfit_) {
        if (intersect(elements_of(index), part, common)) {
            return {part, boxes_[replicas_[index].first]};
        }
    }
    return {part};
}

}  // namespace rollring::shards
