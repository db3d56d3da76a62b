#pragma once
// An engine's end of a channel, as the public interface has it: at one publisher, or at all ranks
// of a sharded trainer.

#include <cstdint>
#include <deque>
#include <span>
#include <string_view>

#include "rollring/weights.hpp"
#include "session.hpp"

namespace rollring::weights {

struct LentSlot {
    std::uint32_t slot;
    const std::byte* memory;
};

// The progress of an incoming version.
struct UpdateState {
    bool open = false;
    bool staged = false;
    bool committed = false;  // as wait_committed found
    bool came_late = false;  // the version was committed before we began to read it
    bool listing = false;    // the list of its differences was begun
    std::uint64_t publication = 0;
    std::int64_t version = -1;
    std::uint64_t first_part_number = 0;
    std::uint32_t parts_lent = 0;
    std::uint32_t parts_done = 0;
    std::deque<LentSlot> lent_slots = {};  // of parts that are being read, in their order
};

class ROLLRING_LOCAL EngineEnd {
  public:
    virtual ~EngineEnd() = default;
    // Call it before destruction. False: the object must not be destroyed, because the device may
    // still read.
    virtual bool shut_down() = 0;
    virtual void interrupt() = 0;
    // Errc::forked in a child of the process that made it.
    [[nodiscard]] virtual Result<void> check_process() const = 0;

    virtual Result<void> next(Deadline deadline) = 0;
    virtual Result<std::span<const TensorPiece>> part(std::uint32_t part, Deadline deadline) = 0;
    virtual Result<void> done_reading(std::uint32_t part, Stream stream) = 0;
    virtual Result<void> load(Deadline deadline, Stream stream) = 0;
    virtual Result<void> stage(Deadline deadline) = 0;
    virtual Result<void> wait_committed(Deadline deadline) = 0;
    virtual Result<void> adopt(Deadline deadline) = 0;
    virtual Result<void> rollback() = 0;
    virtual void reject(std::string_view why, std::string_view tensor) = 0;
    virtual void refuse(std::string_view why) = 0;
    virtual Result<void> check_memory(std::span<const WeightTensor> tensors) = 0;

    [[nodiscard]] virtual const UpdateState& update() const = 0;
    [[nodiscard]] virtual const Holding& holding() const = 0;
    [[nodiscard]] virtual bool stages_by_difference() const = 0;
    [[nodiscard]] virtual DeltaReport delta() const = 0;
    [[nodiscard]] virtual std::span<const TensorInfo> tensors() const = 0;
    // Of rank 0, if there are several.
    [[nodiscard]] virtual const Manifest& manifest() const = 0;
    [[nodiscard]] virtual std::uint64_t imports() const = 0;
    // Memory of the engine's device for parts that come from other devices.
    [[nodiscard]] virtual std::uint64_t staging_bytes() const = 0;
    // Why there is no such memory, although there are such parts, and the engine asked for it.
    [[nodiscard]] virtual std::string_view why_not_staged() const = 0;
    [[nodiscard]] virtual std::int64_t publisher_id() const = 0;
};

}  // namespace rollring::weights
