#pragma once
// Making an object that any number of processes may want to make at a time, each of which may be
// killed at any instruction: one wins, and a leftover of one that died is replaced.
//
// A maker holds the object's creation byte until its last store says that the object is finished.
// A process that finds an unfinished one whose byte is free takes the byte, looks again, and
// removes it.

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

    // Whether its own mark says so: then it is never replaced.
    [[nodiscard]] virtual Result<bool> finished(int fd) const = 0;
    // Removes the objects that belong to an unfinished one, before its name.
    [[nodiscard]] virtual Result<void> clear(int fd) const = 0;
    // Fills a fresh one, and stores last that it is finished.
    [[nodiscard]] virtual Result<void> build(int fd) = 0;
};

struct Made {
    std::optional<SharedObject> shm;  // nothing: another process has made it,
    bool forming = false;             // or is at work still, and the deadline has passed
};

Result<Made> make_once(const std::string& object, Maker& maker, Deadline deadline);

// Gives a fresh object its length, and reserves the pages that it begins with. `what` needs them,
// `remedy` is the option that asks for less.
Result<void> lay_out(int fd, std::uint64_t object_bytes, std::uint64_t fixed_bytes,
                     std::string_view what, std::string_view remedy);

}  // namespace rollring::detail
