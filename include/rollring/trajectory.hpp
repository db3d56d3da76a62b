#pragma once
// One record: a token trajectory, or the mark of one that failed.
//
//   Draft           a producer's side: header fields and spans over its own memory
//   TrajectoryView  a consumer's side: the same, over shared memory, nothing copied
//
// In memory a record is a 192-byte header, a directory of its columns, then the columns, each
// 64-byte aligned. Little endian. Everything a view returns was checked against the record's
// bounds; the payload itself may still be changed by a broken producer while you read it, so check
// token ids at use, or use a checksum.

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/schema.hpp"
#include "rollring/version.hpp"

namespace rollring {

enum class Status : std::uint8_t {
    completed,
    truncated,
    aborted,
    failed,
    timed_out,
    filtered,
};
ROLLRING_API std::string_view name(Status status);
ROLLRING_API std::optional<Status> parse_status(std::string_view text);

enum class Checksum : std::uint8_t { none, xxh3 };

// 128-bit hash of (instance_id, visit): the key of the group a record belongs to.
struct ROLLRING_API GroupKey {
    std::uint64_t low = 0;
    std::uint64_t high = 0;

    friend bool operator==(const GroupKey&, const GroupKey&) = default;
    static GroupKey of(std::string_view instance_id, std::uint64_t visit);
};

// The most members that a record may claim for its group. A record that claims more is refused
// where it is pushed (Push::bad_record), and dropped as torn where it is read.
inline constexpr std::uint32_t group_size_max = 65'536;

// A member's number within its group, or none. It reads as a number, 0 if there is none. It has no
// truth value, which could mean the number or its presence: ask has_value().
class RepetitionId {
  public:
    constexpr RepetitionId() = default;
    constexpr RepetitionId(std::uint32_t number) : number_(number), set_(true) {}  // NOLINT

    constexpr operator std::uint32_t() const { return number_; }  // NOLINT: reads as a number
    explicit operator bool() const = delete;

    [[nodiscard]] constexpr bool has_value() const { return set_; }
    [[nodiscard]] constexpr std::uint32_t value_or(std::uint32_t other) const {
        return set_ ? number_ : other;
    }

    // Two IDs without a number are equal, and such an ID differs from every number.
    friend constexpr bool operator==(const RepetitionId&, const RepetitionId&) = default;
    friend constexpr bool operator==(const RepetitionId& id, std::integral auto number) {
        return id.set_ && std::cmp_equal(id.number_, number);
    }

  private:
    std::uint32_t number_ = 0;
    bool set_ = false;
};

// The header fields, the same for Draft and TrajectoryView. A field without a bound may have any
// value: nothing is allocated for it, and nothing is counted up to it.
struct Meta {
    std::uint64_t visit = 0;  // which pass over the instance this is
    // Member of the group: any number that no other member has. It identifies records that are sent
    // twice. Without one a record is a member of its own, and cannot be one of several
    // subsequences. All members of a group have one, or none has.
    RepetitionId repetition_id = {};
    std::uint32_t group_size = 0;  // 0: the stash's default; at most group_size_max
    std::uint16_t subsequence_index = 0;
    bool last_subsequence = true;                // the member is complete with this one
    std::uint32_t attempt = 0;                   // a retry has a higher one
    std::optional<std::int64_t> source_id = {};  // environment number (Atropos env_id)
    Status status = Status::completed;
    std::uint32_t n_prompt = 0;            // leading tokens that are prompt; at most n_tokens
    std::int64_t policy_version_min = -1;  // over the generated tokens; -1: unknown
    std::int64_t policy_version_max = -1;
    std::optional<double> reward = {};  // absent is not NaN
    std::int64_t created_ns = 0;        // CLOCK_REALTIME; 0: unknown
    std::int64_t finished_ns = 0;
    std::uint16_t origin = 0;   // the application's own tag: the format that it came from
    bool user_is_text = false;  // the column `user` was given as text: Python returns it as text
};

// Fields of a rollout that are known only when it is over. A field that is not set stays as it was.
struct RolloutOutcome {
    std::optional<Status> status = {};
    std::optional<std::uint32_t> n_prompt = {};
    std::optional<std::int64_t> policy_version_min = {};
    std::optional<std::int64_t> policy_version_max = {};
    std::optional<double> reward = {};
    std::optional<std::int64_t> finished_ns = {};
};

// A column of a draft. `data` may be null: space is then left, to be filled in place before commit.
struct ROLLRING_API DraftColumn {
    std::uint16_t column;  // index in the schema, for the standard one static_cast of Std
    DType dtype;
    std::array<std::uint32_t, 4> shape;  // [rows, dims...]; rows equals n_tokens for Per::token
    std::uint8_t dims;                   // how many of shape are set, 1 to 4
    const void* data;

