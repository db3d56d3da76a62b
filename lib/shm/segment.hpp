#pragma once
// One shared-memory object: made by one winner, attached only after everything about it is checked,
// its pages reserved before they are touched.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "geometry.hpp"
#include "liveness.hpp"
#include "mapping.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"

namespace rollring {

enum class Purpose : std::uint8_t;  // rollring/schema.hpp

class Segment {
  public:
    Segment(Segment&&) noexcept;
    Segment& operator=(Segment&&) noexcept;
    ~Segment();

    // Makes the object `/rollring.<uid>.<name>` with its fixed pages reserved. A leftover of a
    // creator that died is replaced; a finished ring is Errc::already_exists.
    // Any number of processes may race: one wins.
    // `overflow_dir` is where its overflow file is made, if the geometry has one.
    // With `owner` the ring goes with its owner, which is the life byte that comes back there.
    static Result<Segment> create(std::string_view name, const Geometry& geometry,
                                  const SchemaPage& schema, Purpose purpose, Deadline deadline,
                                  const std::string& overflow_dir = {},
                                  std::optional<LifeLock>* owner = nullptr);

    // Waits until the ring exists and is ready, then checks owner, mode, magic, ABI, geometry and
    // bytes against fstat before anything is mapped.
    static Result<Segment> attach(std::string_view name, Deadline deadline,
                                  Access access = Access::read_write);

    // Removes the name, and the overflow file. Refuses while someone alive is attached, unless
    // forced.
    static Result<void> remove(std::string_view name, bool force);

    // Removes a ring whose owner is dead and that no live process uses. False: it is none.
    static Result<bool> remove_orphan(std::string_view name);
    // Whether it has an owner, and that one is dead. Records in it do not matter.
    [[nodiscard]] bool orphaned() const;

    // Whether a creator of it lives, or anybody who is attached.
    static Result<bool> in_use(std::string_view name);

    // Names of all objects of this user that look like ours, damaged ones included.
    static std::vector<std::string> list();

    // "/rollring.<uid>.<name>", or what is wrong with the name.
    static Result<std::string> object_name(std::string_view name);

    [[nodiscard]] const std::string& name() const;  // of the object
    [[nodiscard]] std::string_view ring() const;    // as it was given
    [[nodiscard]] const Geometry& geometry() const;
    [[nodiscard]] const SegmentHeader& header() const;       // our own checked copy
    [[nodiscard]] int fd() const;                            // holds no locks
    [[nodiscard]] Purpose purpose() const;                   // damage to the word: records
    [[nodiscard]] const std::string& overflow_path() const;  // empty: the ring has none
    // False once somebody has removed the name under us. A look that fails proves nothing: true.
    [[nodiscard]] bool linked() const;
    // Says in the ring that its name is gone, if it is: PolicyPage::removed.
    void tell_removed() const;
    // To be asked with a life byte in hand: whether the name still means this object, so that only
    // force can remove it while the byte is held. Waits for a remover, or the creator, to be done.
    [[nodiscard]] Result<bool> stays(Deadline deadline) const;
    // Bytes that the object holds in memory now.
    [[nodiscard]] std::uint64_t resident_bytes() const;

    [[nodiscard]] Result<Mapping> map(std::uint64_t offset, std::uint64_t bytes,
                                      bool writable) const;
    // Reserves pages, so that touching them cannot fail: Errc::not_enough_shared_memory instead.
    // `what` needs them, `remedy` is the option that asks for less.
    [[nodiscard]] Result<void> reserve(
        std::uint64_t offset, std::uint64_t bytes, std::string_view what = "a lane",
        std::string_view remedy = "lower --lane-bytes or --lanes") const;
    // Gives pages back; they read as zero afterwards.
    void give_back(std::uint64_t offset, std::uint64_t bytes) const;
    // The same, unless something was ever written there.
    void give_back_unused(std::uint64_t offset, std::uint64_t bytes) const;
    // Reads without mapping: allocates no page and cannot fault. False at the end of the object,
    // with errno 0, or if the system refuses.
    [[nodiscard]] bool read(std::uint64_t offset, void* to, std::uint64_t bytes) const;

  private:
    [[nodiscard]] Result<void> reserve_slowly(std::uint64_t offset, std::uint64_t bytes,
                                              std::string_view what, std::string_view remedy) const;
    struct Object;
    explicit Segment(std::unique_ptr<Object> object);
    std::unique_ptr<Object> object_;
};

}  // namespace rollring
