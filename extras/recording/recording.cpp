#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "columns_text.hpp"
#include "file_names.hpp"
#include "file_scan.hpp"
#include "rollring/extras/recording.hpp"

namespace rollring {
namespace recording {

// A file as far as it is known.
struct Known {
    std::filesystem::path path;
    std::uint64_t id;
    std::uint64_t end;  // of the part that was looked through
    std::uint64_t cut;
    std::vector<std::string> damaged;
};

struct Where {
    std::size_t file;
    FoundBatch batch;
};

struct BatchTable {
    std::vector<RecordedGroup> groups;
    std::vector<RecordedSequence> sequences;
};

namespace {

template <class T>
std::vector<T> taken(std::span<const std::byte>& from, std::size_t count) {
    std::vector<T> all(count);
    std::memcpy(all.data(), from.data(), count * sizeof(T));
    from = from.subspan(count * sizeof(T));
    return all;
}

std::unexpected<Error> replaced(const std::filesystem::path& path) {
    return refused(Errc::closed, fmt::format("{} was removed or replaced since it was opened: open "
                                             "the recording again",
                                             path.string()));
}

std::unexpected<Error> bad_batch(const FileReader& file, std::uint64_t offset,
                                 std::string_view problem) {
    return refused(Errc::bad_record, fmt::format("{}: the batch at byte {} {}",
                                                 file.path().string(), offset, problem));
}

Result<BatchTable> table_of(const FileReader& file, const FoundBatch& batch) {
    std::vector<std::byte> payload(batch.entry.payload_bytes);
    if (auto read = file.read_payload(batch.offset, batch.entry, payload.data()); !read) {
        return std::unexpected(read.error());
    }
    std::span<const std::byte> rest(payload);
    rest = rest.subspan(sizeof(BatchHead));
    BatchTable table;
    table.groups = taken<RecordedGroup>(rest, batch.head.groups);
    table.sequences = taken<RecordedSequence>(rest, batch.head.sequences);
    std::uint64_t sequences = 0;
    for (const RecordedGroup& group : table.groups) {
        sequences += group.sequences;
        if (group.sequences == 0 || group.members > group.sequences ||
            group.size > group_size_max) {
            return bad_batch(file, batch.offset, "has a group with impossible counts");
        }
    }
    if (sequences != table.sequences.size()) {
        return bad_batch(file, batch.offset, "counts its sequences twice, differently");
    }
    return table;
}

}  // namespace
}  // namespace recording

// The bytes of all its records, as one lane.
struct RecordedBatch::Memory final : MappedLanes {
    explicit Memory(std::uint64_t all)
        : bytes(all), data(static_cast<std::byte*>(::operator new(all, alignment))) {}
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() override { ::operator delete(data, alignment); }
    [[nodiscard]] std::size_t count() const override { return 1; }
    [[nodiscard]] MappedLane lane(std::size_t /*number*/) const override {
        return {.data = data, .bytes = bytes, .generation = 1, .used = true};
    }

    static constexpr std::align_val_t alignment{4096};  // whole pages may be registered with a GPU
    std::uint64_t bytes;
    std::byte* data;
};

RecordedBatch::RecordedBatch() = default;
RecordedBatch::RecordedBatch(RecordedBatch&&) noexcept = default;
RecordedBatch& RecordedBatch::operator=(RecordedBatch&&) noexcept = default;
RecordedBatch::~RecordedBatch() {
    if (lease_.state_ != nullptr) lease_.state_->leased = false;
}

struct Recording::Impl {
    std::filesystem::path path;
    bool is_directory = false;
    Schema schema = Schema::standard();
    std::vector<recording::Known> files = {};
    std::vector<RecordedInfo> infos = {};
    std::vector<recording::Where> where = {};
    std::vector<std::string> unopened = {};  // files without a header, for people