    [[nodiscard]] std::uint64_t bytes() const;
};

class TrajectoryView;

// A record on its way in. Spans must live until push() or reserve() returns.
class ROLLRING_API Draft {
  public:
    Meta meta;

    explicit Draft(std::string_view instance_id = {}) { set_text(Std::instance_id, instance_id); }
    // A draft owns nothing: a temporary string would be gone before push().
    template <std::same_as<std::string> Temporary>
    explicit Draft(Temporary&& instance_id) = delete;

    // A draft of the same record; its spans point into `record`.
    static Draft of(const TrajectoryView& record);

    // Per token or per record columns of the standard schema, one-dimensional.
    template <class T>
    Draft& set(Std column, std::span<const T> values) {
        fill(index(column), dtype_of<T>(), rows(values.size()), values.data());
        return *this;
    }
    template <class T>
    Draft& set(Std column, const std::vector<T>& values) {
        return set(column, std::span<const T>(values));
    }
    template <class T>
    Draft& set(Std column, std::vector<T>&& temporary) = delete;
    Draft& set_text(Std column, std::string_view text);
    template <std::same_as<std::string> Temporary>
    Draft& set_text(Std column, Temporary&& text) = delete;

    // Any column, with shape; replaces an earlier one of the same index. At most 32 columns.
    Draft& add(const DraftColumn& column);

    void clear();  // for reuse without allocation

    [[nodiscard]] std::span<const DraftColumn> columns() const { return {columns_.data(), count_}; }
    [[nodiscard]] const DraftColumn* find(Std column) const {
        for (std::size_t i = 0; i < count_; i++) {
            if (columns_[i].column == index(column)) return &columns_[i];
        }
        return nullptr;
    }
    [[nodiscard]] std::string_view instance_id() const {
        const DraftColumn* id = find(Std::instance_id);
        if (id == nullptr || id->data == nullptr) return {};
        return {static_cast<const char*>(id->data), id->shape[0]};
    }
    [[nodiscard]] std::uint32_t n_tokens() const {
        const DraftColumn* tokens = find(Std::token_ids);
        return tokens != nullptr ? tokens->shape[0] : 0;
    }

  private:
    static std::uint16_t index(Std column) { return static_cast<std::uint16_t>(column); }
    static std::uint32_t rows(std::size_t count) {
        ROLLRING_ASSERT(count <= std::numeric_limits<std::uint32_t>::max(),
                        "a column has at most 2^32 - 1 rows");
        return static_cast<std::uint32_t>(count);
    }
    DraftColumn& entry(std::uint16_t column) {
        for (std::size_t i = 0; i < count_; i++) {
            if (columns_[i].column == column) return columns_[i];
        }
        ROLLRING_ASSERT(count_ < columns_.size(), "a draft holds at most 32 columns");
        return columns_[count_++];
    }
    // Fills the entry in place: a column that is assembled elsewhere and copied would stall the
    // CPU.
    void fill(std::uint16_t column, DType dtype, std::uint32_t rows, const void* data) {
        DraftColumn& to = entry(column);
        to.column = column;
        to.dtype = dtype;
        to.shape = {rows, 0, 0, 0};
        to.dims = 1;
        to.data = data;
    }
    std::array<DraftColumn, 32> columns_;
    std::size_t count_ = 0;
};

// A column as it lies in the record. `data` is 64-byte aligned.
struct ColumnView {
    std::uint16_t column = 0;
    DType dtype{};
    std::uint8_t dims = 0;
    std::array<std::uint32_t, 4> shape{};
    std::span<const std::byte> data;

