#pragma once
// Shared by the files of Segment and of the objects beside a ring.

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "human.hpp"
#include "segment.hpp"

namespace rollring {
namespace detail {

inline constexpr std::uint64_t check_bytes = offsetof(SegmentHeader, check);

// The header as it is in the object, read once, without mapping.
struct HeaderImage {
    alignas(8) std::byte bytes[sizeof(SegmentHeader)]{};

    [[nodiscard]] const SegmentHeader& get() const {
        return *reinterpret_cast<const SegmentHeader*>(bytes);
    }
    [[nodiscard]] bool ready() const {
        return get().magic == segment_magic &&
               peek(get().phase) == static_cast<std::uint32_t>(Phase::ready);
    }
};

Geometry geometry_of(const SegmentHeader& header);
// The mark in the header of a ring with an owner: a damaged word does not look like one.
std::uint64_t owner_mark_of(std::uint64_t ring_id);
std::uint64_t purpose_mark_of(std::uint64_t ring_id, Purpose purpose);
std::string object_prefix();
// The files in /dev/shm with this prefix.
std::vector<std::string> files_of_user();
// The name that the ring was given.
std::string_view ring_of(std::string_view object);
// `remedy`: the option that asks for less.
std::unexpected<Error> no_space(int error, std::uint64_t wanted_bytes, std::string_view what,
                                std::string_view remedy = "lower --lane-bytes or --lanes");
// False if the object ends before, with errno 0, or if the system refuses.
bool read_at(int fd, std::uint64_t offset, void* to, std::uint64_t bytes);
std::unexpected<Error> unreadable(const std::string& object);  // by errno, after read_at
// Unlinks the name if it still means this object. Requires its creation byte.
Result<void> unlink_object(int fd, const std::string& object);
void mark_removed(int fd, const std::string& object);
Result<void> check_header(const SegmentHeader& header, const std::string& object,
                          std::uint64_t object_bytes);
// The path of the overflow file that the object names. Empty, with errno 0, if it names none.
std::optional<std::string> overflow_path(int fd, std::uint64_t ring_id);
// Removes the overflow file that this object names, if it names one.
Result<void> unlink_overflow(int fd, const std::string& object);
// Errc::not_found if there is none; explain() adds another user who has it.
Result<SharedObject> open_object(const std::string& object, Access access = Access::read_write);
Error explain(Error error, const std::string& object);
// Refuses an object that another user owns or others may open.
Result<struct stat> check_owner(int fd, const std::string& object);
void pause_before_retry();

// Reads the header of an object that another process may be making, and returns the object's size;
// empty, if its maker's last store has not marked it as finished (`ready`). `image` is zero if the
// object is too short. That store may come between two of our calls: header and size count only
// from calls that began behind it.
template <class Image, class Ready>
Result<std::optional<std::uint64_t>> finished_size(int fd, const std::string& object, Image& image,
                                                   const Ready& ready) {
    for (int look = 0; look < 2; look++) {
        image = {};
        if (!read_at(fd, 0, image.bytes, sizeof image.bytes)) {
            if (errno != 0) return unreadable(object);
            image = {};
        }
        if (!ready(image)) return std::optional<std::uint64_t>{};
    }
    auto status = check_owner(fd, object);
    if (!status) return std::unexpected(status.error());
    return std::optional(static_cast<std::uint64_t>(status->st_size));
}

}  // namespace detail

struct Segment::Object {
    detail::HeaderImage header;
    Geometry geometry;
    std::string overflow_path;
    LedgerPlan ledger;
};

}  // namespace rollring
