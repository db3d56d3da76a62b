#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "owned.hpp"
#include "released.hpp"
#include "rollring/extras/ledger.hpp"
#include "taking.hpp"
#include "with_files.hpp"

namespace rollring::python {
namespace {

nb::list texts(const std::vector<std::string>& all) {
    nb::list made;
    for (const std::string& one : all) made.append(nb::str(one.data(), one.size()));
    return made;
}

nb::dict dict_of(const LedgerStat& stat) {
    nb::dict made;
    made["directory"] = stat.directory;
    made["ring"] = stat.ring;
    made["records"] = stat.records;
    made["tokens"] = stat.tokens;
    made["groups"] = stat.groups;
    made["acked"] = stat.acked;
    made["record_bytes"] = stat.record_bytes;
    made["file_bytes"] = stat.file_bytes;
    made["files"] = stat.files;
    made["is_written"] = stat.is_written;
    made["failure"] = stat.failure;
    made["parked"] = stat.parked;
    made["parked_bytes"] = stat.parked_bytes;
    made["oldest_parked_ns"] = stat.oldest_parked_ns;
    made["damaged"] = texts(stat.damaged);
    made["unreadable"] = stat.unreadable;
    return made;
}

nb::dict ledger_stat(const std::string& directory) {
    auto looked = [&] {
        const Released released;  // reads files
        return stat_ledger(directory);
    }();
    return dict_of(value_or_raise(std::move(looked)));
}

class PyLedger {
  public:
    explicit PyLedger(const std::string& directory) {
        auto opened = [&] {
            const Released released;
            return Ledger::open(directory);
        }();
        ledger_.hold(value_or_raise(std::move(opened)));
        schema_ = std::make_shared<const Schema>(ledger_.object->schema());
    }
    nb::dict stat() {
        return dict_of(ledger_.in_turn([](const Ledger& ledger) { return ledger.stat(); }));
    }
    std::size_t size() {
        return ledger_.in_turn([](const Ledger& ledger) { return ledger.records().size(); });
    }
    // The record, its number, the key of its group as in the facts of a stash, and the step of its
    // acknowledgement, or None.
    nb::tuple read(std::size_t index) {
        const auto info =
            ledger_.in_turn([&](const Ledger& ledger) { return ledger.records()[index]; });
        const KeptRecord record =
            with_files(ledger_, [&](const Ledger& ledger) { return ledger.read(index); });
        return nb::make_tuple(nb::cast(Taken(Copied(record.view()), schema_)), info.number,
                              nb::make_tuple(info.key.low, info.key.high), info.step);
    }
    void close() {
        static_cast<void>(ledger_.take([] {}));
    }

  private:
    Owned<Ledger> ledger_{"this ledger"};
    std::shared_ptr<const Schema> schema_;
};

class PyLedgerRestore {
  public:
    PyLedgerRestore(const std::string& directory, const std::string& ring,
                    std::optional<std::int64_t> step, const std::string& ledger) {
        RestoreOptions options{.step = step};
        if (!ledger.empty()) options.ledger_dir = ledger;
        auto begun = [&] {
            const Released released;
            return LedgerRestore::begin(directory, ring, options);
        }();
        restore_.emplace(value_or_raise(std::move(begun)));
    }
    // Sends for a while. True: all are sent; else why it waits, or "".
    nb::object send() {
        auto answer = [&]() -> Result<bool> {
            const Released released;
            const Deadline end = Deadline::after_ms(slice_ms);
            while (true) {
                auto sent = restore_->send(end);
                if (!sent || !*sent || end.passed()) return sent;
            }
        }();
        if (!answer && answer.error().code == Errc::timed_out) {
            return nb::str(answer.error().message.data(), answer.error().message.size());
        }
        return value_or_raise(std::move(answer)) ? nb::object(nb::str(""))
                                                 : nb::object(nb::bool_(true));
    }
    nb::dict stat() {
        const RestoreStat stat = restore_->stat();
        nb::dict made;
        made["records"] = stat.records;
        made["groups"] = stat.groups;
        made["sent"] = stat.sent;
        made["tokens"] = stat.tokens;
        made["bytes"] = stat.bytes;
        made["left_out"] = stat.left_out;
        made["parked"] = stat.parked;
        made["damaged"] = texts(stat.damaged);
        made["unreadable"] = stat.unreadable;
        return made;
    }

  private:
    static constexpr std::int64_t slice_ms = 100;  // between checks for signals
    std::optional<LedgerRestore> restore_;
};

}  // namespace

void bind_ledger(nb::module_& module) {
    module.def("ledger_stat", &ledger_stat);
    nb::class_<PyLedger>(module, "Ledger")
        .def(nb::init<const std::string&>())
        .def("stat", &PyLedger::stat)
        .def("size", &PyLedger::size)
        .def("read", &PyLedger::read)
        .def("close", &PyLedger::close);
    nb::class_<PyLedgerRestore>(module, "LedgerRestore")
        .def(nb::init<const std::string&, const std::string&, std::optional<std::int64_t>,
                      const std::string&>())
        .def("send", &PyLedgerRestore::send)
        .def("stat", &PyLedgerRestore::stat);
}

}  // namespace rollring::python
