#include "direct_memory.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "round_up.hpp"
#include "sealed.hpp"

namespace rollring::device {
namespace {

std::unexpected<Error> bad(std::string_view what) {
    return refused(Errc::bad_manifest,
                   fmt::format("the publisher's table of allocations is damaged: {}", what));
}

std::uint64_t address_of(const void* at) {
    return reinterpret_cast<std::uint64_t>(at);
}

// --- the trainer's tensors -----------------------------------------------------------------------

class Exposed : public ExposedBlock {
  public:
    explicit Exposed(std::shared_ptr<Allocations> allocations)
        : allocations_(std::move(allocations)) {}
    Result<void> add(std::span<const MemoryPlace> places, const Memory::NameOf& name_of);
    Result<void> write_table();

    [[nodiscard]] std::byte* data() const override { return nullptr; }
    [[nodiscard]] BlockTicket ticket() const override;
    [[nodiscard]] int fd() const override { return table_.fd(); }
    [[nodiscard]] std::span<const std::uint64_t> offsets() const override { return offsets_; }
    [[nodiscard]] std::optional<std::size_t> find_replaced() const override;

  private:
    struct Known {
        Allocation allocation;
        std::uint64_t offset;
        std::size_t place;  // the first one in it
    };
    Result<void> add_allocation(const MemoryPlace& place, std::size_t index);
    [[nodiscard]] bool is_in_last(const MemoryPlace& place) const {
        return !known_.empty() && address_of(place.address) - address_of(last().begin) <
                                      last().bytes;  // above it, too
    }
    [[nodiscard]] const Allocation& last() const { return known_.back().allocation; }

    std::shared_ptr<Allocations> allocations_;
    std::vector<Known> known_;  // in the order of their addresses
    std::vector<std::uint64_t> offsets_;
    std::uint64_t bytes_ = 0;
    Sealed table_;
};

Result<void> Exposed::add_allocation(const MemoryPlace& place, std::size_t index) {
    auto found = allocations_->find(static_cast<const std::byte*>(place.address));
    if (!found) return std::unexpected(found.error());
    if (known_.size() == allocations_most) {
        return refused(Errc::unsupported,
                       fmt::format("the tensors lie in more than {} allocations, which is more "
                                   "than an engine opens",
                                   allocations_most));
    }
    bytes_ = round_up(bytes_, piece_alignment);
    known_.push_back({*found, bytes_, index});
    bytes_ += found->bytes;
    return {};
}

Result<void> Exposed::add(std::span<const MemoryPlace> places, const Memory::NameOf& name_of) {
    std::vector<std::size_t> order(places.size());
    for (std::size_t i = 0; i < order.size(); i++) order[i] = i;
    std::ranges::sort(order, {}, [&](std::size_t i) { return address_of(places[i].address); });
    offsets_.resize(places.size());
    for (const std::size_t i : order) {
        const MemoryPlace& place = places[i];
        Result<void> known;
        if (!is_in_last(place)) known = add_allocation(place, i);
        if (known && !(is_in_last(place) &&
                       place.bytes <=
                           last().bytes - (address_of(place.address) - address_of(last().begin)))) {
            known = refused(Errc::unsupported, "it spans several allocations");
        }
        if (!known) {
            return refused(known.error().code, fmt::format("tensor '{}': {}", name_of(place.tensor),
                                                           known.error().message));
        }
        offsets_[i] = known_.back().offset + address_of(place.address) - address_of(last().begin);
    }
    return {};
}

Result<void> Exposed::write_table() {
    std::vector<AllocationLine> lines;
    lines.reserve(known_.size());
    for (const Known& one : known_) {
        lines.push_back({one.allocation.handle, one.allocation.bytes, one.offset});
    }
    const std::span<const std::byte> bytes = std::as_bytes(std::span(lines));
    auto sealed = Sealed::make("allocations", bytes.size());
    if (!sealed) return std::unexpected(sealed.error());
    {
        auto mapping = sealed->map(0, bytes.size(), true);
        if (!mapping) return std::unexpected(mapping.error());
        std::memcpy(mapping->data(), bytes.data(), bytes.size());
    }
    if (auto done = sealed->seal_contents(); !done) return done;
    table_ = std::move(*sealed);
    return {};
}

BlockTicket Exposed::ticket() const {
    BlockTicket ticket{.memory = PayloadMemory::direct, .bytes = round_up(bytes_, piece_alignment)};
    const std::uint64_t count = known_.size();
    std::memcpy(ticket.handle.data(), &count, sizeof count);
    return ticket;
}

std::optional<std::size_t> Exposed::find_replaced() const {
    const auto replaced = std::ranges::find_if(known_, [&](const Known& one) {
        return allocations_->id_at(one.allocation.begin) != one.allocation.id;
    });
    if (replaced == known_.end()) return {};
    return replaced->place;
}

// --- as an engine sees them ----------------------------------------------------------------------

class Opened : public SharedBlock {
  public:
    explicit Opened(std::shared_ptr<Allocations> allocations)
        : allocations_(std::move(allocations)) {}
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    ~Opened() override {
        for (const Part& part : parts_) allocations_->close(part.at);
    }
    Result<void> open(const BlockTicket& ticket, Fd fd);

