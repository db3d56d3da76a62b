// Reports of a run: of a producer, a consumer, and a stash's account.

#include "cli/formats/stat_fields.hpp"

namespace rollring::cli {

Json json_of(const DropAmounts& dropped) {
    Json json = Json::object();
    for (std::size_t i = 0; i < dropped.size(); i++) {
        json[std::string(name(static_cast<DropReason>(i)))] = dropped[i].records;
    }
    return json;
}

template void add_fields(Json& to, const StashAccount& stat);
template void add_fields(Json& to, const StashCopies& stat);
template void add_fields(Json& to, const ConsumerStats& stat);
template void add_fields(Json& to, const ProducerStats& stat);

void add_account(Json& to, const StashAccount& account) {
    add_fields(to, account);
    to["conserved"] = account.conserved();
}

}  // namespace rollring::cli
