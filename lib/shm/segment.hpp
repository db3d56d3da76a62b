#pragma once
// A ring's shared-memory object: made by one winner, attached only after everything about it is
// checked.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "geometry.hpp"
#include "liveness.hpp"
#include "mapping.hpp"
#include "named_object.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"

namespace rollring {

enum class Purpose : std::uint8_t;  // rollring/schema.hpp

// The options of a new ring.
struct SegmentPlan {
    Geometry geometry;
    SchemaPage schema;
    Purpose purpose;
    std::string overflow_dir;  // where its overflow file is made, if the geometry has one
    // For extras/requests, which makes its object by these words of the header.
    std::uint32_t requests;
    std::uint64_t request_bytes;
};

class Segment : public NamedObject {
  public:
    Segment(Segment&&) noexcept;
    Segment& operator=(Segment&&) noexcept;
    ~Segment();

    // Makes the object `/rollring.<uid>.<name>` with its fixed pages reserved. A leftover of a
    // creator that died is replaced; a finished ring is Errc::already_exists.
    // Any number of processes may race: one wins.
    // With `owner` the ring goes with its owner, which is the life byte that comes back there.
    static Result<Segment> create(std::string_view name, const SegmentPlan& plan, Deadline deadline,
                                  std::optional<LifeLock>* owner = nullptr);

    // Waits until the ring exists and is ready, then checks owner, mode, magic, ABI, geometry and
    // bytes against fstat before anything is mapped.
    static Result<Segment> attach(std::string_view name, Deadline deadline,
                                  Access access = Access::read_write);

    // Removes the name, the overflow file, and the objects of extras beside it. Refuses while a
    // live process is attached, unless forced. Where only such objects are left, these are removed.
    static Result<void> remove(std::string_view name, bool force);

    // Removes a ring whose owner is dead and that no live process uses. False: it is not an orphan.
    static Result<bool> remove_orphan(std::string_view name);
    // Whether it has an owner, and that one is dead. Records in it do not matter.
    [[nodiscard]] bool orphaned() const;

    // Whether a creator of it lives, or anybody who is attached.
    static Result<bool> in_use(std::string_view name);

    // Names of all objects of this user that look like rings, damaged ones included.
    static std::vector<std::string> list();

    // "/rollring.<uid>.<name>", or the fault of the name.
    static Result<std::string> object_name(std::string_view name);

    [[nodiscard]] std::string_view ring() const;  // its name, as it was given
    [[nodiscard]] const Geometry& geometry() const;
    [[nodiscard]] const SegmentHeader& header() const;       // our own checked copy
    [[nodiscard]] Purpose purpose() const;                   // damage to the word: records
    [[nodiscard]] const std::string& overflow_path() const;  // empty: the ring has none
    // Says in the ring that its name is gone, if it is: PolicyPage::removed.
    void tell_removed() const;
    // To be asked with a life byte in hand: whether the name still means this object, so that only
    // force can remove it while the byte is held. Waits for a remover, or the creator, to be done.
    [[nodiscard]] Result<bool> stays(Deadline deadline) const;

  private:
    struct Object;
    Segment(NamedObject named, std::unique_ptr<Object> object);
    std::unique_ptr<Object> object_;
};

}  // namespace rollring
