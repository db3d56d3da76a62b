#include "log_plan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "disk.hpp"
#include "xxh3.hpp"

namespace rollring::ledger {
namespace {

constexpr std::uint64_t segments_of_bound = 16;
constexpr std::uint64_t segment_bytes_max = std::uint64_t{256} << 20;

}  // namespace

std::string note_failure(const std::filesystem::path& directory, std::string_view did, int error) {
    std::string text = fmt::format(
        "the ledger {} has failed: {}: {}. No later record is durable. 'rollring restore' "
        "gives the records that the disk has; a stash with the option ledger=False "
        "goes on without the ledger",
        directory.string(), did, std::generic_category().message(error));
    if (const int refusal = disk().note(directory / failed_name, text + "\n")) {
        text += fmt::format(
            ". The file {} could not be written there ({}), so that no later stash knows of it",
            failed_name, std::generic_category().message(refusal));
    }
    return text;
}

std::uint64_t LogPlan::segment_bytes() const {
    return in_blocks(std::min(max_bytes / segments_of_bound, segment_bytes_max));
}

std::uint64_t head_bytes(const LogPlan& plan) {
    return padded(sizeof(FileHeader) + plan.columns.size());
}

void put_head(BlockBuffer& buffer, const LogPlan& plan, std::uint64_t segment, std::uint64_t id,
              std::int64_t created_ns) {
    FileHeader header{.magic = segment_type.magic,
                      .version = segment_type.version,
                      .columns_bytes = static_cast<std::uint32_t>(plan.columns.size()),
                      .file_number = segment,
                      .file_id = id,
                      .schema_id = plan.schema_id,
                      .first_batch = 0,
                      .created_ns = created_ns,
                      .checksum = 0};
    header.checksum = XXH3_64bits_withSeed(&header, offsetof(FileHeader, checksum), 0) ^
                      XXH3_64bits_withSeed(plan.columns.data(), plan.columns.size(), id);
    std::byte* const at = buffer.grow(head_bytes(plan));
    std::memset(at, 0, head_bytes(plan));
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + sizeof header, plan.columns.data(), plan.columns.size());
}

}  // namespace rollring::ledger