    Result<std::vector<recording::NumberedFile>> find_files() const;
    Result<void> look();
    Result<void> look_at(const recording::NumberedFile& found);
    void take(std::size_t file, const recording::Scan& found);
    Result<void> load(const recording::FileReader& file, const recording::FoundBatch& batch,
                      RecordedBatch& to) const;
};

Result<std::vector<recording::NumberedFile>> Recording::Impl::find_files() const {
    if (is_directory) return recording::files_of(path);
    return std::vector<recording::NumberedFile>{{.number = 0, .path = path}};
}

void Recording::Impl::take(std::size_t file, const recording::Scan& found) {
    for (const recording::FoundBatch& batch : found.batches) {
        infos.push_back({.number = batch.entry.number,
                         .step = std::nullopt,
                         .recorded_ns = batch.entry.time_ns,
                         .groups = batch.head.groups,
                         .sequences = batch.head.sequences,
                         .tokens = batch.head.tokens});
        where.push_back({.file = file, .batch = batch});
    }
    for (const recording::EntryHeader& acked : found.acked) {
        const auto info = std::ranges::lower_bound(infos, acked.number, {}, &RecordedInfo::number);
        if (info != infos.end() && info->number == acked.number) info->step = acked.step;
    }
    recording::Known& known = files[file];
    known.damaged.insert(known.damaged.end(), found.damaged.begin(), found.damaged.end());
    known.end = found.end;
    known.cut = found.cut;
}

Result<void> Recording::Impl::look_at(const recording::NumberedFile& found) {
    auto file = recording::FileReader::open(found.path);
    if (!file) return std::unexpected(file.error());
    auto known = std::ranges::find(files, found.path, &recording::Known::path);
    if (known == files.end()) {
        auto read = recording::schema_of(file->columns());
        if (!read) {
            return refused(read.error().code,
                           fmt::format("{}: {}", found.path.string(), read.error().message));
        }
        if (read->id() != file->header().schema_id) {
            return refused(Errc::abi_mismatch,
                           fmt::format("{} was recorded by a rollring with other standard columns",
                                       found.path.string()));
        }
        if (!files.empty() && read->id() != schema.id()) {
            return refused(
                Errc::not_a_ring,
                fmt::format("{} has other columns than the file before it", found.path.string()));
        }
        schema = std::move(*read);
        known = files.insert(files.end(), {.path = found.path, .id = file->header().file_id});
    }
    if (known->id != file->header().file_id) return recording::replaced(found.path);
    const auto at = static_cast<std::size_t>(known - files.begin());
    const auto more = recording::scan(*file, known->end);
    if (!more) return std::unexpected(more.error());
    take(at, *more);
    return {};
}

Result<void> Recording::Impl::look() {
    const auto found = find_files();
    if (!found) return std::unexpected(found.error());
    unopened.clear();
    if (!files.empty() && std::ranges::find(*found, files.back().path,
                                            &recording::NumberedFile::path) == found->end()) {
        return recording::replaced(files.back().path);
    }
    for (const recording::NumberedFile& one : *found) {
        // Only the last known file can have grown.
        const bool old =
            !files.empty() &&
            std::ranges::find(files, one.path, &recording::Known::path) != files.end() &&
            one.path != files.back().path;
        if (old) continue;
        if (auto looked = look_at(one); !looked) {
            // A writer that dies at once leaves a file without a header; a bounded recording loses
            // its oldest file at any time.
            const bool ours =
                looked.error().code == Errc::not_a_ring || looked.error().code == Errc::not_found;
            if (!is_directory || !ours || one.number == 0) return looked;
            unopened.push_back(looked.error().message);
        }
    }
    if (!files.empty()) return {};
    return refused(Errc::not_a_ring, fmt::format("{} has no files of a recording", path.string()));
}

Result<void> Recording::Impl::load(const recording::FileReader& file,
                                   const recording::FoundBatch& batch, RecordedBatch& to) const {
    const auto table = recording::table_of(file, batch);
    if (!table) return std::unexpected(table.error());
    std::vector<recording::EntryHeader> entries;
    entries.reserve(table->sequences.size());
    std::uint64_t bytes = 0;
    for (const recording::RecordedSequence& one : table->sequences) {
        if (one.offset >= batch.offset) {
            return recording::bad_batch(file, batch.offset, "names a record behind itself");
        }
        const auto entry = file.entry_at(one.offset);
        if (!entry) return std::unexpected(entry.error());
        if (!*entry || (*entry)->kind != recording::Kind::record) {
            return recording::bad_batch(file, batch.offset,
                                        fmt::format("has no record at byte {}", one.offset));
        }
        entries.push_back(**entry);
        bytes += recording::padded((*entry)->payload_bytes);
    }
    if (bytes > batch.offset)
        return recording::bad_batch(file, batch.offset, "names a record twice");
    const auto memory = std::make_shared<RecordedBatch::Memory>(bytes);
    to.views_.resize(entries.size());
    to.lease_to(memory, nullptr, memory);
    to.begin(entries.size());
    std::byte* next = memory->data;
    std::size_t i = 0;
    for (const recording::RecordedGroup& group : table->groups) {
        for (std::uint32_t n = 0; n < group.sequences; n++, i++) {
            const recording::RecordedSequence& one = table->sequences[i];
            if (auto read = file.read_payload(one.offset, entries[i], next); !read) return read;
            const std::string_view wrong =
                to.views_[i].parse({next, entries[i].payload_bytes}, schema);
            if (!wrong.empty()) return recording::bad_batch(file, batch.offset, wrong);
            next += recording::padded(entries[i].payload_bytes);
            to.add(to.views_[i], one.member, one.withheld != 0, std::bit_cast<double>(one.reward),
                   std::bit_cast<double>(one.advantage));
        }
        to.end_group({.key = {group.key_low, group.key_high},
                      .size = group.size,
                      .members = group.members,
                      .bad_rewards = group.bad_rewards,
                      .unrewarded = group.unrewarded});
    }
    return {};
}

Recording::Recording(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Recording::Recording(Recording&&) noexcept = default;
Recording& Recording::operator=(Recording&&) noexcept = default;
Recording::~Recording() = default;

Result<Recording> Recording::open(const std::filesystem::path& path) {
    struct stat found{};
    if (stat(path.c_str(), &found) != 0) return recording::file_failed(errno, "cannot open", path);
    auto impl = std::make_unique<Impl>(Impl{.path = path, .is_directory = S_ISDIR(found.st_mode)});
    if (auto looked = impl->look(); !looked) return std::unexpected(looked.error());
    return Recording(std::move(impl));
}

const Schema& Recording::schema() const {
    return impl_->schema;
}

std::span<const RecordedInfo> Recording::batches() const {
    return impl_->infos;
}

std::vector<std::size_t> Recording::find_step(std::int64_t step) const {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < impl_->infos.size(); i++) {
        if (impl_->infos[i].step == step) found.push_back(i);
    }
    return found;
}

Result<RecordedBatch> Recording::read(std::size_t index) const {
    const recording::Where& at = impl_->where[index];
    const recording::Known& known = impl_->files[at.file];
    const auto file = recording::FileReader::open(known.path);
    if (!file && file.error().code == Errc::not_found) {
        return refused(Errc::not_found,
                       fmt::format("{} was removed: the recording has a bound (max_bytes), or its "
                                   "files were deleted",
                                   known.path.string()));
    }
    if (!file) return std::unexpected(file.error());
    if (file->header().file_id != known.id) return recording::replaced(known.path);
    try {
        RecordedBatch batch;
        if (auto loaded = impl_->load(*file, at.batch, batch); !loaded) {
            return std::unexpected(loaded.error());
        }
        return batch;
    } catch (const std::bad_alloc&) {
        return refused(Errc::host_memory, fmt::format("{}: no memory for the batch at byte {}",
                                                      known.path.string(), at.batch.offset));
    }
}

Result<void> Recording::refresh() {
    return impl_->look();
}

std::string Recording::problem() const {
    std::string text;
    const auto add = [&](const std::string& more) {
        if (!text.empty()) text += "; ";
        text += more;
    };
    for (const std::string& one : impl_->unopened) add(one);
    for (const recording::Known& file : impl_->files) {
        for (const std::string& one : file.damaged) add(one);
    }
    const bool live = impl_->is_directory && recording::is_written(impl_->path);
    for (const recording::Known& one : impl_->files) {
        if (one.cut == 0 || (live && &one == &impl_->files.back())) continue;
        add(fmt::format("{}: cut short, its last {} bytes are part of a batch", one.path.string(),
                        one.cut));
    }
    return text;
}

}  // namespace rollring
