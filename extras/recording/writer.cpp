#include <fmt/core.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <deque>
#include <random>
#include <system_error>
#include <utility>

#include "append_file.hpp"
#include "columns_text.hpp"
#include "fd.hpp"
#include "file_names.hpp"
#include "file_scan.hpp"
#include "formed_group.hpp"
#include "liveness.hpp"
#include "rollring/extras/recording.hpp"
#include "rollring/time.hpp"

namespace rollring {
namespace recording {

inline constexpr std::size_t unsynced_max = 8;  // of their descriptors

struct File {
    std::filesystem::path path;
    std::uint64_t bytes;
};

// The recording that is in the directory.
struct Before {
    std::deque<File> files;
    std::uint64_t next_file = 1;
    std::uint64_t next_batch = 0;
};

namespace {

std::uint64_t random_id() {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
}

Result<Before> look(const std::filesystem::path& directory, const Schema& schema) {
    const auto files = files_of(directory);
    if (!files) return std::unexpected(files.error());
    Before before;
    std::optional<FileReader> last;
    for (const NumberedFile& one : *files) {
        before.next_file = one.number + 1;
        std::error_code ignored;
        const std::uint64_t bytes = std::filesystem::file_size(one.path, ignored);
        before.files.push_back({one.path, ignored ? 0 : bytes});
        auto file = FileReader::open(one.path);
        // Its writer died before the header was there.
        if (!file && file.error().code == Errc::not_a_ring) continue;
        if (!file) return std::unexpected(file.error());
        if (file->header().schema_id != schema.id()) {
            return refused(Errc::layout_mismatch,
                           fmt::format("the recording {} has other columns than this ring: choose "
                                       "another directory",
                                       directory.string()));
        }
        last.emplace(std::move(*file));
    }
    if (!last) return before;
    const auto found = scan(*last, 0);
    if (!found) return std::unexpected(found.error());
    before.next_batch = last->header().first_batch;
    for (const FoundBatch& batch : found->batches) before.next_batch = batch.entry.number + 1;
    return before;
}

template <class T>
std::byte* put(std::byte* to, const T& value) {
    std::memcpy(to, &value, sizeof value);
    return to + sizeof value;
}

// With files of this size, removing the oldest one leaves most of the bound.
RecordingOptions bounded(RecordingOptions options) {
    if (options.max_bytes != 0) {
        options.file_bytes =
            std::min(options.file_bytes, std::max<std::uint64_t>(options.max_bytes / 8, 1));
    }
    return options;
}

std::uint64_t tokens_of(const Sequences& batch) {
    return batch.cu_seqlens().empty() ? 0 : static_cast<std::uint64_t>(batch.cu_seqlens().back());
}

}  // namespace
}  // namespace recording

struct RecordingWriter::Impl {
    ProcessFd locked;
    std::filesystem::path directory;
    Schema schema;
    RecordingOptions options;
    recording::Before before;
    std::optional<recording::AppendFile> file = {};
    std::deque<recording::AppendFile> ended = {};  // files before it that were not synced yet
    std::optional<Error> broken = {};              // of an earlier call
    std::uint64_t forks = detail::forks;

