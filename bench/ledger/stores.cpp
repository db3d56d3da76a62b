#include "ledger/stores.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "ledger/disk.hpp"

namespace bench {
namespace {

void commit_all(Board& board, const StoreWork& work, const StorePeer::Commit& commit) {
    const Source source(work.n_tokens);
    const Flat flat = Flat::of(work.n_tokens);
    std::vector<std::byte> batch(work.records_a_commit * flat.bytes);
    const std::int64_t began_ns = now_ns();
    for (std::uint64_t first = 0; first < work.records; first += work.records_a_commit) {
        const std::uint64_t count = std::min(work.records_a_commit, work.records - first);
        for (std::uint64_t i = 0; i < count; i++) {
            flat.write(batch.data() + i * flat.bytes, source[first + i]);
        }
        commit(first, {batch.data(), count * flat.bytes});
    }
    board.figures[0] = now_ns() - began_ns;
}

}  // namespace

double store_rate(const StorePeer& peer, const std::filesystem::path& directory,
                  const StoreWork& work) {
    const ScratchFolder folder(directory);
    const SharedBytes memory(sizeof(Board));
    Board& board = *memory.at<Board>();
    const std::uint64_t record_bytes = Flat::of(work.n_tokens).bytes;
    const auto side = [&](Board& shared) {
        peer.open(folder.path(),
                  {.record_bytes = record_bytes, .total_bytes = work.records * record_bytes},
                  [&](const StorePeer::Commit& commit) { commit_all(shared, work, commit); });
    };
    const std::string problem = run_all({{any_cpu, side}}, work.realtime, board);
    if (problem == "interrupted") return 0;
    if (!problem.empty()) fail(peer.name + ": " + problem);
    const double seconds = static_cast<double>(board.figures[0]) / 1e9;
    return static_cast<double>(work.records) * work.n_tokens / seconds;
}

}  // namespace bench