    // The elements; empty unless T is the column's dtype.
    template <class T>
    [[nodiscard]] std::span<const T> as() const {
        if (dtype != dtype_of<T>()) return {};
        return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
    }
};

// Up to 32 columns. A list of up to eight is stored inline, because a stash keeps a view of every
// record that it holds.
// Only existing columns are ever written or copied.
class ROLLRING_API ColumnList {
  public:
    ColumnList() {}  // NOLINT(modernize-use-equals-default): leaves the storage as it is
    ColumnList(const ColumnList& other) { *this = other; }
    ColumnList& operator=(const ColumnList& other) {
        if (this == &other) return *this;
        std::memcpy(empty(other.count_), other.data(), other.count_ * sizeof(ColumnView));
        count_ = other.count_;
        return *this;
    }
    ~ColumnList() = default;

    // Empties the list, and returns memory in which the caller makes `count` columns, 32 at most;
    // take() then adds them.
    std::byte* empty(std::size_t count) {
        count_ = 0;
        if (count > few && many_ == nullptr) [[unlikely]]
            many_ = std::make_unique_for_overwrite<std::byte[]>(32 * sizeof(ColumnView));
        return many_ != nullptr ? many_.get() : storage_;
    }
    void take(std::size_t count) { count_ = count; }
    // The record has moved from `from` to `to`.
    void follow(const std::byte* from, const std::byte* to) {
        for (std::size_t i = 0; i < count_; i++) {
            auto* column = std::launder(reinterpret_cast<ColumnView*>(data()) + i);
            column->data = {to + (column->data.data() - from), column->data.size()};
        }
    }
    [[nodiscard]] std::span<const ColumnView> all() const {
        return {std::launder(reinterpret_cast<const ColumnView*>(data())), count_};
    }

  private:
    static constexpr std::size_t few = 8;
    static_assert(std::is_trivially_copyable_v<ColumnView>);
    [[nodiscard]] std::byte* data() { return many_ != nullptr ? many_.get() : storage_; }
    [[nodiscard]] const std::byte* data() const {
        return many_ != nullptr ? many_.get() : storage_;
    }

    std::size_t count_ = 0;
    std::unique_ptr<std::byte[]> many_;  // kept: a list that was long once will be again
    alignas(ColumnView) std::byte storage_[few * sizeof(ColumnView)];
};

// A record as it lies in memory. Valid until the record is released. Cheap to copy.
class ROLLRING_API TrajectoryView {
  public:
    TrajectoryView() = default;

    // Points this view at `payload` (64-byte aligned; may be shared memory: each word of header and
    // directory is read once), after checking all of it, the checksum too if the record has one.
    // Returns the problem; empty if there is none.
    // A second look at the same record skips the hashes of its content: checksum and group key.
    enum class Look { first, again };
    std::string_view parse(std::span<const std::byte> payload, const Schema& schema,
                           Look look = Look::first);

    // The record was copied from `from` to `to`: points this view at the copy, without a new check.
    void follow(const std::byte* from, const std::byte* to) { columns_.follow(from, to); }

    [[nodiscard]] const Meta& meta() const { return meta_; }
    [[nodiscard]] GroupKey group_key() const { return key_; }
    [[nodiscard]] std::uint64_t run_id() const { return run_id_; }
    [[nodiscard]] std::uint32_t n_tokens() const { return n_tokens_; }