    [[nodiscard]] Result<void> check() const {
        if (forks != detail::forks) {
            return refused(Errc::forked, "the recording belongs to the parent process");
        }
        if (broken) return std::unexpected(*broken);
        return {};
    }
    Result<void> begin_file();
    Result<void> sync_all();
    Result<std::uint64_t> add_record(const TrajectoryView& view, std::int64_t now_ns);
    Result<void> add_batch(const Sequences& batch);
    Result<std::uint64_t> add(const Sequences& batch);
    void end_batch(const Sequences& batch, std::span<const std::uint64_t> offsets,
                   std::int64_t now_ns);
    void remove_oldest();
    std::unexpected<Error> break_off(Error error, std::uint64_t cut_to);
};

Result<void> RecordingWriter::Impl::begin_file() {
    if (file && file->bytes() < options.file_bytes) return {};
    if (file) {
        before.files.push_back({file->path(), file->bytes()});
        file->drop_buffer();
        ended.push_back(std::move(*file));
        file.reset();
    }
    if (ended.size() > recording::unsynced_max) {
        if (auto synced = ended.front().sync(); !synced) return synced;
        ended.pop_front();
    }
    const std::uint64_t number = before.next_file++;
    auto made = recording::AppendFile::make(directory / recording::file_name(number),
                                            {.magic = recording::file_magic,
                                             .version = recording::file_version,
                                             .columns_bytes = 0,
                                             .file_number = number,
                                             .file_id = recording::random_id(),
                                             .schema_id = schema.id(),
                                             .first_batch = before.next_batch,
                                             .created_ns = realtime_ns(),
                                             .checksum = 0},
                                            recording::columns_text(schema));
    if (!made) return std::unexpected(made.error());
    file.emplace(std::move(*made));
    return file->flush(true);
}

Result<void> RecordingWriter::Impl::sync_all() {
    while (!ended.empty()) {
        if (auto synced = ended.front().sync(); !synced) return synced;
        ended.pop_front();
    }
    if (auto synced = file->sync(); !synced) return synced;
    return recording::sync_names(directory);
}

Result<std::uint64_t> RecordingWriter::Impl::add_record(const TrajectoryView& view,
                                                        std::int64_t now_ns) {
    const Draft draft = Draft::of(view);
    const Encoder encoder(draft, schema, Checksum::none);
    if (!encoder.problem().empty()) {
        return refused(Errc::bad_record, fmt::format("a record of '{}' does not fit the columns of "
                                                     "the recording: {}",
                                                     view.instance_id(), encoder.problem()));
    }
    encoder.write(file->begin_entry(encoder.bytes()), view.run_id(), -1);
    const std::uint64_t offset = file->end_entry({
        .kind = recording::Kind::record,
        .payload_bytes = encoder.bytes(),
        .number = before.next_batch,
        .time_ns = now_ns,
    });
    if (auto flushed = file->flush(false); !flushed) return std::unexpected(flushed.error());
    return offset;
}

void RecordingWriter::Impl::end_batch(const Sequences& batch,
                                      std::span<const std::uint64_t> offsets, std::int64_t now_ns) {
    const auto groups = batch.groups();
    const auto sequences = batch.sequences();
    const std::uint64_t bytes = sizeof(recording::BatchHead) +
                                groups.size() * sizeof(recording::RecordedGroup) +
                                sequences.size() * sizeof(recording::RecordedSequence);
    std::byte* to = file->begin_entry(bytes).data();
    to = recording::put(
        to, recording::BatchHead{.tokens = recording::tokens_of(batch),
                                 .groups = static_cast<std::uint32_t>(groups.size()),
                                 .sequences = static_cast<std::uint32_t>(sequences.size())});
    for (std::size_t i = 0; i < groups.size(); i++) {
        const std::uint32_t count = batch.group_offsets()[i + 1] - batch.group_offsets()[i];
        to = recording::put(to, recording::RecordedGroup{.key_low = groups[i].key.low,
                                                         .key_high = groups[i].key.high,
                                                         .size = groups[i].size,
                                                         .members = groups[i].members,
                                                         .bad_rewards = groups[i].bad_rewards,
                                                         .unrewarded = groups[i].unrewarded,
                                                         .sequences = count,
                                                         .reserved = 0});
    }
    for (std::size_t i = 0; i < sequences.size(); i++) {
        to =
            recording::put(to, recording::RecordedSequence{
                                   .offset = offsets[i],
                                   .reward = std::bit_cast<std::uint64_t>(batch.rewards()[i]),
                                   .advantage = std::bit_cast<std::uint64_t>(batch.advantages()[i]),
                                   .member = sequences[i].member,
                                   .withheld = sequences[i].withheld ? 1U : 0U});
    }
    file->end_entry({
        .kind = recording::Kind::batch,
        .payload_bytes = bytes,
        .number = before.next_batch,
        .time_ns = now_ns,
    });
}

Result<void> RecordingWriter::Impl::add_batch(const Sequences& batch) {
    const std::int64_t now_ns = realtime_ns();
    std::vector<std::uint64_t> offsets;
    offsets.reserve(batch.sequences().size());
    for (const Sequence& sequence : batch.sequences()) {
        const auto offset = add_record(sequence.view, now_ns);
        if (!offset) return std::unexpected(offset.error());
        offsets.push_back(*offset);
    }
    end_batch(batch, offsets, now_ns);
    return file->flush(true);
}

void RecordingWriter::Impl::remove_oldest() {
    std::uint64_t all = file->bytes();
    for (const recording::File& one : before.files) all += one.bytes;
    while (options.max_bytes != 0 && all > options.max_bytes && !before.files.empty()) {
        std::error_code ignored;  // another process may have removed it
        std::filesystem::remove(before.files.front().path, ignored);
        all -= before.files.front().bytes;
        before.files.pop_front();
    }
}

std::unexpected<Error> RecordingWriter::Impl::break_off(Error error, std::uint64_t cut_to) {
    if (file && !file->cut_back(cut_to)) {
        error.message += "; its last batch is cut short";
    }
    if (error.code != Errc::bad_record) broken = error;
    return std::unexpected(std::move(error));
}

Result<std::uint64_t> RecordingWriter::Impl::add(const Sequences& batch) {
    if (auto begun = begin_file(); !begun) return break_off(begun.error(), 0);
    const std::uint64_t start = file->bytes();
    if (auto added = add_batch(batch); !added) return break_off(added.error(), start);
    remove_oldest();
    return before.next_batch++;
}

RecordingWriter::RecordingWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RecordingWriter::RecordingWriter(RecordingWriter&&) noexcept = default;
RecordingWriter& RecordingWriter::operator=(RecordingWriter&&) noexcept = default;
RecordingWriter::~RecordingWriter() {
    if (impl_ != nullptr) recording::unlock_directory(impl_->locked);
}

Result<RecordingWriter> RecordingWriter::open(const std::filesystem::path& directory,
                                              const Schema& schema,
                                              const RecordingOptions& options) {
    if (options.file_bytes == 0) {
        return refused(Errc::invalid_argument, "file_bytes of a recording is 0");
    }
    std::error_code wrong;
    std::filesystem::create_directories(directory, wrong);
    if (wrong) return recording::file_failed(wrong.value(), "cannot make the directory", directory);
    auto locked = recording::lock_directory(directory, "recording");
    if (!locked) return std::unexpected(locked.error());
    auto before = recording::look(directory, schema);
    if (!before) return std::unexpected(before.error());
    auto impl = std::make_unique<Impl>(Impl{.locked = std::move(*locked),
                                            .directory = directory,
                                            .schema = schema,
                                            .options = recording::bounded(options),
                                            .before = std::move(*before)});
    if (auto begun = impl->begin_file(); !begun) return std::unexpected(begun.error());
    return RecordingWriter(std::move(impl));
}

Result<std::uint64_t> RecordingWriter::add(const Sequences& batch) {
    if (auto good = impl_->check(); !good) return std::unexpected(good.error());
    if (!batch.leased()) return refused(Errc::not_leased, "the batch was given back before");
    return impl_->add(batch);
}

Result<std::uint64_t> RecordingWriter::add_group(std::span<const TrajectoryView* const> records,
                                                 std::uint32_t size,
                                                 const AdvantageFormula& formula) {
    if (auto good = impl_->check(); !good) return std::unexpected(good.error());
    auto formed = recording::FormedGroup::of(records, size, formula);
    if (!formed) return std::unexpected(formed.error());
    return impl_->add(*formed);
}

Result<void> RecordingWriter::acked(std::uint64_t number, std::int64_t step) {
    if (auto good = impl_->check(); !good) return good;
    if (step < 0)
        return refused(Errc::invalid_argument, fmt::format("a step is 0 or more, not {}", step));
    const std::uint64_t start = impl_->file->bytes();
    static_cast<void>(impl_->file->begin_entry(0));
    impl_->file->end_entry({.kind = recording::Kind::acked,
                            .payload_bytes = 0,
                            .number = number,
                            .time_ns = realtime_ns(),
                            .step = step});
    if (auto flushed = impl_->file->flush(true); !flushed) {
        return impl_->break_off(flushed.error(), start);
    }
    return {};
}

Result<void> RecordingWriter::sync() {
    if (auto good = impl_->check(); !good) return good;
    auto synced = impl_->sync_all();
    // A later fdatasync may succeed though the kernel has dropped the pages.
    if (!synced) impl_->broken = synced.error();
    return synced;
}

std::uint64_t RecordingWriter::bytes() const {
    std::uint64_t all = impl_->file ? impl_->file->bytes() : 0;
    for (const recording::File& one : impl_->before.files) all += one.bytes;
    return all;
}

}  // namespace rollring
