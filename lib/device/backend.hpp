#pragma once
// Memory that processes share, and the copies from and to it: the interfaces between the weight
// channel (lib/weights) and its back ends (sealed memfds and the CPU here, CUDA in lib/cuda).
//
// A shared block is payload memory that another process can map. Each slot of a channel is one.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "difference.hpp"
#include "fd.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"
#include "rollring/weight_tensor.hpp"
#include "rollring/weights.hpp"

namespace rollring::device {

inline constexpr std::uint64_t piece_alignment = 512;  // of every piece in its slot

using rollring::Fd;

// Sent beside the descriptor (legacy_ipc has none: its handle is enough).
struct BlockTicket {
    PayloadMemory memory = PayloadMemory::host;
    std::uint64_t bytes = 0;
    std::array<std::byte, 64> handle{};  // CUipcMemHandle of legacy_ipc; direct: see direct_memory
};

// A tensor's memory: its address and bytes.
struct MemoryPlace {
    const void* address;
    std::uint64_t bytes;
    std::uint32_t tensor;
};

class SharedBlock {
  public:
    virtual ~SharedBlock() = default;
    // The address at which the Mover of the same back end accesses it, of the device or of the
    // host.
    [[nodiscard]] virtual std::byte* data() const = 0;
    [[nodiscard]] virtual BlockTicket ticket() const = 0;
    // The descriptor for other processes; -1 if the ticket is enough. Owned by the block.
    [[nodiscard]] virtual int fd() const = 0;
    // The distance from data() of the `bytes` bytes from `offset` on: the offset, unless the block
    // consists of several allocations. bad_manifest: they do not lie together in the block.
    [[nodiscard]] virtual Result<std::uint64_t> distance(
        std::uint64_t offset, [[maybe_unused]] std::uint64_t bytes) const {
        return offset;
    }
};

// Tensors of this process that others may read where they lie. Its bytes are those of the
// allocations around them; data() is null.
class ExposedBlock : public SharedBlock {
  public:
    // Of each place, in the order in which they were given: its offset in the block.
    [[nodiscard]] virtual std::span<const std::uint64_t> offsets() const = 0;
    // The index of a place whose allocation was freed since then, or allocated anew.
    [[nodiscard]] virtual std::optional<std::size_t> find_replaced() const = 0;
};

class Memory {
  public:
    virtual ~Memory() = default;
    // Zeroed memory of this process that others can import. `bytes` is rounded up as the back end
    // needs. out_of_device_memory, not_enough_shared_memory.
    virtual Result<std::unique_ptr<SharedBlock>> make(std::uint64_t bytes) = 0;
    // A peer's block, mapped read-only. The ticket comes from another process: it is checked.
    virtual Result<std::unique_ptr<SharedBlock>> import(const BlockTicket& ticket, Fd fd) = 0;
    // These places as they lie, for PayloadMemory::direct; one of them at least. The caller keeps
    // their memory. unsupported: it cannot be shared; the text names the tensor by name_of.
    using NameOf = std::function<std::string_view(std::uint32_t tensor)>;
    virtual Result<std::unique_ptr<ExposedBlock>> expose(
        [[maybe_unused]] std::span<const MemoryPlace> places,
        [[maybe_unused]] const NameOf& name_of) {
        return refused(Errc::unsupported, "this kind of memory is made for slots alone");
    }
};

enum class Cast : std::uint32_t { none, f32_to_bf16, f32_to_f16 };

// One piece of a tensor and its offset in a slot. Elements are counted in row-major order.
struct CopyJob {
    std::byte* tensor = nullptr;      // address of element 0 of the whole tensor
    std::uint64_t first_element = 0;  // of this piece
    std::uint64_t elements = 0;
    std::uint64_t slot_offset = 0;    // multiple of piece_alignment
    std::uint32_t element_bytes = 0;  // at `tensor`: 1, 2, 4 or 8
    Cast cast = Cast::none;           // pack only
    // Empty: contiguous. Otherwise shape and strides (in elements, of the tensor) as coalesced,
    // outermost first, at most dims_max of them, every extent above 1.
    static constexpr std::size_t dims_max = 6;
    std::vector<std::int64_t> shape;
    std::vector<std::int64_t> strides;
    // Unpack only: takes a part of a piece. slot_offset may be any multiple of element_bytes, and
    // first_element is 0. With a shape, element (i, j, ...) lies in the slot at slot_offset and
    // i * packed_strides[0] + j * packed_strides[1] + ... elements; none of them is below zero.
    bool view = false;
    std::vector<std::int64_t> packed_strides = {};

