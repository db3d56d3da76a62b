#pragma once
// Records that Python reads in place: those of a leased batch, or of a rank's share of one.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "gatherers.hpp"
#include "rollring/batch.hpp"
#include "turn.hpp"
#include "window.hpp"

namespace rollring::python {

class Lent : public Loan {
  public:
    // Raises if its memory may hold another record by now.
    [[nodiscard]] const Sequences& shown() const {
        check_shown();
        return all();
    }
    [[nodiscard]] virtual bool leased() const = 0;
    [[nodiscard]] virtual const Schema& schema() const = 0;

    // The GPUs that gather out of its ring.
    [[nodiscard]] virtual Gatherers& gatherers() = 0;

    [[nodiscard]] bool in_use() const { return windows() > 0 || copies_ > 0; }
    [[nodiscard]] std::string use_text() const {
        if (windows() > 0) return windows_text() + " still in use";
        return reads_.empty() ? "another thread is copying from it" : "a GPU is still reading it";
    }
    // Around a copy without the GIL.
    void begin_copy() { copies_++; }
    void end_copy() {
        copies_--;
        on_free();  // actions delayed by the copy
    }
    // A GPU has an outstanding read.
    void add_read(DeviceRead read) { reads_.push_back(std::move(read)); }
    // Whether all reads are done, after a wait until the deadline at most. Raises, then and always
    // after, if one has failed.
    bool wait_reads(Deadline deadline) {
        while (!reads_.empty() && !inherited()) {
            const DeviceRead read = reads_.front();
            const auto waits = [](const Result<void>& done) {
                return !done && done.error().code == Errc::timed_out;
            };
            const auto done = in_slices(
                deadline, [&](Deadline slice) { return read.gatherer->wait(read.mark, slice); },
                waits);
            if (waits(done)) return false;
            if (!done) raise(done.error());
            std::erase_if(reads_, [&](const DeviceRead& one) {
                return one.gatherer == read.gatherer && one.mark == read.mark;
            });
        }
        return true;
    }

  protected:
    virtual void check_shown() const = 0;
    [[nodiscard]] virtual const Sequences& all() const = 0;
    [[nodiscard]] std::string name_of(std::uint16_t column, std::size_t item) const override {
        const std::string& name = schema().columns()[column].name;
        if (inherited()) return name;  // the parent may have released the record
        const TrajectoryView& view = all().sequences()[item].view;
        return name + " of '" + std::string(view.instance_id()) + "', repetition " +
               std::to_string(all().repetition_ids()[item]);
    }

  private:
    int copies_ = 0;  // under way
    std::vector<DeviceRead> reads_;
};

}  // namespace rollring::python
