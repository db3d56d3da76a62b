#include "published_tensors.hpp"

#include <fmt/core.h>

#include <cstring>
#include <utility>

namespace rollring::weights {

Result<PublishedTensors> PublishedTensors::pack(std::span<const WeightTensor> tensors,
                                                std::uint64_t slot_bytes) {
    auto packing = pack_tensors(tensors, slot_bytes);
    if (!packing) return std::unexpected(packing.error());
    PublishedTensors made;
    made.manifest_.packing = std::move(*packing);
    made.tensors_.assign(tensors.begin(), tensors.end());
    for (std::uint32_t i = 0; i < made.tensors_.size(); i++) {
        made.index_[made.tensors_[i].name] = i;
    }
    return made;
}

Result<void> PublishedTensors::check_addresses(device::Mover& mover) {
    places_ = {};
    for (std::uint32_t i = 0; i < tensors_.size(); i++) {
        const WeightTensor& tensor = tensors_[i];
        if (tensor.data == nullptr) continue;
        const std::uint64_t bytes = reach_bytes(tensor, *count_elements(tensor));
        const auto fine = mover.check_address(tensor.data, bytes);
        if (!fine) {
            return refused(fine.error().code,
                           fmt::format("tensor '{}': {}", tensor.name, fine.error().message));
        }
        if (packing().tensors[i].pieces != 0) places_.add(tensor.data, bytes, i);
    }
    places_.sort();
    return {};
}

Result<void> PublishedTensors::check_memory(device::Mover& mover, std::uint32_t first_piece,
                                            std::uint32_t end, const void* source) const {
    if (first_piece == end) return {};
    const std::uint32_t first = packing().pieces[first_piece].tensor;
    const std::uint32_t last = packing().pieces[end - 1].tensor;
    const auto name_of = [&](std::uint32_t tensor) -> std::string_view {
        return tensors_[tensor].name;
    };
    if (first != last) return places_.check(mover, name_of, first);
    const WeightTensor& one = tensors_[first];
    MemoryPlaces place;
    place.add(source != nullptr ? source : one.data, reach_bytes(one, *count_elements(one)), first);
    return place.check(mover, name_of);
}

Result<void> PublishedTensors::check_has_addresses(std::uint32_t first_piece) const {
    for (const Piece& piece : std::span(packing().pieces).subspan(first_piece)) {
        if (address(piece.tensor) != nullptr) continue;
        return refused(Errc::invalid_argument,
                       fmt::format("tensor '{}' has no address: put it by name",
                                   packing().tensors[piece.tensor].name));
    }
    return {};
}

Result<std::vector<std::unique_ptr<device::CopyPlan>>> PublishedTensors::compile(
    device::Mover& mover, bool handed_on) {
    std::vector<std::unique_ptr<device::CopyPlan>> plans;
    if (handed_on) return plans;
    if (auto fine = check_addresses(mover); !fine) return std::unexpected(fine.error());
    for (const Part& part : packing().parts) {
        auto plan = mover.plan(pack_jobs(packing(), part, tensors_));
        if (!plan) return std::unexpected(plan.error());
        plans.push_back(std::move(*plan));
    }
    return plans;
}

Result<void> PublishedTensors::check_exposable(std::uint32_t index) const {
    const WeightTensor& tensor = tensors_[index];
    const auto cannot = [&](std::string_view why) {
        return weights::refused(Errc::unsupported, tensor, why);
    };
    if (tensor.data == nullptr) {
        return cannot("it has no address of its own, and engines would read it there");
    }
    if (packing().tensors[index].dtype != tensor.dtype) {
        return cannot(
            fmt::format("it is {} and published as {}, and engines would read it as it "
                        "is",
                        tensor.dtype.to_string(), packing().tensors[index].dtype.to_string()));
    }
    if (!coalesce(tensor.shape, tensor.strides).shape.empty()) {
        return cannot("it is not contiguous, and engines would read it as it lies");
    }
    if (reinterpret_cast<std::uint64_t>(tensor.data) % tensor.dtype.bytes() != 0) {
        return cannot("its address is not a multiple of an element's bytes");
    }
    return {};
}

Result<std::unique_ptr<device::ExposedBlock>> PublishedTensors::expose(device::Memory& memory,
                                                                       device::Mover& mover) {
    const Packing& packed = packing();
    std::vector<device::MemoryPlace> places;
    std::vector<std::uint32_t> tensors;
    for (std::uint32_t i = 0; i < tensors_.size(); i++) {
        const PackedTensor& tensor = packed.tensors[i];
        if (tensor.elements == 0 || tensor.tied_to >= 0) continue;
        if (auto fine = check_exposable(i); !fine) return std::unexpected(fine.error());
        places.push_back({tensors_[i].data, tensor.bytes(), i});
        tensors.push_back(i);
    }
    if (places.empty()) return refused(Errc::unsupported, "no tensor has elements");
    if (auto fine = check_addresses(mover); !fine) return std::unexpected(fine.error());
    auto block = memory.expose(
        places, [&](std::uint32_t i) -> std::string_view { return tensors_[i].name; });
    if (!block) return block;
    const std::uint64_t bytes = (*block)->ticket().bytes;
    if (bytes > slot_bytes_max) {
        return refused(Errc::unsupported, "the allocations around the tensors exceed 1 TiB");
    }
    manifest_.packing = in_one_part(packed, (*block)->offsets(), bytes);
    exposed_ = block->get();
    exposed_tensors_ = std::move(tensors);
    return block;
}

Result<void> PublishedTensors::check_exposed() const {
    const auto replaced = exposed_ == nullptr ? std::nullopt : exposed_->find_replaced();
    if (!replaced) return {};
    return refused(Errc::already_released,
                   fmt::format("tensor '{}': the allocation around it was freed since this "
                               "publisher was made, and engines still have that one open; make "
                               "the publisher anew",
                               tensors_[exposed_tensors_[*replaced]].name));
}

Result<void> PublishedTensors::describe(PayloadMemory memory, GpuUuid gpu,
                                        const PublisherOptions& options) {
    manifest_.memory = memory;
    manifest_.gpu = gpu;
    manifest_.slots = options.slots;
    manifest_.checksums = options.checksums;
    manifest_.layout = options.layout;
    const std::vector<std::byte> bytes = write_manifest(manifest_);
    auto sealed = Sealed::make("manifest", bytes.size());
    if (!sealed) return std::unexpected(sealed.error());
    {
        auto mapping = sealed->map(0, bytes.size(), true);
        if (!mapping) return std::unexpected(mapping.error());
        std::memcpy(mapping->data(), bytes.data(), bytes.size());
    }
    if (auto done = sealed->seal_contents(); !done) return done;
    manifest_memory_ = std::move(*sealed);
    return {};
}

std::uint64_t PublishedTensors::bytes_of(const Part& part) const {
    if (manifest_.checksums) return packing().slot_bytes;
    const Piece& last = packing().pieces[part.first_piece + part.pieces - 1];
    return last.slot_offset + last.elements * packing().tensors[last.tensor].dtype.bytes();
}

Result<std::uint32_t> PublishedTensors::find(std::string_view name) const {
    const auto found = index_.find(name);
    if (found != index_.end()) return found->second;
    return refused(Errc::invalid_argument, fmt::format("this channel has no tensor '{}'", name));
}

Result<void> TiedPuts::check(std::uint32_t tensor, const void* source) const {
    if (source == nullptr) return {};
    const Packing& packing = tensors_->packing();
    const auto owner = static_cast<std::uint32_t>(packing.tensors[tensor].tied_to);
    const auto put = from_.find(owner);
    if (source == (put == from_.end() ? tensors_->address(owner) : put->second)) return {};
    return refused(Errc::invalid_argument,
                   fmt::format("tensor '{}' is tied to '{}' and goes with it, but is put from "
                               "other memory: a trainer that has values of its own for it must "
                               "not declare it as tied",
                               packing.tensors[tensor].name, packing.tensors[owner].name));
}

}  // namespace rollring::weights
