#include "ticket.hpp"

#include <fmt/core.h>

#include <cstring>
#include <span>

#include "xxh3.hpp"

namespace rollring {
namespace {

constexpr std::uint64_t ticket_magic = 0x3154'4b54'524c'4c52;  // "RLLRTKT1"

std::uint64_t check_of(std::string_view bytes) {
    const std::string_view body = bytes.substr(sizeof(TicketHead));
    return XXH3_64bits_withSeed(body.data(), body.size(),
                                XXH3_64bits(bytes.data(), offsetof(TicketHead, check)));
}

// Empty if the ticket is consistent.
std::string_view what_is_wrong(const Ticket& ticket) {
    const TicketHead& head = ticket.head;
    if (head.rank >= head.world) return "its rank is outside its world";
    if (head.row >= shared_batches || head.number == 0 || head.number >= share_ending) {
        return "it has no batch number";
    }
    std::uint64_t records = 0;
    for (const TicketGroup& group : ticket.groups) {
        if (group.records == 0) return "it has a group without records";
        records += group.records;
    }
    if (records != ticket.records.size()) return "its groups and its records do not match";
    for (std::size_t i = 0; i < ticket.records.size(); i++) {
        if (ticket.records[i].withheld > 1) return "a withheld record is marked wrongly";
        if (i > 0 && ticket.records[i].index <= ticket.records[i - 1].index) {
            return "its records are not in the order of a batch";
        }
    }
    return {};
}

}  // namespace

std::string Ticket::write() {
    head.magic = ticket_magic;
    head.groups = static_cast<std::uint32_t>(groups.size());
    head.records = static_cast<std::uint32_t>(records.size());
    std::string bytes(sizeof head, '\0');
    const auto append = [&](const auto& entries) {
        const auto all = std::as_bytes(std::span(entries));
        bytes.append(reinterpret_cast<const char*>(all.data()), all.size());
    };
    std::memcpy(bytes.data(), &head, sizeof head);
    append(groups);
    append(records);
    head.check = check_of(bytes);
    std::memcpy(bytes.data(), &head, sizeof head);
    return bytes;
}

Result<Ticket> Ticket::read(std::string_view bytes) {
    const auto refuse = [&](std::string_view why) {
        return refused(
            Errc::invalid_argument,
            fmt::format("these {} bytes are not a ticket of a batch: {}", bytes.size(), why));
    };
    Ticket ticket;
    if (bytes.size() < sizeof ticket.head) return refuse("too short");
    std::memcpy(&ticket.head, bytes.data(), sizeof ticket.head);
    if (ticket.head.magic != ticket_magic) return refuse("wrong magic");
    const std::uint64_t group_bytes = std::uint64_t{ticket.head.groups} * sizeof(TicketGroup);
    const std::uint64_t record_bytes = std::uint64_t{ticket.head.records} * sizeof(TicketRecord);
    if (bytes.size() - sizeof ticket.head != group_bytes + record_bytes) {
        return refuse("the length does not match the number of records");
    }
    if (ticket.head.check != check_of(bytes)) return refuse("the checksum does not match");
    ticket.groups.resize(ticket.head.groups);
    ticket.records.resize(ticket.head.records);
    const char* const body = bytes.data() + sizeof ticket.head;
    if (group_bytes != 0) std::memcpy(ticket.groups.data(), body, group_bytes);
    if (record_bytes != 0) std::memcpy(ticket.records.data(), body + group_bytes, record_bytes);
    if (const std::string_view wrong = what_is_wrong(ticket); !wrong.empty()) return refuse(wrong);
    return ticket;
}

}  // namespace rollring
