#include "subscriber_tensors.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "packing.hpp"
#include "tensor_memory.hpp"
#include "tensor_view.hpp"

namespace rollring::weights {
namespace {

std::string text_of(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    for (const std::int64_t extent : shape) {
        if (text.size() > 1) text += ", ";
        text += std::to_string(extent);
    }
    return text + "]";
}

// Whether copies may write to this tensor.
Result<void> check_target(const WeightTensor& tensor, device::Mover& mover) {
    const auto elements = count_elements(tensor);
    if (!elements) return std::unexpected(elements.error());
    if (auto fine = check_tensor(tensor); !fine) return fine;
    if (*elements == 0) return {};  // its strides mean nothing
    for (std::size_t dim = 0; dim < tensor.strides.size(); dim++) {
        if (tensor.strides[dim] == 0 && tensor.shape[dim] > 1) {
            return refused(
                Errc::unsupported,
                fmt::format("tensor '{}': its elements overlap (stride 0)", tensor.name));
        }
    }
    if (tensor.data == nullptr) return {};
    auto reached = mover.check_address(tensor.data, reach_bytes(tensor, *elements));
    if (reached) return {};
    return refused(reached.error().code,
                   fmt::format("tensor '{}': {}", tensor.name, reached.error().message));
}

std::unexpected<Error> mismatch(const WeightTensor& tensor, std::string_view what) {
    return refused(Errc::layout_mismatch, fmt::format("tensor '{}': {}", tensor.name, what));
}

struct Target {
    const WeightTensor* tensor;
    std::optional<ViewCopies> view;

    // Whether both write the same elements to the same addresses.
    [[nodiscard]] bool is(const WeightTensor& other) const {
        return tensor->data == other.data && tensor->shape == other.shape &&
               tensor->strides == other.strides && tensor->view == other.view;
    }
};
using Targets = std::vector<std::vector<Target>>;

// Tensors of one name: a single one, or views alone.
using Named = std::map<std::string_view, std::vector<const WeightTensor*>>;

Result<Named> by_name(std::span<const WeightTensor> into, device::Mover& mover) {
    Named named;
    for (const WeightTensor& tensor : into) {
        if (auto usable = check_target(tensor, mover); !usable)
            return std::unexpected(usable.error());
        auto& same = named[tensor.name];
        if (!same.empty() && !(tensor.view && same.front()->view)) {
            return refused(Errc::invalid_argument,
                           fmt::format("tensor '{}' is listed twice", tensor.name));
        }
        same.push_back(&tensor);
    }
    return named;
}

// Fits one of the engine's tensors to the published one.
Result<Target> meet(const WeightTensor& theirs, const PackedTensor& ours) {
    if (theirs.dtype != ours.dtype) {
        return mismatch(theirs, fmt::format("dtype {} here, {} published", theirs.dtype.to_string(),
                                            ours.dtype.to_string()));
    }
    Target target{.tensor = &theirs, .view = {}};
    if (theirs.view) {
        auto view = ViewCopies::make(theirs, ours);
        if (!view) return std::unexpected(view.error());
        target.view = std::move(*view);
    } else if (theirs.shape != ours.shape) {
        return mismatch(theirs, fmt::format("shape {} here, {} published", text_of(theirs.shape),
                                            text_of(ours.shape)));
    }
    if (theirs.data == nullptr && *count_elements(theirs) > 0) {
        return mismatch(theirs, "no address");
    }
    return target;
}

// The differences between the names of both sides: the counts, and the first of each.
struct Differences {
    std::vector<std::string_view> missing = {};  // published, and missing in the engine
    std::vector<std::string_view> unknown = {};  // in the engine, and not published

