#pragma once
// Makes an object that any number of processes may want to make at the same time, and each of which
// may be killed at any instruction: one wins, and the leftover of a dead one is replaced.
//
// A maker holds the object's creation byte until its last store marks the object as finished. A
// process that finds an unfinished object with a free byte takes the byte, checks again, and
// removes the object.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mapping.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"

namespace rollring::detail {

// One kind of object.
class Maker {
  public:
    Maker() = default;
    Maker(const Maker&) = delete;
    Maker& operator=(const Maker&) = delete;
    virtual ~Maker() = default;

    // Whether the object is marked as finished: then no process replaces it.
    [[nodiscard]] virtual Result<bool> finished(int fd) const = 0;
    // Removes everything that belongs to an unfinished object, before its name.
    [[nodiscard]] virtual Result<void> clear(int fd) const = 0;
    // Fills a new object, and marks it as finished by the last store.
    [[nodiscard]] virtual Result<void> build(int fd) = 0;
};

struct Made {
    std::optional<SharedObject> shm;  // empty: another process has made it,
    bool forming = false;             // or still makes it, and the deadline has passed
};

Result<Made> make_once(const std::string& object, Maker& maker, Deadline deadline);

// Gives a new object its length, and reserves its first pages. `what` needs them, `remedy` is the
// option that asks for less.
Result<void> lay_out(int fd, std::uint64_t object_bytes, std::uint64_t fixed_bytes,
                     std::string_view what, std::string_view remedy);

}  // namespace rollring::detail
