#include "overflow.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace rollring {

Overflow::Overflow(const RingMap& map, std::uint64_t begin)
    : path_(map.segment().overflow_path()),
      capacity_bytes_(map.geometry().capacity(map.geometry().spill_lane())),
      begin_(begin) {}

Result<std::optional<Overflow>> Overflow::open(const RingMap& map) {
    const Geometry& geometry = map.geometry();
    if (geometry.overflow_bytes == 0) return std::optional<Overflow>{};
    const std::uint64_t said = peek(map.control().overflow_begin);
    const bool sound = said != 0 && said % page_bytes == 0 && said < geometry.spill_bytes;
    Overflow overflow(map, sound ? said : geometry.spill_bytes);
    auto file = OverflowFile::open(overflow.path_, overflow.capacity_bytes_, map.ring_id());
    if (file) {
        overflow.file_.emplace(std::move(*file));
    } else if (peek(map.control().spill_reserved_bytes) > overflow.begin_) {
        Error error = file.error();
        error.message += fmt::format(
            ": records of ring {} may be in it; restore the file, or remove the ring and its "
            "records with 'rollring rm'",
            map.segment().ring());
        return std::unexpected(std::move(error));
    } else {
        overflow.forgo(file.error().to_string());
    }
    return std::optional<Overflow>(std::move(overflow));
}

void Overflow::forgo(std::string why) {
    file_.reset();
    problem_ = "the spill continues without its overflow file: " + std::move(why);
}

Result<void> Overflow::lay(const Place& place) const {
    return file_->lay_over(place.data + begin_, begin_, capacity_bytes_ - begin_, place.writable);
}

Result<void> Overflow::lay_under(std::byte* data, bool writable) {
    if (!usable()) return {};
    const Place place{data, writable};
    if (auto laid = lay(place); !laid) return laid;
    places_.push_back(place);
    return {};
}

// Stored before any record can lie in the file, so that a successor reads where this process wrote.
Result<void> Overflow::begin_at(std::uint64_t bytes, ReaderControl& control) {
    begin_ = bytes;
    store_release(control.overflow_begin, begin_);
    for (const Place& place : places_) {
        if (auto laid = lay(place); !laid) {  // no record lies in the file yet
            forgo(laid.error().to_string());
            return laid;
        }
    }
    return {};
}

Result<void> Overflow::reserve(std::uint64_t from, std::uint64_t to) const {
    const std::uint64_t begin = std::max(from, begin_);
    if (!usable() || to <= begin) return {};
    return file_->reserve(begin, to - begin);
}

}  // namespace rollring
