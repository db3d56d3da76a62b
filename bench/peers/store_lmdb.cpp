// LMDB with its usual commits: the new pages and then the root are written and synced.

#include <lmdb.h>

#include <cstring>
#include <memory>

#include "peers/store.hpp"

namespace bench {
namespace {

struct CloseLmdb {
    void operator()(MDB_env* environment) const { mdb_env_close(environment); }
};

void must_do(int error, const char* what) {
    if (error != 0) fail(std::string("LMDB: ") + what + ": " + mdb_strerror(error));
}

void with_lmdb(const std::filesystem::path& directory, const StorePeer::Shape& shape,
               const std::function<void(const StorePeer::Commit&)>& work) {
    MDB_env* opened = nullptr;
    must_do(mdb_env_create(&opened), "create");
    const std::unique_ptr<MDB_env, CloseLmdb> environment(opened);
    // Each record ends with part of a page.
    must_do(mdb_env_set_mapsize(opened, 2 * shape.total_bytes + (std::size_t{64} << 20)), "size");
    must_do(mdb_env_open(opened, directory.c_str(), 0, 0600), "open");
    MDB_txn* transaction = nullptr;
    MDB_dbi table = 0;
    must_do(mdb_txn_begin(opened, nullptr, 0, &transaction), "begin");
    must_do(mdb_dbi_open(transaction, nullptr, MDB_INTEGERKEY, &table), "open");
    must_do(mdb_txn_commit(transaction), "commit");
    work([&](std::uint64_t number, std::span<const std::byte> records) {
        must_do(mdb_txn_begin(opened, nullptr, 0, &transaction), "begin");
        for (; !records.empty(); records = records.subspan(shape.record_bytes)) {
            std::size_t key = number++;
            MDB_val name{sizeof key, &key};
            MDB_val room{shape.record_bytes, nullptr};
            must_do(mdb_put(transaction, table, &name, &room, MDB_APPEND | MDB_RESERVE), "put");
            std::memcpy(room.mv_data, records.data(), shape.record_bytes);
        }
        must_do(mdb_txn_commit(transaction), "commit");
    });
}

}  // namespace

StorePeer lmdb_store() {
    return {.key = "lmdb", .name = "LMDB", .open = with_lmdb};
}

}  // namespace bench