    [[nodiscard]] std::uint32_t packed_element_bytes() const {
        return cast == Cast::none ? element_bytes : 2;
    }
    [[nodiscard]] std::uint64_t packed_bytes() const { return elements * packed_element_bytes(); }
};

// Copies between a slot and many tensors, compiled once and run for each version.
class CopyPlan {
  public:
    virtual ~CopyPlan() = default;
    // Copies the tensors into the slot. With sums_offset, also stores the checksum of each job's
    // packed bytes: u64[jobs] at that offset of the slot (see checksum.hpp).
    virtual Result<void> pack(std::byte* slot, std::optional<std::uint64_t> sums_offset,
                              Stream stream) = 0;
    // Runs one job, from another address.
    virtual Result<void> pack_one(std::size_t job, const void* tensor, std::byte* slot,
                                  std::optional<std::uint64_t> sums_offset, Stream stream) = 0;
    // Copies the slot into the tensors (no casts). A plan with views supports nothing else.
    virtual Result<void> unpack(const std::byte* slot, Stream stream) = 0;
    // Recomputes the checksums of the slot, and compares them with those in it; waits. Returns the
    // first job that differs. timed_out: the device is not done; can be retried.
    virtual Result<std::optional<std::size_t>> verify(const std::byte* slot,
                                                      std::uint64_t sums_offset,
                                                      Deadline deadline) = 0;
};

// Called when a stream has reached this point, from any thread: it must not block, nor call back
// into CUDA.
using Reached = void (*)(void* context);

// The executor of copies: the CPU, or one GPU.
class Mover {
  public:
    virtual ~Mover() = default;
    [[nodiscard]] virtual GpuUuid gpu() const = 0;
    // Whether copies can reach these bytes; the error says why not.
    virtual Result<void> check_address(const void* address, std::uint64_t bytes) = 0;
    // The index of the first entry without memory at its first or last byte: released or freed
    // since it was checked. Entries come in the order of their addresses.
    virtual std::optional<std::size_t> find_absent(std::span<const MemoryPlace> places) = 0;
    virtual Result<std::unique_ptr<CopyPlan>> plan(std::vector<CopyJob> jobs) = 0;
    // The differences of a version from its tensors, of which `parts` has the copies of each part:
    // each is a view, and no two elements of the tensors share memory.
    virtual Result<std::unique_ptr<Difference>> difference(
        std::vector<std::vector<CopyJob>> parts) = 0;
    // Differences that are made from now on have the device compare for this share of the time,
    // above 0. Has no effect on the CPU.
    virtual void take_share(double) {}
    // Whether plans that are made from now on copy from another device: few threads keep the link
    // busy, and the rest of the device is left to copies of its own memory. Has no effect on the
    // CPU.
    virtual void copy_over_link([[maybe_unused]] bool over_link) {}
    // Calls `reached(context)` once everything queued on the stream so far is complete; at once if
    // nothing is queued there ever (CPU).
    virtual Result<void> when_reached(Stream stream, Reached reached, void* context) = 0;
    // Waits until everything queued on the stream so far is complete, and its callbacks have
    // returned; timed_out, device_error.
    virtual Result<void> wait(Stream stream, Deadline deadline) = 0;
    // device_error once the device has failed: then no callback is made any more.
    virtual Result<void> health() = 0;
};

struct Backend {
    std::unique_ptr<Memory> memory;
    std::unique_ptr<Mover> mover;
};

// Host memory and the CPU.
Backend make_host_backend();

}  // namespace rollring::device
