#pragma once
// A shared-memory object under its name: a ring, or an object that an extra has beside one. Its
// pages are reserved before they are touched.

#include <cstdint>
#include <string>
#include <string_view>

#include "mapping.hpp"
#include "rollring/error.hpp"

namespace rollring {

class NamedObject {
  public:
    NamedObject(std::string name, SharedObject shm);

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] int fd() const { return shm_.fd(); }  // holds no locks
    // False once the name was removed. A failed check proves nothing: true.
    [[nodiscard]] bool linked() const;
    // Bytes that the object holds in memory now.
    [[nodiscard]] std::uint64_t resident_bytes() const;

    [[nodiscard]] Result<Mapping> map(std::uint64_t offset, std::uint64_t bytes,
                                      bool writable) const;
    // Reserves pages, so that touching them cannot fail: Errc::not_enough_shared_memory instead.
    // `what` needs them, `remedy` is the option that asks for less.
    [[nodiscard]] Result<void> reserve(
        std::uint64_t offset, std::uint64_t bytes, std::string_view what = "a lane",
        std::string_view remedy = "lower --lane-bytes or --lanes") const;
    // Returns pages to the system; they read as zero afterwards.
    void give_back(std::uint64_t offset, std::uint64_t bytes) const;
    // The same, unless something was ever written there.
    void give_back_unused(std::uint64_t offset, std::uint64_t bytes) const;
    // Reads without mapping: allocates no page and cannot fault. False at the end of the object,
    // with errno 0, or if the system refuses.
    [[nodiscard]] bool read(std::uint64_t offset, void* to, std::uint64_t bytes) const;

  private:
    // "a lane of ring r"
    [[nodiscard]] std::string whose_text(std::string_view what) const;
    [[nodiscard]] Result<void> reserve_slowly(std::uint64_t offset, std::uint64_t bytes,
                                              std::string_view what, std::string_view remedy) const;
    std::string name_;
    SharedObject shm_;
};

}  // namespace rollring
