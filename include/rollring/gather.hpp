#pragma once
// Gathers columns of a batch, or of a share of one, into whole arrays in memory of the host or of a
// GPU: packed, padded, or one number per sequence. Takes all sequences, or some in any order, and
// converts dtypes on the way.
//
//   extern const Sequences& batch;         // a Batch as next() filled it, or a Share
//   extern const Stream stream;            // of the trainer's
//   extern std::span<std::byte> gpu_memory;
//   const Schema& schema = Schema::standard();   // of the ring: stash.schema()
//   auto gatherer = Gatherer::open(Device::cuda(0));
//   if (!gatherer) ...
//   const auto token_ids = static_cast<std::uint16_t>(Std::token_ids);
//   const Layout layout{.form = Form::padded, .padding = {.side = Side::left}};
//   GatherColumn ids{.column = token_ids, .dtype = dtype_i64};
//   const auto shape = gathered_shape(batch, schema, ids, layout);   // i64[sequences, length]
//   if (!shape) ...
//   ids.to = gpu_memory.first(shape->elements() * sizeof(std::int64_t));
//   if (!gatherer->gather(batch, schema, {&ids, 1}, layout, stream)) ...   // queued
//
// A GPU reads the ring's memory in place. A thread of the gatherer registers each lane with CUDA
// once; until then, the lane's records are copied to pinned memory first. ReadBatches holds the
// batches that the GPU still reads.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rollring/batch.hpp"
#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/stash.hpp"
#include "rollring/time.hpp"
#include "rollring/version.hpp"
#include "rollring/weight_tensor.hpp"

namespace rollring {

enum class Form : std::uint8_t {
    packed,        // [tokens, inner dims...]: the sequences end to end
    padded,        // [sequences, length, inner dims...]
    per_sequence,  // [sequences]: advantages, rewards
};

// Which tokens of each sequence: all, the first n_prompt, or those behind them.
enum class Part : std::uint8_t { all, prompt, response };

enum class Side : std::uint8_t { left, right };

struct Padding {
    double value = 0;
    Side side = Side::right;        // where the padding is
    std::uint64_t length = 0;       // tokens of each row; 0: of the longest sequence
    std::uint64_t multiple_of = 1;  // `length` is rounded up to it
};

// Where each sequence's rows go.
struct Layout {
    Form form = Form::packed;
    Padding padding = {};  // of Form::padded
    Part part = Part::all;
    // Indices into the batch's sequences, in any order; not set: all of them, in the batch's order.
    std::optional<std::span<const std::uint32_t>> order = {};
};

// The source of a row.
enum class Source : std::uint8_t {
    column,        // a per-token column of the records
    position_ids,  // 0, 1, ... from the beginning of each sequence; i64 if no dtype is set
    advantages,    // of the batch, the same for each token of a sequence; f64 if no dtype is set
    rewards,
};

struct GatherColumn {
    Source source = Source::column;
    std::uint16_t column = 0;  // of the schema, for Source::column
    // The target's; not set: that of the records. A GPU converts the pairs of dtypes that
    // docs/using.md lists. The host converts any number as C++ does, a float to an integer towards
    // zero. A value out of the target's range is an error for an integer, and becomes infinite for
    // a float. As a bool, every number but 0 is true.
    std::optional<DType> dtype = {};
    // The value of each element of a sequence that lacks the column; not set: an error.
    std::optional<double> missing = {};
    // Of a padded layout; not set: Padding::value.
    std::optional<double> pad = {};
    // A token's row is that of the token this many later in the sequence: 1 for labels. `beyond`
    // fills the rows for which the sequence has no such token.
    std::int32_t shift = 0;
    double beyond = 0;
    std::span<std::byte> to = {};  // as large as its shape, in the target's dtype
};

struct ArrayShape {
    DType dtype{};  // of the target
    std::uint8_t dims = 0;
    std::array<std::uint64_t, 5> shape{};