    [[nodiscard]] std::string_view instance_id() const { return text(Std::instance_id); }
    [[nodiscard]] std::span<const std::int32_t> token_ids() const {
        return values<std::int32_t>(Std::token_ids);
    }
    [[nodiscard]] std::span<const std::uint8_t> loss_mask() const {
        return values<std::uint8_t>(Std::loss_mask);
    }
    [[nodiscard]] std::span<const float> logprobs() const { return values<float>(Std::logprobs); }

    // Empty if the record does not carry the column.
    template <class T>
    [[nodiscard]] std::span<const T> values(Std column) const {
        const ColumnView* found = find(static_cast<std::uint16_t>(column));
        return found != nullptr ? found->as<T>() : std::span<const T>{};
    }
    [[nodiscard]] std::string_view text(Std column) const;
    [[nodiscard]] const ColumnView* find(std::uint16_t column) const;
    [[nodiscard]] std::span<const ColumnView> columns() const { return columns_.all(); }

    // A 64-bit hash of instance_id, visit, repetition_id, attempt, status, reward and all columns
    // (name, dtype, shape, content). The sum over records does not depend on their order.
    [[nodiscard]] std::uint64_t digest(const Schema& schema) const;

  private:
    Meta meta_;
    GroupKey key_;
    std::uint64_t run_id_ = 0;
    std::uint32_t n_tokens_ = 0;
    ColumnList columns_;
};

// The oldest and the newest policy version that sampled a generated token; -1: none did. The column
// policy_version has them as runs of {start token, version}.
struct VersionRange {
    std::int64_t min = -1;
    std::int64_t max = -1;
    std::string_view problem;  // of invalid runs: a start outside the tokens, or not in order
};
[[nodiscard]] ROLLRING_API VersionRange version_range(std::span<const std::int64_t> runs,
                                                      std::uint32_t n_tokens,
                                                      std::uint32_t n_prompt);

// The runs for a list of one version per token.
[[nodiscard]] ROLLRING_API std::vector<std::int64_t> version_runs(
    std::span<const std::int64_t> of_tokens);

// Lays a draft out. Used by Producer; on its own for records outside a ring.
class ROLLRING_API Encoder {
  public:
    Encoder(const Draft& draft, const Schema& schema, Checksum checksum);

    // Why the draft cannot be a record of this schema; empty if it can.
    [[nodiscard]] std::string_view problem() const { return problem_; }
    // The column of the problem; empty if it concerns none.
    [[nodiscard]] std::string_view problem_column() const { return problem_column_; }
    // A column has a shape and no data: write() leaves its memory unchanged.
    [[nodiscard]] bool has_holes() const { return holes_; }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
    [[nodiscard]] GroupKey group_key() const { return key_; }

    // Writes header, directory and the columns that have data. `to` is 64-byte aligned and bytes()
    // long. `policy_version` is stamped on a draft that names no version and has no such column.
    void write(std::span<std::byte> to, std::uint64_t run_id, std::int64_t policy_version) const;

  private:
    ROLLRING_LOCAL std::string_view lay_out(const Schema& schema);
    ROLLRING_LOCAL void take_versions(const DraftColumn& runs);

    const Draft* draft_;
    Checksum checksum_;
    std::uint64_t schema_id_;
    std::string_view problem_;
    std::string_view problem_column_;  // the schema's name of it
    std::uint64_t bytes_ = 0;
    std::uint32_t n_tokens_ = 0;
    GroupKey key_;
    std::array<std::uint64_t, 32> column_bytes_;  // as many as the draft has columns
    bool holes_ = false;
    VersionRange versions_;  // of the draft's column policy_version
};

// Names a delivered record of a ring; small, trivially copyable, valid until released.
struct RecordRef {
    std::uint64_t position;
    std::uint32_t lane;
    std::uint32_t lines;  // bytes in the lane / 64

    [[nodiscard]] std::uint64_t bytes() const { return std::uint64_t{lines} * 64; }
    friend bool operator==(const RecordRef&, const RecordRef&) = default;
};

}  // namespace rollring
