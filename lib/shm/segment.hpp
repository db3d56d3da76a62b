#pragma once
// A ring's shared-memory object: made by one winner, and attached only after everything about it is
// checked.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "geometry.hpp"
#include "ledger_place.hpp"
#include "liveness.hpp"
#include "mapping.hpp"
#include "named_object.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"

namespace rollring {

enum class Purpose : std::uint8_t;  // rollring/schema.hpp

// The inputs of a new ring.
struct SegmentPlan {
    Geometry geometry;
    SchemaPage schema;
    Purpose purpose;
    std::string overflow_dir;  // where its overflow file is made, if the geometry has one
    // For extras/requests, which makes its object by these words of the header.
    std::uint32_t requests;
    std::uint64_t request_bytes;
    LedgerPlan ledger;  // for extras/ledger
};

class Segment : public NamedObject {
  public:
    Segment(Segment&&) noexcept;
    Segment& operator=(Segment&&) noexcept;
    ~Segment();

    // Makes the object `/rollring.<uid>.<name>` with its fixed pages reserved. A leftover of a
    // creator that died is replaced; a finished ring is Errc::already_exists. Any number of
    // processes may race: one wins. With `owner` the ring goes with its owner, whose life byte is
    // returned there.
    static Result<Segment> create(std::string_view name, const SegmentPlan& plan, Deadline deadline,
                                  std::optional<LifeLock>* owner = nullptr);

    // Waits until the ring exists and is ready, then checks owner, mode, magic, ABI, geometry and
    // bytes against fstat before anything is mapped.
    static Result<Segment> attach(std::string_view name, Deadline deadline,
                                  Access access = Access::read_write);

    // Removes the name, the overflow file, and the objects of extras beside the ring. Refuses while
    // a live process is attached, unless forced. If only such objects are left, removes those.
    static Result<void> remove(std::string_view name, bool force);

    // Removes a ring whose owner is dead and that no live process uses. False: it is not one of
    // these.
    static Result<bool> remove_orphan(std::string_view name);
    // Whether it has an owner, and the owner is dead. Its records do not matter.
    [[nodiscard]] bool orphaned() const;

    // Whether its creator lives, or a live process is attached.
    static Result<bool> in_use(std::string_view name);

    // Names of all objects of this user that look like rings, damaged ones included.
    static std::vector<std::string> list();

    // "/rollring.<uid>.<name>"; an error if the name is invalid.
    static Result<std::string> object_name(std::string_view name);

    [[nodiscard]] std::string_view ring() const;  // its name, as given
    [[nodiscard]] const Geometry& geometry() const;
    [[nodiscard]] const SegmentHeader& header() const;       // our own checked copy
    [[nodiscard]] Purpose purpose() const;                   // a damaged word counts as records
    [[nodiscard]] const std::string& overflow_path() const;  // empty: the ring has none
    [[nodiscard]] const LedgerPlan& ledger() const;
    // Notes in the ring that its name is gone, if it is: PolicyPage::removed.
    void tell_removed() const;
    // Requires a life byte in hand: whether the name still means this object, so that only force
    // can remove it while the byte is held. Waits until a remover or the creator is done.
    [[nodiscard]] Result<bool> stays(Deadline deadline) const;

  private:
    struct Object;
    Segment(NamedObject named, std::unique_ptr<Object> object);
    std::unique_ptr<Object> object_;
};

}  // namespace rollring