    [[nodiscard]] std::uint64_t elements() const {
        std::uint64_t count = 1;
        for (std::size_t i = 0; i < dims; i++) count *= shape[i];
        return count;
    }
};

// Errors: invalid_argument (no such column, it has no row for each token, no sequence carries it,
// inner dims or dtypes differ, an index of `order` or a length is out of range), not_leased.
ROLLRING_API Result<ArrayShape> gathered_shape(const Sequences& batch, const Schema& schema,
                                               const GatherColumn& column, const Layout& layout);

// Where each sequence of the layout begins when they are laid end to end, and their end.
ROLLRING_API Result<std::vector<std::int64_t>> gathered_offsets(const Sequences& batch,
                                                                const Layout& layout);

// Gathers into memory of the host, by several threads where that pays: at most `threads`, if it is
// not 0.
// Errors: those of the shape, and invalid_argument (a target of another size, a sequence that does
// not carry the column while `missing` is not set, a value out of the target's range).
ROLLRING_API Result<void> gather(const Sequences& batch, const Schema& schema,
                                 std::span<const GatherColumn> columns, const Layout& layout,
                                 std::uint32_t threads = 0);

// Counts of a gatherer since it was opened.
struct GatherStat {
    std::uint64_t registered_bytes;  // of lanes, now
    std::uint64_t read_bytes;        // that the GPU read where they lie
    std::uint64_t staged_bytes;      // that went through pinned memory
    std::string why_staged;          // the last time; empty if it never happened
};

// Gathers into the memory of one device. One thread at a time. In a forked child it is inert, and
// returns Errc::forked.
class ROLLRING_API Gatherer {
  public:
    static Result<Gatherer> open(Device device);
    Gatherer(Gatherer&&) noexcept;
    Gatherer& operator=(Gatherer&&) noexcept;
    ~Gatherer();  // waits until the GPU has finished the queued gathers

    // Queues the work on `stream`; on the host, does it at once. The records must stay leased until
    // the GPU has read them: see mark(). Errors: those of gather(), and unsupported (a conversion
    // that the GPU does not make), device_error, out_of_device_memory, host_memory.
    Result<void> gather(const Sequences& batch, const Schema& schema,
                        std::span<const GatherColumn> columns, const Layout& layout,
                        Stream stream = {});
    // Registers the batch's ring now, all lanes that are in use, instead of in the background.
    Result<void> prepare(const Sequences& batch);
    // Returns a number for all work queued on the stream so far, for the two calls below.
    Result<std::uint64_t> mark(Stream stream = {});
    // Whether the GPU has done the work of the mark; an error if it failed.
    [[nodiscard]] Result<bool> reached(std::uint64_t mark) const;
    // Waits for the same. Any thread may call it. Errors: timed_out, device_error.
    [[nodiscard]] Result<void> wait(std::uint64_t mark, Deadline deadline) const;
    [[nodiscard]] GatherStat stat() const;

  private:
    class Impl;
    explicit Gatherer(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

// Batches that a GPU still reads: each is acknowledged once it has been read, and the trainer goes
// on meanwhile.
//
//   extern Gatherer gatherer;
//   extern Batch batch;                // of which it has gathered, on this stream
//   extern const Stream stream;
//   ReadBatches reading;
//   if (!reading.ack_after(std::move(batch), step, gatherer, stream)) ...
//   ...                                // in the trainer's loop, wherever it likes:
//   if (!reading.advance()) ...         // the GPU failed: its batches are delivered again
//
// One thread at a time, the one that has the stash. The gatherer and the stash must outlive it.
class ROLLRING_API ReadBatches {
  public:
    // Whether a device is done with a batch; an error if it failed.
    using Read = std::function<Result<bool>()>;

    // Takes the batch, and acknowledges it with `step` once the GPU has done all work queued on the
    // stream so far, and after all batches taken before, because steps never decrease. Errors,
    // after which the caller still has the batch: not_leased, device_error.
    Result<void> ack_after(Batch&& batch, std::int64_t step, Gatherer& gatherer,
                           Stream stream = {});
    // The same with a device of the caller's own.
    Result<void> ack_after(Batch&& batch, std::int64_t step, Read read);
    // Acknowledges the batches that have been read by now, without waiting, and returns how many
    // remain. A batch with shares that are still open (Share) remains, too. A batch whose device
    // failed, or that cannot be acknowledged, is given back, and the first error is returned.
    Result<std::size_t> advance();
    // Calls advance() until no batch remains. Errors: those of advance(), and timed_out.
    Result<void> finish(Deadline deadline);

  private:
    struct One {
        Batch batch;
        std::int64_t step;
        Read read;
    };
    std::deque<One> all_;
};

}  // namespace rollring
