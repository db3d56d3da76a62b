#pragma once
// Batches that a GPU still reads: each is acknowledged once it has been read, and the trainer goes
// on meanwhile.
//
//   extern Gatherer gatherer;          // gather.hpp
//   extern Batch batch;                // of which it has gathered, on this stream
//   extern const Stream stream;
//   ReadBatches reading;
//   if (!reading.ack_after(std::move(batch), step, gatherer, stream)) ...
//   ...                                // in the trainer's loop, wherever it likes:
//   if (!reading.advance()) ...         // the GPU failed: what it was to read comes again
//
// One thread at a time, the one that has the stash. The gatherer and the stash live longer.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "rollring/error.hpp"
#include "rollring/export.hpp"
#include "rollring/gather.hpp"
#include "rollring/stash.hpp"
#include "rollring/time.hpp"

namespace rollring {

class ROLLRING_API ReadBatches {
  public:
    // Whether a device is done with a batch; an error if it failed.
    using Read = std::function<Result<bool>()>;

    // Takes the batch: it is acknowledged, as of `step`, once the GPU has done what is queued on
    // the stream by now, and those that were taken before are acknowledged, for steps do not go
    // back. Errors, after which the batch is the caller's as it was: not_leased, device_error.
    Result<void> ack_after(Batch&& batch, std::int64_t step, Gatherer& gatherer,
                           Stream stream = {});
    // The same with a device of the caller's own.
    Result<void> ack_after(Batch&& batch, std::int64_t step, Read read);
    // Acknowledges what has been read by now, without waiting, and returns how many have not. Those
    // with shares that are still open (reader.hpp) stay, too. A batch whose device failed, or that
    // cannot be acknowledged, is given back, and the first error is returned.
    Result<std::size_t> advance();
    // Until none is left. Errors: those of advance(), and timed_out.
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
