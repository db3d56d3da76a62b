#pragma once
// Values that any process of the machine may read and any may clear, by their location.
//
//   auto store = rollring::Store::open("rows");   // in each process; the first one makes it
//   if (!store) ...
//   const std::vector<float> rewards = {0.5F, 1.0F};
//   const rollring::StoreValue value = {
//       .key = "17", .column = "rewards", .form = {.dtype = rollring::dtype_f32, .shape = {2}},
//       .data = rewards.data()};
//   rollring::Location at;
//   if (!store->put({&value, 1}, {&at, 1}, rollring::Deadline::after_ms(1000))) ...
//   std::vector<float> copy(2);   // in any process that has the location
//   if (!store->read(at, std::as_writable_bytes(std::span(copy)))) ...
//   if (!store->clear({&at, 1}, rollring::Deadline::after_ms(1000))) ...
//
// A store uses two rings (docs/store.md): each process that writes has lanes of one, and one of the
// processes keeps the books. A value stays until a process clears it, even if its writer dies; if
// the process that keeps the books dies, another one takes over. Once the store's name was removed,
// each call in each process returns Errc::closed within about half a second.
//
// Any thread may use it. In a forked child it is inert, and returns Errc::forked.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/time.hpp"
#include "rollring/version.hpp"

namespace rollring {

// The location of a value. A store never reuses one; below 2^63.
struct Location {
    std::uint64_t number = 0;  // 0: none
    friend bool operator==(const Location&, const Location&) = default;
};

// The form of a value: all but its bytes.
struct ValueForm {
    DType dtype = dtype_u8;
    std::uint8_t dims = 1;  // how many of shape are set, 1 to 4
    std::array<std::uint32_t, 4> shape{};
    std::uint16_t tag = 0;  // the application's own

    [[nodiscard]] std::uint64_t bytes() const {
        std::uint64_t count = dtype.bytes();
        for (std::uint8_t i = 0; i < dims; i++) count *= shape[i];
        return count;
    }
    friend bool operator==(const ValueForm&, const ValueForm&) = default;
};

// A value that find() has located, for read() of the same store.
struct StoredValue {
    Location at = {};
    ValueForm form = {};
    std::uint64_t offset = 0;  // of its bytes, for the store itself
};

struct StoreValue {
    // The newest value of a column of a key replaces the one before, whichever process put that.
    // Empty: the value has no key.
    std::string_view key = {};
    std::string_view column = {};
    ValueForm form = {};
    const void* data = nullptr;
};

struct StoreOptions {
    std::string name = {};  // of this process, for people; up to 39 bytes
    bool make = true;       // makes the store if there is none; false: Errc::not_found then
    // The next two are for the process that makes the store; all others take it as it is.
    // By default, one value may be the experts of 128 thousand tokens in 48 layers. Memory is taken
    // a piece at a time.
    std::uint64_t capacity_bytes = std::uint64_t{8} << 30;
    // The number of pieces of the capacity, 2 to 4095. Each process that writes has one or more,
    // and a value must fit into one piece. A value that stays also blocks the memory of later
    // values in its piece.
    std::uint32_t lanes = 64;
    std::chrono::nanoseconds attach_timeout = std::chrono::seconds(10);
};

struct StoreStat {
    std::uint64_t capacity_bytes;
    std::uint64_t used_bytes;       // that cannot be written now
    std::uint64_t value_bytes;      // of these, in values; the rest lies behind older values
    std::uint64_t values;           // put, and not cleared
    std::uint64_t value_bytes_max;  // the largest that can be put, about
    std::uint32_t lanes;
    std::uint32_t lanes_taken;  // by processes that live
    bool kept;                  // some process keeps the books
};

class ROLLRING_API Store {
  public:
    // Errors: timed_out, and those of a ring that cannot be made or attached.
    static Result<Store> open(std::string_view name, const StoreOptions& options = {});
    // Removes the name, and with it all values. Errc::busy while a process has it open, unless
    // forced.
    static Result<void> remove(std::string_view name, bool force = false);

    Store(Store&&) noexcept;
    Store& operator=(Store&&) noexcept;
    ~Store();  // its values stay

    // Copies the values in, and sets the location of each. Waits for room until the deadline:
    // Errc::store_full. Errc::too_large: one of them can never fit. After an error none of them is
    // stored, and earlier values of their keys may be gone.
    Result<void> put(std::span<const StoreValue> values, std::span<Location> at, Deadline deadline);

    // The values at these locations. Errc::not_stored: one of them was cleared, or replaced.
    Result<void> find(std::span<const Location> at, std::span<StoredValue> found) const;
    // Copies each value to its target, which must have room for all its bytes. Errc::not_stored: as
    // find(), also if it happens during the copy; the targets' bytes are undefined then.
    Result<void> read(std::span<const StoredValue> found, std::span<std::byte* const> to) const;
    // Both for one value, of exactly that size.
    Result<void> read(Location at, std::span<std::byte> to) const;

    // Clears values: no process can read them afterwards, and their memory becomes free. Locations
    // without a value are skipped. Errc::timed_out: they will be cleared, but may not have been
    // yet.
    Result<void> clear(std::span<const Location> values, Deadline deadline);
    // Clears every value put under these keys before this call, in all columns.
    Result<void> clear_keys(std::span<const std::string_view> keys, Deadline deadline);

    [[nodiscard]] StoreStat stat() const;

  private:
    struct ROLLRING_LOCAL Impl;
    explicit Store(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace rollring
