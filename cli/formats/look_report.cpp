// Reports of a look from outside: at a ring, its stash, its requests and its weight channel.

#include "cli/formats/stat_fields.hpp"
#include "rollring/extras/requests.hpp"

namespace rollring::cli {

template void add_fields(Json& to, const RingStat& stat);
template void add_fields(Json& to, const LaneStat& stat);
template void add_fields(Json& to, const RingDiagnosis& stat);
template void add_fields(Json& to, const GroupStat& stat);
template void add_fields(Json& to, const StashStat& stat);
template void add_fields(Json& to, const SubscriberStat& stat);
template void add_fields(Json& to, const DeltaReport& stat);
template void add_fields(Json& to, const SyncTimes& stat);
template void add_fields(Json& to, const WeightsStat& stat);
template void add_fields(Json& to, const RequestStat& stat);
template void add_fields(Json& to, const RequestWorkerStat& stat);
template void add_fields(Json& to, const RequestsStat& stat);

}  // namespace rollring::cli