    [[nodiscard]] bool any() const { return !missing.empty() || !unknown.empty(); }
    // For two names of which one ends with the other.
    [[nodiscard]] std::string prefix() const {
        if (missing.empty() || unknown.empty()) return {};
        for (const std::string_view theirs : unknown) {
            const std::string_view ours = missing.front();
            if (ours.ends_with(theirs)) {
                return fmt::format("; the published ones begin with '{}'",
                                   ours.substr(0, ours.size() - theirs.size()));
            }
            if (theirs.ends_with(ours)) {
                return fmt::format("; the engine's begin with '{}'",
                                   theirs.substr(0, theirs.size() - ours.size()));
            }
        }
        return {};
    }
    [[nodiscard]] std::unexpected<Error> error(std::size_t published, std::size_t engine) const {
        std::string text;
        if (!missing.empty()) {
            text = fmt::format(
                "{} of {} published tensors are not among the engine's, '{}' first (partial allows "
                "it)",
                missing.size(), published, missing.front());
        }
        if (!unknown.empty()) {
            text += fmt::format("{}{} of {} tensors of the engine are not published, '{}' first",
                                text.empty() ? "" : "; ", unknown.size(), engine, unknown.front());
        }
        return refused(Errc::layout_mismatch, text + prefix());
    }
};

std::size_t owner_of(const Packing& packing, std::size_t index) {
    const std::int64_t tied_to = packing.tensors[index].tied_to;
    return tied_to < 0 ? index : static_cast<std::size_t>(tied_to);
}

// The names that only one side has. A name tied to a common name does not count, because its bytes
// go to that tensor's memory.
Differences compare(const Packing& packing, const Targets& targets, const Named& left,
                    bool partial) {
    Differences found;
    for (std::size_t i = 0; i < packing.tensors.size() && !partial; i++) {
        if (packing.tensors[i].elements != 0 && targets[owner_of(packing, i)].empty()) {
            found.missing.push_back(packing.tensors[i].name);
        }
    }
    if (left.empty()) return found;
    std::multimap<const void*, const Target*> written;
    for (const auto& known : targets) {
        for (const Target& target : known) written.emplace(target.tensor->data, &target);
    }
    for (const auto& [name, theirs] : left) {
        const auto [first, last] = written.equal_range(theirs.front()->data);
        const bool there = std::any_of(first, last, [&](const auto& at) {
            // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): emplace() has set each of them
            return at.second->is(*theirs.front());
        });
        if (!there) found.unknown.push_back(name);
    }
    return found;
}

Result<void> check_apart(const Targets& targets) {
    std::vector<const WeightTensor*> written;
    for (const auto& known : targets) {
        for (const Target& target : known) written.push_back(target.tensor);
    }
    const auto shared = find_overlap(written);
    if (!shared) return {};
    return refused(Errc::layout_mismatch,
                   fmt::format("tensors '{}' and '{}' of the engine share memory, and are two in "
                               "the publisher: one would overwrite the other; declare them as tied "
                               "there, or give the engine memory for both",
                               shared->first, shared->second));
}

// The engine's tensors for the pieces of each of the channel's; several if they are tied.
Result<Targets> match(const Packing& packing, std::span<const WeightTensor> into, bool partial,
                      device::Mover& mover) {
    auto named = by_name(into, mover);
    if (!named) return std::unexpected(named.error());
    Named& engine = *named;
    const std::size_t engine_has = engine.size();
    Targets targets(packing.tensors.size());
    if (into.empty()) return targets;
    std::vector<std::string_view> absent;
    for (std::size_t i = 0; i < packing.tensors.size(); i++) {
        const PackedTensor& ours = packing.tensors[i];
        const auto found = engine.find(ours.name);
        if (found == engine.end()) {
            if (ours.elements == 0 && !partial) absent.push_back(ours.name);
            continue;
        }
        auto& known = targets[owner_of(packing, i)];
        for (const WeightTensor* theirs : found->second) {
            auto target = meet(*theirs, ours);
            if (!target) return std::unexpected(target.error());
            const bool same =
                std::ranges::any_of(known, [&](const Target& other) { return other.is(*theirs); });
            if (!same) known.push_back(std::move(*target));
        }
        engine.erase(found);
    }
    Differences differences = compare(packing, targets, engine, partial);
    differences.missing.insert(differences.missing.end(), absent.begin(), absent.end());
    if (differences.any()) return differences.error(packing.tensors.size(), engine_has);
    if (auto apart = check_apart(targets); !apart) return std::unexpected(apart.error());
    return targets;
}

// Exchanging the values of elements that share memory would not restore them. Interleaved elements
// count as sharing.
bool may_overlap(const WeightTensor& tensor) {
    if (tensor.strides.empty() || *count_elements(tensor) == 0) return false;
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, extent
    for (std::size_t dim = 0; dim < tensor.shape.size(); dim++) {
        if (tensor.shape[dim] > 1) dims.emplace_back(tensor.strides[dim], tensor.shape[dim]);
    }
    std::ranges::sort(dims);
    std::int64_t reach = 0;  // of the dimensions so far
    for (const auto& [stride, extent] : dims) {
        if (stride <= reach) return true;
        reach += stride * (extent - 1);
    }
    return false;
}

// The copies of a whole tensor in the order of the engine's memory, as those of a view.
Result<ViewCopies> as_view(const WeightTensor& tensor, const PackedTensor& published,
                           std::deque<WeightTensor>& kept) {
    kept.push_back(tensor);
    if (!kept.back().view) kept.back().view = TensorView{};
    return ViewCopies::make(kept.back(), published);
}

// Copies out of the trainer's own tensors can begin anywhere, as those of views can.
Result<void> make_views(Targets& targets, const Packing& packing, std::deque<WeightTensor>& kept) {
    for (std::size_t i = 0; i < targets.size(); i++) {
        for (Target& target : targets[i]) {
            if (target.view) continue;
            auto view = as_view(*target.tensor, packing.tensors[i], kept);
            if (!view) return std::unexpected(view.error());
            target.view = std::move(*view);
        }
    }
    return {};
}

Result<void> check_no_overlaps(std::span<const WeightTensor> into) {
    const auto culprit = std::ranges::find_if(into, may_overlap);
    if (culprit == into.end()) return {};
    return refused(Errc::unsupported,
                   fmt::format("tensor '{}': its elements may overlap each other, which "
                               "staging by difference cannot undo",
                               culprit->name));
}

// The copies of each part, all as views.
Result<std::vector<std::vector<CopyJob>>> cut_into_parts(const Packing& packing,
                                                         const Targets& targets) {
    std::deque<WeightTensor> kept;
    std::vector<std::vector<ViewCopies>> views(targets.size());
    for (std::size_t i = 0; i < targets.size(); i++) {
        for (const Target& target : targets[i]) {
            auto view = as_view(*target.tensor, packing.tensors[i], kept);
            if (!view) return std::unexpected(view.error());
            views[i].push_back(std::move(*view));
        }
    }
    std::vector<std::vector<CopyJob>> parts;
    for (const Part& part : packing.parts) {
        std::vector<CopyJob>& jobs = parts.emplace_back();
        for (const Piece& piece :
             std::span(packing.pieces).subspan(part.first_piece, part.pieces)) {
            for (const ViewCopies& view : views[piece.tensor]) {
                if (auto cut = view.cut(piece, jobs); !cut) return std::unexpected(cut.error());
            }
        }
    }
    return parts;
}

}  // namespace

std::vector<TensorInfo> infos_of(const Packing& packing) {
    std::vector<TensorInfo> infos;
    std::vector<std::uint32_t> part_of(packing.pieces.size());
    for (std::uint32_t part = 0; part < packing.parts.size(); part++) {
        const Part& at = packing.parts[part];
        std::fill_n(part_of.begin() + at.first_piece, at.pieces, part);
    }
    for (const PackedTensor& tensor : packing.tensors) {
        const PackedTensor& bytes_of =
            tensor.tied_to < 0 ? tensor : packing.tensors[static_cast<std::size_t>(tensor.tied_to)];
        const std::uint32_t first = bytes_of.pieces == 0 ? 0 : part_of[bytes_of.first_piece];
        const std::uint32_t last =
            bytes_of.pieces == 0 ? 0 : part_of[bytes_of.first_piece + bytes_of.pieces - 1];
        infos.push_back({.name = tensor.name,
                         .dtype = tensor.dtype,
                         .shape = tensor.shape,
                         .tag = tensor.tag,
                         .bytes = tensor.bytes(),
                         .first_part = first,
                         .parts = bytes_of.pieces == 0 ? 0 : last - first + 1,
                         .tied_to = tensor.tied_to});
    }
    return infos;
}

Result<SubscriberTensors> SubscriberTensors::compile(const Manifest& manifest,
                                                     std::span<const WeightTensor> into,
                                                     bool partial, device::Mover& mover) {
    const Packing& packing = manifest.packing;
    auto targets = match(packing, into, partial, mover);
    if (!targets) return std::unexpected(targets.error());
    std::deque<WeightTensor> kept;
    if (manifest.memory == PayloadMemory::direct) {
        if (auto done = make_views(*targets, packing, kept); !done) {
            return std::unexpected(done.error());
        }
    }
    SubscriberTensors made;
    made.infos_ = infos_of(packing);
    made.sums_offset_ = packing.sums_offset;
    for (std::uint32_t i = 0; i < targets->size(); i++) {
        for (const Target& target : (*targets)[i]) {
            const WeightTensor& at = *target.tensor;
            made.places_.add(at.data, reach_bytes(at, *count_elements(at)), i);
            made.target_bytes_ += *count_elements(at) * at.dtype.bytes();
        }
    }
    made.places_.sort();
    for (const Part& part : packing.parts) {
        std::vector<CopyJob> jobs;
        std::vector<CopyJob> sums;
        for (const Piece& piece :
             std::span(packing.pieces).subspan(part.first_piece, part.pieces)) {
            const std::uint32_t element_bytes = packing.tensors[piece.tensor].dtype.bytes();
            CopyJob job{.first_element = piece.first_element,
                        .elements = piece.elements,
                        .slot_offset = piece.slot_offset,
                        .element_bytes = element_bytes};
            sums.push_back(job);
            for (const Target& target : (*targets)[piece.tensor]) {
                if (target.view) {
                    if (auto cut = target.view->cut(piece, jobs); !cut) {
                        return std::unexpected(cut.error());
                    }
                    continue;
                }
                Strided strided = coalesce(target.tensor->shape, target.tensor->strides);
                if (strided.shape.size() > CopyJob::dims_max) {
                    return mismatch(*target.tensor,
                                    "more than 6 dimensions that are not contiguous");
                }
                job.tensor = static_cast<std::byte*>(target.tensor->data);
                job.shape = std::move(strided.shape);
                job.strides = std::move(strided.strides);
                jobs.push_back(job);
            }
        }
        if (!into.empty()) {
            auto plan = mover.plan(std::move(jobs));
            if (!plan) return std::unexpected(plan.error());
            made.plans_.push_back(std::move(*plan));
        }
        if (manifest.checksums) {
            auto plan = mover.plan(std::move(sums));
            if (!plan) return std::unexpected(plan.error());
            made.sums_.push_back(std::move(*plan));
        }
    }
    return made;
}

Result<std::unique_ptr<device::Difference>> compile_difference(const Packing& packing,
                                                               std::span<const WeightTensor> into,
                                                               bool partial, device::Mover& mover) {
    if (into.empty()) {
        return refused(Errc::invalid_argument,
                       "Staging::delta needs the engine's tensors: give them to attach");
    }
    const auto targets = match(packing, into, partial, mover);
    if (!targets) return std::unexpected(targets.error());
    if (auto apart = check_no_overlaps(into); !apart) return std::unexpected(apart.error());
    auto parts = cut_into_parts(packing, *targets);
    if (!parts) return std::unexpected(parts.error());
    return mover.difference(std::move(*parts));
}

Result<std::vector<std::vector<CopyJob>>> compile_planned(const Packing& packing,
                                                          std::span<const WeightTensor> into,
                                                          device::Mover& mover) {
    const auto targets = match(packing, into, true, mover);
    if (!targets) return std::unexpected(targets.error());
    return cut_into_parts(packing, *targets);
}

Result<void> SubscriberTensors::check_memory(device::Mover& mover) const {
    return places_.check(
        mover, [&](std::uint32_t tensor) -> std::string_view { return infos_[tensor].name; });
}

}  // namespace rollring::weights
