#pragma once
// Records as copies: read, copied and released one at a time.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "fields.hpp"
#include "memory.hpp"
#include "owned.hpp"
#include "rollring/consumer.hpp"

namespace rollring::python {

// A record's columns in private memory, with a view of them.
struct Copied {
    Memory memory;
    TrajectoryView view;

    explicit Copied(const TrajectoryView& shared) : view(shared) {
        const std::byte* begin = nullptr;
        const std::byte* end = nullptr;
        for (const ColumnView& column : shared.columns()) {
            const std::byte* at = column.data.data();
            begin = begin == nullptr ? at : std::min(begin, at);
            end = std::max(end, at + column.data.size());
        }
        memory.append(begin, static_cast<std::size_t>(end - begin));
        view.follow(begin, memory.data());
        // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): the analyser loses sight of a move
    }
};

// A taken record: its memory belongs to this process.
class Taken {
  public:
    Taken(Copied copied, std::shared_ptr<const Schema> schema)
        : view_(std::move(copied.view)),
          schema_(std::move(schema)),
          memory_(nb::cast(std::move(copied.memory))) {}

    [[nodiscard]] nb::object memory() const { return memory_; }
    [[nodiscard]] nb::dict fields() const { return fields_of(view_); }
    [[nodiscard]] bool user_is_text() const { return view_.meta().user_is_text; }
    // (name, dtype, offset in the memory, bytes, shape) of each.
    [[nodiscard]] nb::list columns() const {
        const std::byte* const from = nb::cast<const Memory&>(memory_).data();
        nb::list made;
        for (const ColumnView& column : view_.columns()) {
            nb::list shape;
            for (std::size_t i = 0; i < column.dims; i++) shape.append(column.shape[i]);
            made.append(nb::make_tuple(text(schema_->columns()[column.column].name),
                                       column.dtype.to_string(), column.data.data() - from,
                                       column.data.size(), nb::tuple(shape)));
        }
        return made;
    }

  private:
    TrajectoryView view_;
    std::shared_ptr<const Schema> schema_;
    nb::object memory_;
};

// The consumer of a ring, shared with waits that may end later than their object.
struct SharedConsumer : Owned<Consumer> {
    SharedConsumer() : Owned("this consumer", &Consumer::interrupt) {}

    // Needs the lock. Finds the next record, which stays in the ring until take_record().
    Poll look(Deadline deadline) {
        if (!object) return Poll::closed;
        if (next_) return Poll::record;
        const Poll answer = object->wait(record_, deadline);
        if (answer == Poll::record) next_ = true;
        return answer;
    }
    // Copies and releases the record of look(); if the copy throws, it stays.
    Copied take_record() {
        Copied copied(record_.view);
        static_cast<void>(object->release(record_.ref));
        next_ = false;
        return copied;
    }

  private:
    Record record_;
    bool next_ = false;
};

}  // namespace rollring::python
