#include "rollring/producer.hpp"
#include "rollring/relay.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "given.hpp"
#include "nb.hpp"
#include "producing.hpp"
#include "stat_dict.hpp"
#include "waiter.hpp"

namespace rollring::python {
namespace {

using Timeout = std::optional<double>;

// The memory still holds an earlier record, which must not be trained on by mistake.
void clear_holes(const Draft& draft, const Reservation& room) {
    for (const DraftColumn& column : draft.columns()) {
        if (column.data != nullptr) continue;
        const auto hole = room.bytes(column.column, column.dtype);
        std::memset(hole.data(), 0, hole.size());
    }
}

std::string name_of(const Draft& draft) {
    const auto repetition = draft.meta.repetition_id;
    return "'" + std::string(draft.instance_id()) + "'" +
           (repetition.has_value() ? ", repetition " + std::to_string(repetition) : "");
}

class PyProducer {
  public:
    PyProducer(const std::string& ring, const std::string& name_of, double attach_timeout,
               bool checksum, std::uint64_t max_records) {
        ProducerOptions options;
        options.name = name_of;
        options.max_records = max_records;
        if (checksum) options.checksum = Checksum::xxh3;
        auto made = opened(deadline_of(attach_timeout),
                           {Errc::not_found, Errc::not_ready, Errc::no_free_lane},
                           [&](std::chrono::nanoseconds patience) {
                               options.attach_timeout = patience;
                               return Producer::open(ring, options);
                           });
        shared_->schema = made.schema();
        shared_->hold(std::move(made));
    }

    void push(nb::handle instance_id, Timeout timeout, nb::dict fields, bool later) {
        shared_->check();
        const Given given(shared_->schema, instance_id, fields);
        given.check_versions();
        wait(timeout, [&](Producer& producer, Deadline deadline) {
            return later ? producer.push_later(given.draft, deadline)
                         : producer.push(given.draft, deadline);
        });
    }

    // For event loops: once fd() is readable, end_push() returns the push's result.
    int fd() { return waiter_.fd(); }
    // True: it waits for room. One push waits at a time: an earlier one that still waits, because
    // it was cancelled or its loop was closed, ends first.
    bool begin_push(nb::handle instance_id, Timeout timeout, nb::dict fields) {
        shared_->check();
        fd();
        cancel_push();
        while (waiter_.busy()) waiter_.finish();
        auto waiting = std::make_shared<Waiting>(shared_, instance_id, fields);
        const bool over = [&] {
            const Released released;
            return waiting->step(Deadline::now());
        }();
        if (over) {
            waiting->raise_unless_sent();
            return false;
        }
        waiting_ = std::move(waiting);
        waiter_.begin([it = waiting_.get()](Deadline slice) { return it->step(slice); },
                      deadline_of(timeout));
        return true;
    }
    void end_push() {
        while (waiter_.busy()) waiter_.finish();
        if (const auto waiting = std::exchange(waiting_, nullptr)) waiting->raise_unless_sent();
    }
    void cancel_push() { waiter_.cancel(); }

    void flush() {
        shared_->in_turn([](Producer& producer) {
            producer.flush();
            return true;
        });
    }
    nb::object reserve(nb::handle instance_id, std::uint32_t tokens, nb::dict columns,
                       Timeout timeout, nb::dict fields) {
        shared_->check();
        Given given(shared_->schema, instance_id, fields);
        given.add_holes(shared_->schema, columns, tokens);
        given.check_versions();
        auto reserved = std::make_shared<Reserved>(shared_, name_of(given.draft));
        wait(timeout, [&](Producer& producer, Deadline deadline) {
            const Push push = producer.reserve(given.draft, deadline, *reserved->room);
            if (push == Push::ok) clear_holes(given.draft, *reserved->room);
            return push;
        });
        shared_->draft = reserved;
        return made_draft(std::move(reserved));
    }
    void open_group(const std::string& instance_id, std::uint64_t visit, Timeout timeout,
                    std::uint32_t group_size, std::uint64_t record_bytes) {
        shared_->check();
        wait(timeout, [&](Producer& producer, Deadline deadline) {
            return producer.open_group(instance_id, visit, deadline, {group_size, record_bytes});
        });
    }
    // Never waits. False: there is no place.
    bool may_send(const std::string& instance_id, std::uint64_t visit, std::uint32_t group_size) {
        shared_->check();
        return shared_->in_turn([&](Producer& producer) {
            return producer.may_send(instance_id, visit, {group_size, 0});
        });
    }
    // Announces the group even if there is no place.
    void inherit_place(const std::string& instance_id, std::uint64_t visit) {
        shared_->check();
        shared_->in_turn([&](Producer& producer) {
            RelayProducer::inherit_place(producer, GroupKey::of(instance_id, visit), {});
            return true;
        });
    }
    bool cancel_group(const std::string& instance_id, std::uint64_t visit) {
        return shared_->in_turn(
            [&](Producer& producer) { return producer.cancel_group(instance_id, visit); });
    }
    // Idempotent.
    void close() {
        if (closed()) return;
        cancel_push();
        while (waiter_.busy()) waiter_.finish();
        const bool done = shared_->in_turn([&](Producer&) {
            if (shared_->windows > 0) return false;
            shared_->object.reset();
            if (waiting_ != nullptr) waiting_->close();
            return true;
        });
        if (done) return;
        raise("views_alive", "cannot close: " + shared_->windows_text() +
                                 " still in use; commit the draft, or delete its references");
    }
    [[nodiscard]] bool closed() const { return shared_->gone(); }
    nb::dict stats() {
        return stat_dict(shared_->in_turn([](Producer& producer) { return producer.stats(); }));
    }
    std::uint32_t lane() {
        return shared_->in_turn([](Producer& producer) { return producer.lane(); });
    }
    std::uint64_t lane_bytes() {
        return shared_->in_turn([](Producer& producer) { return producer.stats().lane_bytes; });
    }
    std::uint64_t durable_records() {
        return shared_->in_turn([](Producer& producer) { return producer.durable_records(); });
    }
    bool consumer_alive() {
        return shared_->in_turn([](Producer& producer) { return producer.consumer_alive(); });
    }

