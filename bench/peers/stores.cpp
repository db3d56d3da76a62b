#include "peers/store.hpp"

namespace bench {

std::vector<StorePeer> store_peers() {
    std::vector<StorePeer> all;
#ifdef ROLLRING_BENCH_SQLITE
    all.push_back(sqlite_store());
#else
    all.push_back({.key = "sqlite", .name = "SQLite", .missing = "built without libsqlite3-dev"});
#endif
#ifdef ROLLRING_BENCH_LMDB
    all.push_back(lmdb_store());
#else
    all.push_back({.key = "lmdb", .name = "LMDB", .missing = "built without liblmdb-dev"});
#endif
#ifdef ROLLRING_BENCH_ROCKSDB
    all.push_back(rocksdb_store());
#else
    all.push_back({.key = "rocksdb", .name = "RocksDB", .missing = "built without librocksdb-dev"});
#endif
    return all;
}

}  // namespace bench
