#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "owned.hpp"
#include "released.hpp"
#include "rollring/extras/recording.hpp"
#include "rollring/stat.hpp"
#include "text_casters.hpp"
#include "views.hpp"
#include "with_files.hpp"

namespace rollring::python {
namespace {

// A batch of a recording, in memory of its own.
class Copied final : public Lent {
  public:
    Copied(std::shared_ptr<const Schema> schema, RecordedBatch batch)
        : schema_(std::move(schema)), batch_(std::move(batch)) {}

    [[nodiscard]] bool leased() const override { return !closed && batch_.leased(); }
    [[nodiscard]] const Schema& schema() const override { return *schema_; }
    [[nodiscard]] Gatherers& gatherers() override { return gatherers_; }

    bool closed = false;

  protected:
    void check_shown() const override {
        if (inherited()) {
            raise("forked", "this batch of a recording was read by the parent process");
        }
        if (closed) raise("not_leased", "the batch of a recording was given back");
    }
    [[nodiscard]] const Sequences& all() const override { return batch_; }

  private:
    std::shared_ptr<const Schema> schema_;
    RecordedBatch batch_;
    Gatherers gatherers_;
};

class PyRecordedBatch : public PyViews {
  public:
    explicit PyRecordedBatch(std::shared_ptr<Copied> copied)
        : PyViews(copied), copied_(std::move(copied)) {}
    // Arrays over it stay as they are.
    void close() { copied_->closed = true; }

  private:
    std::shared_ptr<Copied> copied_;
};

class PyRecording {
  public:
    explicit PyRecording(const std::string& path) {
        auto opened = [&] {
            const Released released;
            return Recording::open(path);
        }();
        recording_.hold(value_or_raise(std::move(opened)));
        schema_ = std::make_shared<const Schema>(recording_.object->schema());
    }
    // (number, step or None, seconds since 1970, groups, sequences, tokens) of each from `first`
    // on.
    nb::list batches(std::size_t first) {
        const auto infos = recording_.in_turn([&](Recording& recording) {
            const auto all = recording.batches();
            return std::vector<RecordedInfo>(
                all.begin() + static_cast<std::ptrdiff_t>(std::min(first, all.size())), all.end());
        });
        nb::list made;
        for (const RecordedInfo& info : infos) {
            made.append(nb::make_tuple(info.number, info.step,
                                       static_cast<double>(info.recorded_ns) * 1e-9, info.groups,
                                       info.sequences, info.tokens));
        }
        return made;
    }
    std::vector<std::size_t> find_step(std::int64_t step) {
        return recording_.in_turn([&](Recording& recording) { return recording.find_step(step); });
    }
    PyRecordedBatch read(std::size_t index) {
        return PyRecordedBatch(std::make_shared<Copied>(
            schema_, with_files(recording_, [&](const Recording& recording) {
                return recording.read(index);
            })));
    }
    void refresh() {
        with_files(recording_, [](Recording& recording) { return recording.refresh(); });
    }
    std::string problem() {
        return recording_.in_turn([&](Recording& recording) { return recording.problem(); });
    }
    void close() {
        static_cast<void>(recording_.take([] {}));
    }

  private:
    Owned<Recording> recording_{"this recording"};
    std::shared_ptr<const Schema> schema_;
};

// For the batches of one ring.
class PyRecordingWriter {
  public:
    PyRecordingWriter(const std::string& path, const std::string& ring, std::uint64_t file_bytes,
                      std::uint64_t max_bytes) {
        auto opened = [&]() -> Result<RecordingWriter> {
            const Released released;
            const auto stat = stat_ring(ring);
            if (!stat) return std::unexpected(stat.error());
            return RecordingWriter::open(path, stat->schema,
                                         {.file_bytes = file_bytes, .max_bytes = max_bytes});
        }();
        writer_.hold(value_or_raise(std::move(opened)));
    }
    // `batch`: a Views of rollring/_views.py.
    std::uint64_t add(nb::handle batch) {
        const auto& lent = nb::cast<PyViews&>(batch.attr("_views")).lent();
        const Sequences& sequences = lent->shown();
        lent->begin_copy();
        struct End {
            Lent& lent;
            ~End() { lent.end_copy(); }
        } const end{*lent};
        return with_files(writer_, [&](RecordingWriter& writer) { return writer.add(sequences); });
    }
    void acked(std::uint64_t number, std::int64_t step) {
        with_files(writer_, [&](RecordingWriter& writer) { return writer.acked(number, step); });
    }
    void sync() {
        with_files(writer_, [](RecordingWriter& writer) { return writer.sync(); });
    }
    std::uint64_t bytes() {
        return writer_.in_turn([](RecordingWriter& writer) { return writer.bytes(); });
    }
    void close() {
        static_cast<void>(writer_.take([] {}));
    }

  private:
    Owned<RecordingWriter> writer_{"this recorder"};
};

}  // namespace

void bind_recording(nb::module_& module) {
    nb::class_<PyRecordedBatch, PyViews>(module, "RecordedBatch")
        .def("close", &PyRecordedBatch::close);
    nb::class_<PyRecording>(module, "Recording")
        .def(nb::init<const std::string&>())
        .def("batches", &PyRecording::batches)
        .def("find_step", &PyRecording::find_step)
        .def("read", &PyRecording::read)
        .def("refresh", &PyRecording::refresh)
        .def("problem", &PyRecording::problem)
        .def("close", &PyRecording::close);
    nb::class_<PyRecordingWriter>(module, "RecordingWriter")
        .def(nb::init<const std::string&, const std::string&, std::uint64_t, std::uint64_t>())
        .def("add", &PyRecordingWriter::add)
        .def("acked", &PyRecordingWriter::acked)
        .def("sync", &PyRecordingWriter::sync)
        .def("bytes", &PyRecordingWriter::bytes)
        .def("close", &PyRecordingWriter::close);
}

}  // namespace rollring::python