    [[nodiscard]] std::byte* data() const override { return data_; }
    [[nodiscard]] BlockTicket ticket() const override { return ticket_; }
    [[nodiscard]] int fd() const override { return -1; }
    [[nodiscard]] Result<std::uint64_t> distance(std::uint64_t offset,
                                                 std::uint64_t bytes) const override;

  private:
    struct Part {
        std::uint64_t offset;
        std::uint64_t bytes;
        std::byte* at;
    };
    Result<void> open_line(const AllocationLine& line);

    std::shared_ptr<Allocations> allocations_;
    BlockTicket ticket_;
    std::vector<Part> parts_;  // in the order of their offsets
    std::uint64_t end_ = 0;    // of them
    std::byte* data_ = nullptr;
};

Result<void> Opened::open_line(const AllocationLine& line) {
    const std::uint64_t begin = round_up(end_, piece_alignment);
    if (line.offset != begin || line.bytes == 0 || line.bytes > allocations_->bytes_most() ||
        ticket_.bytes < begin || line.bytes > ticket_.bytes - begin) {
        return bad("an offset or a length");
    }
    auto at = allocations_->open(line.handle, line.bytes);
    if (!at) return std::unexpected(at.error());
    parts_.push_back({line.offset, line.bytes, *at});
    if (address_of(*at) % piece_alignment != 0) return bad("an allocation that is not aligned");
    end_ = line.offset + line.bytes;
    return {};
}

Result<void> Opened::open(const BlockTicket& ticket, Fd fd) {
    ticket_ = ticket;
    if (ticket.memory != PayloadMemory::direct || !fd) return bad("it is missing");
    std::uint64_t count = 0;
    std::memcpy(&count, ticket.handle.data(), sizeof count);
    if (count == 0 || count > allocations_most) return bad("their number");
    const std::uint64_t bytes = count * sizeof(AllocationLine);
    const auto sealed = Sealed::accept(std::move(fd), bytes, true);
    if (!sealed) return std::unexpected(sealed.error());
    const auto mapping = sealed->map(0, bytes, false);
    if (!mapping) return std::unexpected(mapping.error());
    for (std::uint64_t i = 0; i < count; i++) {
        AllocationLine line{};
        std::memcpy(&line, mapping->data() + i * sizeof line, sizeof line);
        if (auto opened = open_line(line); !opened) return opened;
    }
    if (round_up(end_, piece_alignment) != ticket.bytes) return bad("the sum of their lengths");
    data_ = std::ranges::min(parts_, {}, [](const Part& part) { return address_of(part.at); }).at;
    return {};
}

Result<std::uint64_t> Opened::distance(std::uint64_t offset, std::uint64_t bytes) const {
    const auto behind = std::ranges::upper_bound(parts_, offset, {}, &Part::offset);
    if (behind == parts_.begin()) return bad("a tensor before all allocations");
    const Part& part = *std::prev(behind);
    const std::uint64_t within = offset - part.offset;
    if (within > part.bytes || bytes > part.bytes - within) {
        return bad("a tensor that exceeds its allocation");
    }
    return address_of(part.at) - address_of(data_) + within;
}

class DirectMemory : public Memory {
  public:
    DirectMemory(std::shared_ptr<Allocations> allocations, std::unique_ptr<Memory> own)
        : allocations_(std::move(allocations)), own_(std::move(own)) {}

    Result<std::unique_ptr<SharedBlock>> make(std::uint64_t bytes) override {
        return own_->make(bytes);
    }
    Result<std::unique_ptr<SharedBlock>> import(const BlockTicket& ticket, Fd fd) override {
        auto block = std::make_unique<Opened>(allocations_);
        if (auto done = block->open(ticket, std::move(fd)); !done) {
            return std::unexpected(done.error());
        }
        return block;
    }
    Result<std::unique_ptr<ExposedBlock>> expose(std::span<const MemoryPlace> places,
                                                 const NameOf& name_of) override {
        auto block = std::make_unique<Exposed>(allocations_);
        auto done = block->add(places, name_of);
        if (done) done = block->write_table();
        if (!done) return std::unexpected(done.error());
        return block;
    }

  private:
    std::shared_ptr<Allocations> allocations_;
    std::unique_ptr<Memory> own_;
};

}  // namespace

std::unique_ptr<Memory> make_direct_memory(std::shared_ptr<Allocations> allocations,
                                           std::unique_ptr<Memory> own) {
    return std::make_unique<DirectMemory>(std::move(allocations), std::move(own));
}

}  // namespace rollring::device
