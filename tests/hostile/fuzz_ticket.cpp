// Any bytes as a ticket: refused with a reason, or its reader shows records of the ring, whole.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ring_map.hpp"
#include "rollring/batch.hpp"
#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash.hpp"
#include "ticket.hpp"

using namespace rollring;

namespace {

void require(bool kept) {
    if (!kept) std::abort();
}

template <class T>
T good(Result<T> result) {
    require(result.has_value());
    return std::move(*result);
}

// A ring whose batch is leased, and the batch's reader.
struct World {
    std::string name = "fuzz-ticket-" + std::to_string(getpid());
    std::unique_ptr<Stash> stash;
    Batch batch;
    std::optional<Reader> reader;
    Ticket real;

    World() {
        static_cast<void>(remove_ring(name, true));
        require(create_ring(name, {.lanes = 2, .lane_bytes = 64 << 10, .spill_bytes = 64 << 10})
                    .has_value());
        stash = good(Stash::open(name, {.group_size = 2, .batch = BatchTarget::groups(3)}));
        auto producer = good(Producer::open(name));
        const std::vector<std::int32_t> tokens(100, 7);
        for (int group = 0; group < 3; group++) {
            for (std::uint32_t member = 0; member < 2; member++) {
                const std::string instance = "g" + std::to_string(group);
                Draft draft(instance);
                draft.meta.repetition_id = member;
                draft.meta.group_size = 2;
                draft.set(Std::token_ids, tokens);
                require(producer.push(draft, Deadline::after_ms(10'000)) == Push::ok);
            }
        }
        require(stash->next(batch, Deadline::after_ms(10'000)) == NextBatch::batch);
        real = good(Ticket::read(good(batch.ticket())));
        reader.emplace(good(Reader::attach(name)));
    }
    World(const World&) = delete;
    World& operator=(const World&) = delete;
    ~World() { static_cast<void>(remove_ring(name, true)); }
};

World& world() {
    static World made;
    return made;
}

// The parts that the fuzzer cannot guess: the counts, the check, the ring and the batch. `how` says
// which of the records are the batch's own but for the changes of the bytes in them.
std::string completed(const std::uint8_t* bytes, std::size_t count, unsigned how) {
    Ticket ticket = world().real;
    if ((how & 2) != 0) ticket.groups.clear();
    if ((how & 4) != 0) ticket.records.resize(count / 64 % 16);
    const auto take = [&](void* to, std::size_t wanted) {
        const std::size_t got = std::min(wanted, count);
        auto* each = static_cast<std::uint8_t*>(to);
        for (std::size_t i = 0; i < got; i++) each[i] ^= bytes[i];
        bytes += got;
        count -= got;
    };
    if ((how & 8) != 0) take(&ticket.head, sizeof ticket.head);
    take(ticket.records.data(), ticket.records.size() * sizeof(TicketRecord));
    take(ticket.groups.data(), ticket.groups.size() * sizeof(TicketGroup));
    return ticket.write();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t count) {
    if (count < 1) return 0;
    const std::string bytes =
        (input[0] & 1) != 0 ? completed(input + 1, count - 1, input[0])
                            : std::string(reinterpret_cast<const char*>(input + 1), count - 1);
    auto ticket = Ticket::read(bytes);
    if (ticket) {
        require(ticket->write() == bytes);
    } else {
        require(!ticket.error().message.empty());
    }
    auto share = world().reader->open(bytes);
    require(share.has_value() || !share.error().message.empty());
    require(ticket.has_value() || !share.has_value());
    if (!share) return 0;
    require(share->sequences().size() == ticket->records.size());
    for (const auto& sequence : share->sequences()) {
        require(sequence.view.n_tokens() == 100);
        for (const std::int32_t token : sequence.view.token_ids()) require(token == 7);
    }
    require(share->close().has_value());
    return 0;
}
