#pragma once
// Helpers of the files behind a Segment, and behind the objects beside one.

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
// The mark in the header of a ring with an owner: damage to the word does not imitate it.
std::uint64_t owner_mark_of(std::uint64_t ring_id);
std::uint64_t purpose_mark_of(std::uint64_t ring_id, Purpose purpose);
std::string object_prefix();
// Of /dev/shm: all that begin so.
std::vector<std::string> files_of_user();
// The name that its ring was given.
std::string_view ring_of(std::string_view object);
// `remedy`: which option asks for less.
std::unexpected<Error> no_space(int error, std::uint64_t wanted_bytes, std::string_view what,
                                std::string_view remedy = "lower --lane-bytes or --lanes");
// False where the object ends before, with errno 0, or where the system refuses.
bool read_at(int fd, std::uint64_t offset, void* to, std::uint64_t bytes);
std::unexpected<Error> unreadable(const std::string& object);  // by errno, after read_at
// Takes the name away if it still means this object. Only with its creation byte in hand.
Result<void> unlink_object(int fd, const std::string& object);
void mark_removed(int fd, const std::string& object);
Result<void> check_header(const SegmentHeader& header, const std::string& object,
                          std::uint64_t object_bytes);
// Which file the object says is its overflow file. Nothing, with errno 0, if it names none.
std::optional<std::string> overflow_path(int fd, std::uint64_t ring_id);
// Takes the overflow file away that this object names, if it does.
Result<void> unlink_overflow(int fd, const std::string& object);
// Errc::not_found where there is none; whose it is if it is another user's is for explain() to say.
Result<SharedObject> open_object(const std::string& object, Access access = Access::read_write);
Error explain(Error error, const std::string& object);
// Refuses an object of another user, or one that others may open.
Result<struct stat> check_owner(int fd, const std::string& object);
void pause_before_retry();

}  // namespace detail

struct Segment::Object {
    detail::HeaderImage header;
    Geometry geometry;
    std::string overflow_path;
};

}  // namespace rollring