  private:
    // Any call that reserves room takes over the room of the last draft, whose arrays must be gone.
    // Requires the lock; `problem` has the reason if the result is not Push::ok. None: arrays
    // exist.
    template <class Try>
    static std::optional<Push> once(SharedProducer& shared, std::string& problem, Deadline deadline,
                                    Try attempt) {
        if (!shared.object) {
            problem = "this producer was closed by another thread";
            return Push::closed;
        }
        if (shared.windows > 0) return std::nullopt;
        const Push answer = attempt(*shared.object, deadline);
        if (answer != Push::ok) problem = shared.object->problem();
        return answer;
    }
    static void raise_unless_ok(SharedProducer& shared, std::optional<Push> push,
                                const std::string& problem) {
        if (!push) {
            raise("views_alive", "cannot take the lane's room: " + shared.windows_text() +
                                     " still in use; commit the draft, or delete its references");
        }
        if (*push != Push::ok) raise(name(*push), problem);
    }
    template <class Try>
    void wait(Timeout timeout, Try attempt) {
        std::string problem;
        const auto push = in_turns(
            shared_->turns, deadline_of(timeout),
            [&](Deadline deadline) { return once(*shared_, problem, deadline, attempt); },
            std::optional(Push::timed_out));
        raise_unless_ok(*shared_, push, problem);
    }

    // A push that an event loop waits for.
    struct Waiting {
        std::shared_ptr<SharedProducer> shared;
        Given given;
        std::optional<Push> answer = Push::timed_out;
        std::string problem;

        Waiting(std::shared_ptr<SharedProducer> of, nb::handle instance_id, nb::dict fields)
            : shared(std::move(of)), given(shared->schema, instance_id, fields) {
            given.check_versions();
        }
        // Runs in any thread, with or without the GIL. True: it is over.
        bool step(Deadline deadline) {
            return shared->turns.in_wait([&] {
                answer = once(*shared, problem, deadline, [&](Producer& producer, Deadline until) {
                    return producer.push(given.draft, until);
                });
                return answer != Push::timed_out;
            });
        }
        // The awaiting caller gets the reason.
        void close() {
            if (answer != Push::timed_out) return;
            answer = Push::closed;
            problem = "this producer was closed meanwhile";
        }
        void raise_unless_sent() const { raise_unless_ok(*shared, answer, problem); }
    };

    std::shared_ptr<SharedProducer> shared_ = std::make_shared<SharedProducer>();
    std::shared_ptr<Waiting> waiting_;
    LoopWaiter waiter_;  // destroyed first: it uses `waiting_`
};

}  // namespace

void bind_producer(nb::module_& module) {
    nb::class_<PyProducer>(module, "Producer")
        .def(nb::init<const std::string&, const std::string&, double, bool, std::uint64_t>())
        .def("push", &PyProducer::push, nb::arg("instance_id"), nb::arg("timeout").none(),
             nb::arg("fields"), nb::arg("later"))
        .def("fd", &PyProducer::fd)
        .def("begin_push", &PyProducer::begin_push, nb::arg("instance_id"),
             nb::arg("timeout").none(), nb::arg("fields"))
        .def("end_push", &PyProducer::end_push)
        .def("cancel_push", &PyProducer::cancel_push)
        .def("flush", &PyProducer::flush)
        .def("reserve", &PyProducer::reserve, nb::arg("instance_id"), nb::arg("tokens"),
             nb::arg("columns"), nb::arg("timeout").none(), nb::arg("fields"))
        .def("open_group", &PyProducer::open_group, nb::arg("instance_id"), nb::arg("visit"),
             nb::arg("timeout").none(), nb::arg("group_size"), nb::arg("record_bytes"))
        .def("may_send", &PyProducer::may_send)
        .def("inherit_place", &PyProducer::inherit_place)
        .def("cancel_group", &PyProducer::cancel_group)
        .def("close", &PyProducer::close)
        .def("stats", &PyProducer::stats)
        .def("consumer_alive", &PyProducer::consumer_alive)
        .def("durable_records", &PyProducer::durable_records)
        .def_prop_ro("closed", &PyProducer::closed)
        .def_prop_ro("lane", &PyProducer::lane)
        .def_prop_ro("lane_bytes", &PyProducer::lane_bytes);
}

}  // namespace rollring::python
